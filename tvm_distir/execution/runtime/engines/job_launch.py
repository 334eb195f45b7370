# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start the job of a run from a plain process, run its ranks, and collect its results.

A job has a temporary folder: the program and its inputs (``job.pickle``, libraries, parts of
inputs) are written to it, and results, counts and failures are read from it, a file per rank. The
folder is removed at the end of the run, even after a failure.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.support import DistIRError, EngineError

from .base import LocalResults
from .fork import ticks_of
from .job_engine import JobEngine
from .job_folder import (
    JOB,
    Job,
    RunCounts,
    SavedProgram,
    failure_file,
    read_results,
    write_job,
    write_results,
    write_value,
)
from .termination import GRACE_S, ProgressMonitor, stopped

START_S = 120.0
"""The least time for which a process waits for the others to start."""

POLL_S = 0.02
"""The time between two looks at the processes of a job."""


def run_job(
    engine: JobEngine,
    program: Runnable,
    local: LocalInputs,
    options: Mapping[str, object],
    run: Callable[[Job, Path], None],
) -> tuple[LocalResults, RunCounts]:
    """Run a program as a job of a single process per rank.

    Parameters
    ----------
    engine : JobEngine
    program : Runnable
    local : LocalInputs
    options : dict
        Attributes of the engine in the processes, beside its timeout.
    run : callable
        Starts the processes of a job in a folder, and raises its first failure.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tvm-distir-{engine.name}-"))
    try:
        job = write_job(program, local, engine.timeout_s, engine.preload, folder, options)
        run(job, folder)
        return read_results(job, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def import_path() -> str:
    """Return the import path of this process, as ``PYTHONPATH`` of others."""
    return os.pathsep.join(p or os.getcwd() for p in sys.path)


def read_job(folder: Path) -> Job:
    """Return the job that was written to a folder."""
    job: Job = pickle.loads((folder / JOB).read_bytes())
    return job


def run_rank(
    job: Job, folder: Path, rank: int, location: str, make_engine: Callable[[], JobEngine]
) -> BaseException | None:
    """Run a rank of a job in its process, and write its results; returns what failed."""
    try:
        for name in job.preload:
            importlib.import_module(name)
        engine = make_engine()
        for name, value in job.options.items():
            setattr(engine, name, value)
        outputs = engine.join(SavedProgram(job), [], "sharded")
        counts = RunCounts(engine.collectives, engine.most_in_flight)
        write_results(job, folder, rank, outputs, counts)
    except BaseException as err:
        known = isinstance(err, DistIRError | KeyboardInterrupt)
        failure = err if known else worker_failed(err, rank, location)
        write_value(failure_file(folder, rank), (time.time(), failure))
        return failure
    return None


def has_failed(job: Job, folder: Path) -> bool:
    """Return whether a rank wrote a failure."""
    return any(failure_file(folder, rank).exists() for rank in job.ranks)


def read_failures(job: Job, folder: Path) -> list[tuple[float, BaseException]]:
    """Return the failures that ranks wrote, with their times."""
    files = (failure_file(folder, rank) for rank in job.ranks)
    return [pickle.loads(path.read_bytes()) for path in files if path.exists()]


def died(problem: str, location: str) -> EngineError:
    """Return the error DIST0615 for a process that ended without a word."""
    remedy = "Check the system's log for the cause: too little memory, or a crash."
    return EngineError("DIST0615", problem, location=location, remedy=remedy)


def last_words(log: Path, lines: int) -> str:
    """Return the end of the output of a process; empty where there is none."""
    text = log.read_text(encoding="utf-8", errors="replace")
    messages = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    return " / ".join(messages[-lines:])[:600]


def check_progress(
    monitor: ProgressMonitor, job: Job, processes: Sequence[int], grace_s: float = GRACE_S
) -> None:
    """Raise DIST0613 where no process has computed for the timeout of a job and the grace."""
    work = [ticks_of(process) for process in processes]
    if monitor.seconds(len(work), *work) > job.timeout_s + grace_s:
        raise stopped(job.ranks, job.timeout_s)
