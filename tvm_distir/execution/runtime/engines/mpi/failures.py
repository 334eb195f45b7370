# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the first cause of the end of an MPI job.

A launcher that loses a process kills the others, and may then report any of them. So every worker
has a guard: the process that the launcher knows, which does nothing but wait for the worker and
write down how it ended before the launcher can learn of it.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import time
from pathlib import Path

from tvm_distir.execution.runtime.engines.fork import die_with_parent, end_text
from tvm_distir.execution.runtime.engines.job_folder import (
    LOG,
    Job,
    end_file,
    process_file,
    result_file,
    write_value,
)
from tvm_distir.execution.runtime.engines.job_launch import died, last_words, read_failures
from tvm_distir.support import EngineError

_PROCESS = re.compile(r"@\d+,(\d+)\]")
_SIGNAL = re.compile(r"(?:exited on signal|\(signal|KILLED BY SIGNAL:)\s*(\d+)", re.IGNORECASE)
_EXIT = re.compile(r"EXIT CODE:\s*(\d+)", re.IGNORECASE)


def fork_worker(folder: Path) -> int | None:
    """Fork a worker, which the parent guards to its end.

    Returns
    -------
    code : int or None
        None in the child, which is the worker. In the parent the exit code of the worker; a
        signal that ended it ends the parent too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.fork()
    if worker == 0:
        die_with_parent()
        return None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if code:
        write_value(end_file(folder, worker), (time.time(), code))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def raise_failure(job: Job, folder: Path, code: int) -> None:
    """Raise the earliest failure that was written down, or why the job ended without a failure.

    Parameters
    ----------
    job : Job
    folder : Path
    code : int
        The launcher's exit code.

    Raises
    ------
    EngineError
        DIST0615 for a process that died, else what a rank raised.
    """
    causes = [*read_failures(job, folder), *_deaths(job, folder)]
    if causes:
        raise min(causes, key=lambda item: item[0])[1]
    if code == 0 and all(result_file(folder, r).exists() for r in job.ranks):
        return
    raise _died(job, _launcher_tells(job, folder, code))


def _deaths(job: Job, folder: Path) -> list[tuple[float, BaseException]]:
    """Return the deaths of started workers, as their guards saw them."""
    deaths: list[tuple[float, BaseException]] = []
    for rank in job.ranks:
        begun = process_file(folder, rank)
        end = end_file(folder, int(begun.read_text())) if begun.exists() else None
        if end is not None and end.exists():
            time_s, code = pickle.loads(end.read_bytes())
            deaths.append((time_s, _died(job, f"worker {rank}: {end_text(code)}")))
    return deaths


def _died(job: Job, problem: str) -> EngineError:
    return died(problem, job.entries[0].function if len(job.entries) == 1 else "engine mpi")


def _launcher_tells(job: Job, folder: Path, code: int) -> str:
    """Return the process that died, and the cause, before its worker began or with its guard."""
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    log = " ".join(re.findall(r"[^\s/]+", text))
    dead = [job.ranks[int(n)] for n in _PROCESS.findall(log) if int(n) < len(job.ranks)]
    who = f"worker {dead[0]}" if dead else "a process"
    numbers = [int(n) for n in _SIGNAL.findall(log)]
    status = -numbers[0] if numbers else int((_EXIT.findall(log) or [code])[0])
    words = last_words(folder / LOG, 4) or "no output"
    return f"{who}: {end_text(status)}; the launcher: {words}"
