# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of an MPI job that go wrong: how soon it is noticed, what is said, what is left."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.mpi_cases import CASES
from tests.execution.runtime.test_runtime_mpi import needs_mpi, start
from tvm_distir.execution.runtime.engines.job_folder import LOG, failure_file, process_file
from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine
from tvm_distir.execution.runtime.engines.mpi.failures import raise_failure
from tvm_distir.execution.runtime.engines.mpi.shared_memory import SEGMENT, mapped_segments
from tvm_distir.support.errors.tree import DistIRError, EngineError

pytestmark = needs_mpi
SAYS = {
    "raises": "ValueError: the cat walked over the keyboard",
    "memory": "MemoryError",
    "interrupt": "KeyboardInterrupt",
    "absent": "DIST0613 process",
    "ended": "; process 2 has ended",
    "op": "rank 2 called all_gather(dim=0) on 64 bytes",
    "dtype": "rank 2 called all_reduce(op=sum) on 64 bytes (int32[4, 4])",
    "shape": "rank 2 called all_reduce(op=sum) on 80 bytes (float32[4, 5])",
    "groups": "rank 2 called all_reduce(op=sum) on 64 bytes (float32[4, 4]) over [[0, 1, 3, 2]]",
}


def nothing_stays(segments: set[str]) -> bool:
    """Whether the jobs' folders and the shared memory that a job mapped go by themselves."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        jobs = list(Path(tempfile.gettempdir()).glob("tvm-distir-mpi-*"))
        if not jobs and not any(Path(name).exists() for name in segments):
            return True
        time.sleep(0.1)
    return False


def mapped(pids: list[int]) -> set[str]:
    """The shared memory of processes that run, by name."""
    return set().union(*(mapped_segments(Path(f"/proc/{pid}/maps")) for pid in pids))


def told(messages: str) -> set[str]:
    """The shared memory that the processes of a job printed."""
    result = set(SEGMENT.findall(messages))
    assert result, messages
    return result


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path_factory):
    """Jobs of other tests lie elsewhere."""
    folder = tmp_path_factory.mktemp("jobs")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))


# A job can be used again after a failure: one job has most of those that leave its ranks alive.
JOBS = [
    ["memory", "op", "dtype", "shape", "groups", "raises"],
    ["interrupt"],
    ["absent"],
    ["ended"],
]


def test_every_kind_is_in_a_job():
    assert sorted(kind for kinds in JOBS for kind in kinds) == sorted(SAYS)


@pytest.mark.parametrize("kinds", JOBS, ids="+".join)
def test_every_rank_ends_with_the_cause(kinds):
    begin_s = time.monotonic()
    message = start(4, "faults", *kinds, expect=1)
    for kind in kinds[:-1]:
        ranks = re.findall(rf"rank (\d) {kind}: ", message)
        lines = [line for line in message.splitlines() if f" {kind}: " in line]
        assert sorted(ranks) == ["0", "1", "2", "3"], message
        assert any(SAYS[kind] in line for line in lines), message
    assert SAYS[kinds[-1]] in message
    assert kinds != ["absent"] or " for rank 2 " in message
    assert time.monotonic() - begin_s < 40
    assert nothing_stays(told(message))


@pytest.mark.parametrize("kind", ["killed", "exits"])
def test_a_process_that_dies_ends_the_job(kind):
    begin_s = time.monotonic()
    message = start(4, "fault", kind, expect=1)
    assert time.monotonic() - begin_s < 40
    assert nothing_stays(told(message))


def slow_case():
    """A module whose ranks wait long enough to be killed: rank 1 of two sends nothing."""
    from tvm import relax

    from tests.execution.runtime.level5_modules import Level5
    from tvm_distir.core.ir.operators import ops

    first, second = td.device_mesh({"a": 1}), td.device_mesh({"a": 1}, start=1)
    build = Level5(first, second)
    arrival = {"placement": "R", "peer_placement": "R", "shape": (4,), "dtype": "float32", "tag": 0}
    ends = {"device_mesh": second, "peer_mesh": first}

    def waits(bb, x):
        there = ops.recv(**arrival, device_mesh=first, peer_mesh=second)
        return bb.emit(relax.op.add(x, bb.emit(there)))

    x, y, z = (("xyz"[i], (4,), "float32", "R") for i in range(3))
    build.entry([x], [z], waits, 0, False, [0], [0])
    build.entry([], [y], lambda bb: bb.emit(ops.recv(**arrival, **ends)), 1, False, [], [1])
    return build.get(), CASES["one_mesh"]()[1][0][0, :4]


class Started(threading.Thread):
    """Runs a case in a thread; the job's folder is found by its name."""

    def __init__(self, timeout_s):
        super().__init__(daemon=True)
        self.before = set(Path(tempfile.gettempdir()).glob("tvm-distir-mpi-*"))
        self.timeout_s = timeout_s
        self.error = None
        mod, x = slow_case()
        self.call = lambda: MpiEngine(timeout_s).run(mod, [x])

    def run(self):
        try:
            self.call()
        except DistIRError as err:
            self.error = err

    def processes(self):
        """Process ids by rank, once both run."""
        for _ in range(3000):
            for folder in set(Path(tempfile.gettempdir()).glob("tvm-distir-mpi-*")) - self.before:
                files = [process_file(folder, rank) for rank in range(2)]
                if all(f.exists() and f.read_text() for f in files):
                    return [int(f.read_text()) for f in files]
            time.sleep(0.02)
        raise AssertionError("the job did not start")


