# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run numbered cases in worker processes, so that a crash or a hang costs only its case."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.models.node_cases import Outcome

FORK = multiprocessing.get_context("fork")
"""Workers inherit what this process has collected and imported."""

Check = Callable[[int], Iterable[Outcome]]
"""Gives the outcomes of a case, one per stage, in order."""


class _Worker:
    """A process that checks one case after the other."""

    def __init__(self, check: Check) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_work, args=(check, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.number = -1
        self.outcomes: list[Outcome] = []
        self.until_s = 0.0

    def start(self, number: int, limit_s: float) -> None:
        """Start a case."""
        self.number, self.until_s = number, time.monotonic() + limit_s
        self.outcomes = []
        self.pipe.send(number)

    def finished(self) -> bool:
        """Receive outcomes; return whether the case has ended, by itself or not."""
        try:
            while self.pipe.poll():
                fields = self.pipe.recv()
                if fields is None:
                    return True
                self.outcomes.append(Outcome(**fields))
        except (EOFError, ConnectionResetError):
            self.process.join()
            self._failed("CRASH", f"exit status {self.process.exitcode}")
            return True
        if time.monotonic() > self.until_s:
            self._failed("HANG", "no result in time")
            return True
        return False

    @property
    def usable(self) -> bool:
        """Whether the process can check another case."""
        return not self.outcomes or self.outcomes[-1].kind not in ("CRASH", "HANG")

    def _failed(self, kind: str, message: str) -> None:
        stage = f"after {self.outcomes[-1].stage}" if self.outcomes else "first stage"
        self.outcomes.append(Outcome(stage, kind, "", message))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(check: Check, pipe: Connection) -> None:
    while True:
        for outcome in check(pipe.recv()):
            pipe.send(outcome.as_dict())
        pipe.send(None)


def run_cases(
    check: Check, count: int, jobs: int, limit_s: float, reuse: bool = True
) -> Iterator[tuple[int, list[Outcome]]]:
    """Yield the numbers of cases and their outcomes, as they end.

    Parameters
    ----------
    check : callable
        Runs in a worker process.
    count : int
        Cases have the numbers from 0 to ``count - 1``.
    jobs : int
        Worker processes at a time.
    limit_s : float
        Per case; the first case of a process has twice as long.
    reuse : bool
        A process checks several cases; otherwise each case begins in the same state.
    """
    waiting = list(range(count))[::-1]
    busy: list[_Worker] = []
    while waiting or busy:
        while waiting and len(busy) < jobs:
            busy.append(_Worker(check))
            busy[-1].start(waiting.pop(), 2 * limit_s)
        wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in list(busy):
            if not worker.finished():
                continue
            yield worker.number, worker.outcomes
            if reuse and waiting and worker.usable:
                worker.start(waiting.pop(), limit_s)
            else:
                worker.close()
                busy.remove(worker)
