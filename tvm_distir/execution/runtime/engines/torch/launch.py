# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start the processes of a torch.distributed job, which meet in a store of this process."""

from __future__ import annotations

import datetime
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from tvm_distir.execution.runtime.engines.fork import end_text
from tvm_distir.execution.runtime.engines.job_folder import LOG, Job, failure_file, runtime_alone
from tvm_distir.execution.runtime.engines.job_launch import (
    POLL_S,
    START_S,
    check_progress,
    died,
    has_failed,
    import_path,
    last_words,
    read_failures,
)
from tvm_distir.execution.runtime.engines.loopback import LOOPBACK
from tvm_distir.execution.runtime.engines.termination import GRACE_S, ProgressMonitor

from .failure_store import SECRET_VARIABLE
from .process_groups import loopback_store

_WORKER = "tvm_distir.execution.runtime.engines.torch.entry_process"


def run_processes(job: Job, folder: Path) -> None:
    """Run the processes of a job on this host to their end.

    Raises
    ------
    EngineError
        The first failure of any rank; DIST0615 when a process ended without a word.
    """
    limit = datetime.timedelta(seconds=max(job.timeout_s, START_S))
    store = loopback_store(0, True, limit)  # it serves as long as it is referred to
    workers = _Workers(job, folder, int(store.port))
    try:
        workers.wait()
    finally:
        workers.end()


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
        self._job, self._ranks, self._folder = job, job.ranks, folder
        self._secret = secrets.token_hex(32)
        names = {rank: entry.function for entry in job.entries for rank in entry.ranks}
        self._names = [names[rank] for rank in self._ranks]
        self._runtime = runtime_alone(job)
        self._processes = [self._start(number, port) for number in range(len(self._ranks))]

    def _start(self, number: int, port: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **self._runtime,
            "PYTHONPATH": import_path(),
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

    def wait(self) -> None:
        """Wait for the end of all processes.

        Raises
        ------
        EngineError
            The first failure.
        """
        stillness = ProgressMonitor()
        while True:
            codes = [process.poll() for process in self._processes]
            if any(codes) or has_failed(self._job, self._folder):
                raise self._failure()
            if None not in codes:
                return
            running = [p.pid for p, code in zip(self._processes, codes) if code is None]
            check_progress(stillness, self._job, running, 2 * GRACE_S)
            time.sleep(POLL_S)

    def _failure(self) -> BaseException:
        """Return the death of a process that wrote no failure, else the first failure."""
        latest_s = time.monotonic() + GRACE_S
        while time.monotonic() < latest_s:
            for number, process in enumerate(self._processes):
                code = process.poll()
                rank = self._ranks[number]
                if code and not failure_file(self._folder, rank).exists():
                    words = last_words(self._folder / f"{number}-{LOG}", 1)
                    problem = f"worker {rank}: {end_text(code)}{words and f': {words}'}"
                    return died(problem, self._names[number])
            time.sleep(POLL_S)
        return min(read_failures(self._job, self._folder), key=lambda item: item[0])[1]

    def end(self) -> None:
        """End the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
