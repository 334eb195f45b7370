# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start the torch.distributed job of a run from a plain process, and collect its results.

A job has a temporary folder, as that of the engine ``mpi``: the program and its inputs are written
to it, and results and failures are read from it. The processes meet in a store of this process.
"""

from __future__ import annotations

import datetime
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.engines.base import LocalResults
from tvm_distir.execution.runtime.engines.fork import end_text, ticks_of
from tvm_distir.execution.runtime.engines.job_folder import (
    LOG,
    Job,
    RunCounts,
    failure_file,
    read_results,
    runtime_alone,
    write_job,
)
from tvm_distir.execution.runtime.engines.loopback import LOOPBACK
from tvm_distir.execution.runtime.engines.termination import GRACE_S, ProgressMonitor, stopped
from tvm_distir.execution.runtime.program.inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.support import EngineError

from .failure_store import SECRET_VARIABLE
from .torch_job import START_S, loopback_store

_WORKER = "tvm_distir.execution.runtime.engines.torch.entry_process"
_POLL_S = 0.02


def launch(
    program: Runnable,
    local: LocalInputs,
    timeout_s: float,
    preload: tuple[str, ...],
    options: Mapping[str, Any],
    device: str,
) -> tuple[LocalResults, RunCounts]:
    """Run a program as a job of a single process per rank on this host.

    Raises
    ------
    EngineError
        The first failure of any rank; DIST0615 when a process ended without a word.
    """
    folder = Path(tempfile.mkdtemp(prefix="tvm-distir-torch-"))
    try:
        job = write_job(program, local, timeout_s, preload, folder, {**options, "device": device})
        limit = datetime.timedelta(seconds=max(timeout_s, START_S))
        store = loopback_store(0, True, limit)
        workers = _Workers(job, folder, int(store.port))
        try:
            workers.wait(timeout_s)
        finally:
            workers.end()
        return read_results(job, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Workers:
    """The processes of a job.

    Parameters
    ----------
    job : Job
    folder : Path
        The folder of the job.
    port : int
        The port of the store of this process.
    """

    def __init__(self, job: Job, folder: Path, port: int) -> None:
        self._ranks, self._folder = job.ranks, folder
        self._secret = secrets.token_hex(32)
        names = {rank: entry.function for entry in job.entries for rank in entry.ranks}
        self._names = [names[rank] for rank in self._ranks]
        self._runtime = runtime_alone(job)
        self._processes = [self._start(number, port) for number in range(len(self._ranks))]

    def _start(self, number: int, port: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **self._runtime,
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "RANK": str(number),
            "WORLD_SIZE": str(len(self._ranks)),
            "LOCAL_RANK": str(number),
            "LOCAL_WORLD_SIZE": str(len(self._ranks)),
            "MASTER_ADDR": LOOPBACK,
            SECRET_VARIABLE: self._secret,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is that of the parent
        }
        with open(self._folder / f"{number}-{LOG}", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of all processes.

        Raises
        ------
        EngineError
            The first failure.
        """
        stillness = ProgressMonitor()
        while True:
            codes = [process.poll() for process in self._processes]
            if any(codes) or any(failure_file(self._folder, r).exists() for r in self._ranks):
                raise self._failure()
            if None not in codes:
                return
            work = [ticks_of(p.pid) for p, code in zip(self._processes, codes) if code is None]
            if stillness.seconds(len(work), *work) > timeout_s + 2 * GRACE_S:
                raise stopped(self._ranks, timeout_s)
            time.sleep(_POLL_S)

    def _failure(self) -> BaseException:
        """Return the death of a process that wrote no failure, else the first failure."""
        latest_s = time.monotonic() + GRACE_S
        while time.monotonic() < latest_s:
            for number, process in enumerate(self._processes):
                code = process.poll()
                rank = self._ranks[number]
                if code and not failure_file(self._folder, rank).exists():
                    return EngineError(
                        "DIST0615",
                        f"worker {rank}: {end_text(code)}{self._last_words(number)}",
                        place=self._names[number],
                        remedy="Check the system's log for the cause: too little memory, or a "
                        "crash.",
                    )
            time.sleep(_POLL_S)
        files = [failure_file(self._folder, rank) for rank in self._ranks]
        failures = [pickle.loads(path.read_bytes()) for path in files if path.exists()]
        error: BaseException = min(failures, key=lambda item: item[0])[1]
        return error

    def _last_words(self, number: int) -> str:
        text = (self._folder / f"{number}-{LOG}").read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""

    def end(self) -> None:
        """End the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
