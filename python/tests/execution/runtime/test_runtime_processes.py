# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``processes`` against the engines ``virtual`` and ``threads``, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.level5_modules import Level5, draw, ops, there_and_back
from tvm_distir.execution.runtime.engines.processes.engine import ProcessesEngine
from tvm_distir.execution.runtime.engines.processes.library import LIBRARIES
from tvm_distir.execution.runtime.engines.processes.pool import POOL
from tvm_distir.execution.runtime.engines.processes.shared_memory import (
    Memory,
    MemoryLayout,
    make_file,
)
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.support.errors.tree import EngineError

R = np.random.default_rng


def all_engines(mod, inputs):
    """Outputs of ``processes``, checked to be the bits and the counts of the others."""
    processes, threads = ProcessesEngine(20), ThreadsEngine(20)
    got = processes.run(mod, inputs)
    for other in (threads.run(mod, inputs), VirtualEngine().run(mod, inputs)):
        assert len(got) == len(other)
        assert all(same_bits(a, b) for a, b in zip(got, other))
    assert processes.collectives == threads.collectives
    return got


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
@pytest.mark.parametrize("width", [4, 60000])
def test_every_op_and_type(dtype, width):
    """All collectives in a row, over both axes; small and by chunks."""
    mesh = td.device_mesh({"a": 2, "b": 2})
    build = Level5(mesh)

    def body(bb, x):
        full = bb.emit(ops.all_gather(x, mesh, 1, 0))
        part = bb.emit(ops.reduce_scatter(full, mesh, 0, 1, "max"))
        swapped = bb.emit(ops.all_to_all(part, mesh, 1, 1, 0))
        moved = bb.emit(ops.collective_permute(swapped, mesh, 0, 1))
        return [bb.emit(ops.all_reduce(x, mesh, [0, 1], "sum")), moved]

    build.entry(
        [("x", (4, width), dtype, "S[0], S[0]")],
        [("y", (1, width), dtype, "R, R"), ("z", (2, 2 * width), dtype, "S[1], S[0]")],
        body,
    )
    x = draw(R(0), (4, width), dtype)
    y, _ = all_engines(build.get(), [x])
    assert y.shape == (1, width)


@pytest.mark.parametrize("shape", [(4, 4), (5, 7), (300, 1000)])
def test_several_meshes(shape):
    x = draw(R(3), shape, "float32")
    y, z = all_engines(there_and_back(shape), [x])
    assert np.array_equal(y, 4 * x)
    assert np.array_equal(z, 3 * x)


def test_verify_a_transformer():
    mod = td.zoo.gpt(layers=1, hidden=32, heads=4, seq=8, vocab=64, batch=4)
    plan = td.planning.compose(mod, {"dp": 2, "tp": 2}, "data_parallel+megatron")
    report = td.verify(mod, plan, engine="processes")
    assert report.equal
    assert report.engine == "processes"
    assert report.collectives == td.verify(mod, plan, engine="threads").collectives


def test_programs_of_one_hash_keep_their_own_libraries(monkeypatch):
    """TVM's structural hashes of unlike modules meet."""
    monkeypatch.setattr(LoweredProgram, "fingerprint", "the same")
    x = draw(R(3), (4, 4), "float32")
    for op, want in ((relax.op.add, x + x), (relax.op.multiply, x * x), (relax.op.add, x + x)):
        build = Level5(td.device_mesh({"a": 2}))
        port = ((4, 4), "float32", "R")
        build.entry([("x", *port)], [("y", *port)], lambda bb, v, op=op: bb.emit(op(v, v)))
        (y,) = ProcessesEngine(20).run(build.get(), [x])
        assert np.array_equal(y, want)


def test_a_program_is_compiled_for_every_target_that_it_runs_on():
    """A run takes no library that a run within another ``with target:`` had made."""
    program = LoweredProgram(there_and_back())
    entry, created = program.entries[0], {}
    for level in (0, 1, 0):
        with tvm.target.Target({"kind": "llvm", "opt-level": level}):
            created.setdefault(level, []).append(LIBRARIES.path(program, entry))
    assert created[0][0] == created[0][1] != created[1][0]
    assert created[0][0].read_bytes() != created[1][0].read_bytes()


def test_workers_stay_for_the_next_run():
    mod = there_and_back()
    x = draw(R(3), (4, 4), "float32")
    ProcessesEngine(20).run(mod, [x])
    before = list(POOL.pids())
    ProcessesEngine(20).run(mod, [x])
    assert list(POOL.pids()) == before


def test_a_killed_server_is_replaced():
    mod = there_and_back()
    x = draw(R(3), (4, 4), "float32")
    ProcessesEngine(20).run(mod, [x])
    POOL._server.send_signal(signal.SIGKILL)
    POOL._server.wait()
    time.sleep(0.2)
    y, _ = ProcessesEngine(20).run(mod, [x])
    assert np.array_equal(y, 4 * x)


def test_an_idle_worker_that_is_killed_is_replaced():
    mod = there_and_back()
    x = draw(R(3), (4, 4), "float32")
    ProcessesEngine(20).run(mod, [x])
    os.kill(next(POOL.pids()), signal.SIGKILL)
    time.sleep(0.2)
    y, _ = ProcessesEngine(20).run(mod, [x])
    assert np.array_equal(y, 4 * x)


def test_a_module_that_workers_cannot_import_is_named():
    engine = ProcessesEngine(20, preload=["no_such_module"])
    with pytest.raises(EngineError, match=r"DIST0612 main.*no_such_module"):
        engine.run(there_and_back(), [draw(R(3), (4, 4), "float32")])


def test_memory_places_arrays():
    layout = MemoryLayout()
    places = [layout.place(s, d) for s, d in [((3,), "int8"), ((2, 0), "float64"), ((), "bool")]]
    assert [p.offset % 64 for p in places] == [0, 0, 0]
    file = make_file(layout.size_bytes)
    try:
        single, private = Memory(file, layout.size_bytes), Memory(file, layout.size_bytes, True)
        single.array(places[0])[:] = 7
        assert private.tensor(places[0]).numpy().tolist() == [7, 7, 7]
        private.array(places[0])[:] = 1
        assert single.array(places[0]).tolist() == [7, 7, 7]
        assert single.array(places[2]).shape == ()
    finally:
        os.close(file)


def children(mark):
    """Processes that carry the mark in their environment."""
    result = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                result.add(int(folder.name))
        except OSError:
            continue
    return result


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_nothing_is_left_of_a_controller(how, tmp_path):
    script = tmp_path / "controller.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            from tests.execution.runtime import test_runtime_processes as t
            t.ProcessesEngine(20).run(t.there_and_back(), [t.draw(t.R(3), (4, 4), "float32")])
            print("ready", flush=True)
            time.sleep(30 if {how == "killed"} else 0)
            """
        )
    )
    mark = f"controller_{os.getpid()}_{time.monotonic_ns()}"
    environment = child_environment(TVM_DISTIR_TEST_MARK=mark)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment
    ) as controller:
        assert controller.stdout.readline() == b"ready\n"
        if how == "killed":
            assert len(children(mark.encode())) == 8  # itself, the server and six workers
            controller.kill()
        assert controller.wait(20) == (-signal.SIGKILL if how == "killed" else 0)
    deadline_s = time.monotonic() + 10
    while children(mark.encode()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not children(mark.encode())