def test_a_killed_worker_is_named():
    job = Started(120)
    job.start()
    pids = job.processes()
    segments = mapped(pids)
    os.kill(pids[1], signal.SIGKILL)
    job.join(30)
    assert not job.is_alive()
    assert str(job.error).startswith("DIST0615 engine mpi: worker 1: was killed by SIGKILL")
    assert nothing_stays(segments)


ENDS = {
    "ctypes.string_at(0)": (-signal.SIGSEGV, "was killed by SIGSEGV"),
    "os.kill(os.getpid(), signal.SIGKILL)": (-signal.SIGKILL, "was killed by SIGKILL"),
    "os._exit(3)": (3, "ended with exit code 3"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_the_guard_of_a_worker_saw_decides_over_the_launchers_report(end, tmp_path):
    """Rank 1 dies; the launcher names rank 0, which failed because of it."""
    job = SimpleNamespace(ranks=[0, 1, 2], entries=[SimpleNamespace(function="main")])
    (tmp_path / LOG).write_text("noticed that process rank 0 [job@1,0] exited on signal 9 (Killed)")
    with pytest.raises(EngineError, match="worker 0: was killed by SIGKILL"):
        raise_failure(job, tmp_path, 9)
    worker = (
        "import ctypes, os, pathlib, signal\n"
        "from tvm_distir.execution.runtime.engines.job_folder import process_file\n"
        "from tvm_distir.execution.runtime.engines.mpi.failures import fork_worker\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "code = fork_worker(folder)\n"
        "if code is None:\n"
        "    process_file(folder, 1).write_text(str(os.getpid()))\n"
        f"    {end}\n"
        "raise SystemExit(code)\n"
    )
    environment = child_environment(TVM_USE_RUNTIME_LIB="1")
    done = subprocess.run([sys.executable, "-c", worker], env=environment, check=False)
    code, text = ENDS[end]
    assert done.returncode == code
    later = (time.time() + 1, EngineError("DIST0612", "a broken pipe"))
    failure_file(tmp_path, 0).write_bytes(pickle.dumps(later))
    with pytest.raises(EngineError, match=f"DIST0615 main: worker 1: {text}"):
        raise_failure(job, tmp_path, 9)


def test_ranks_that_wait_for_each_other_run_into_the_timeout():
    job = Started(2)
    job.start()
    segments = mapped(job.processes())
    job.join(60)
    assert not job.is_alive()
    assert job.error is not None
    assert job.error.code == "DIST0613"
    assert "receive of transfer 0" in str(job.error)
    assert nothing_stays(segments)


def test_an_interrupted_run_leaves_nothing():
    program = (  # which listens, even where the tests were started deaf to Ctrl-C (with "&")
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.execution.runtime.test_runtime_mpi_faults import slow_case, MpiEngine\n"
        "mod, x = slow_case()\nprint('ready', flush=True)\nMpiEngine(120).run(mod, [x])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    workers = Started.processes(SimpleNamespace(before=set()))
    segments = mapped(workers)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in message
    assert nothing_stays(segments)
    for _ in range(250):  # a killed process takes a moment to end
        if not any(lives(pid) for pid in workers):
            return
        time.sleep(0.02)
    raise AssertionError("a worker outlives its job")


def lives(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_worker_raises_is_told():
    """A packed function that no process knows."""
    from tvm import relax

    from tests.execution.runtime.level5_modules import Level5

    mesh = td.device_mesh({"a": 2})
    build = Level5(mesh)
    out = relax.TensorType([4], "float32")
    build.entry(
        [("x", (4,), "float32", "R")],
        [("y", (4,), "float32", "R")],
        lambda bb, x: bb.emit(relax.op.call_dps_packed("nobody.knows_it", [x], out)),
    )
    x = CASES["one_mesh"]()[1][0][0, :4]
    with pytest.raises(EngineError, match=r"DIST0618 nobody\.knows_it: "):
        MpiEngine(60).run(build.get(), [x])
