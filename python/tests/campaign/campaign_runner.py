# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cases by seed in a worker process, so that one that hangs or crashes costs only itself."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.campaign.campaign_check import CAREFUL_EVERY, THREADS_EVERY, Case, Outcome, check
from tests.child_processes import child_environment

CASE_LIMIT_S = 60.0
START_LIMIT_S = 120.0
MARK = "@outcome "


def work(first: int, last: int, threads_every: int, values: str = "") -> None:
    """The worker: one line per seed on standard output."""
    print(MARK + "ready", flush=True)
    for seed in range(first, last):
        threads = bool(threads_every) and seed % threads_every == 0
        outcome = check(
            Case.of_seed(seed, values), threads, careful=(seed + 5) % CAREFUL_EVERY == 0
        )
        print(MARK + json.dumps([seed, outcome.as_dict()]), flush=True)


def worker_code(first: int, last: int, threads_every: int, values: str = "") -> str:
    """The Python program of a worker."""
    return (
        "from tests.campaign import campaign_runner; "
        f"campaign_runner.work({first}, {last}, {threads_every}, {values!r})"
    )


class _Worker:
    """A process that runs seeds, and a thread that reads its lines."""

    def __init__(self, first: int, last: int, threads_every: int, values: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", worker_code(first, last, threads_every, values)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.tail: list[str] = []
        self.readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._drain, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith(MARK):
                self.lines.put(line.removeprefix(MARK))
        self.lines.put(None)

    def _drain(self) -> None:
        for line in self.process.stderr or ():
            self.tail = [*self.tail[-4:], line.strip()]

    def next_line(self, limit_s: float) -> str | None:
        """The next line; None when the process ended. Raises queue.Empty after ``limit_s``."""
        return self.lines.get(timeout=limit_s)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(timeout=5)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def outcomes(
    first: int,
    last: int,
    limit_s: float = CASE_LIMIT_S,
    threads_every: int = THREADS_EVERY,
    values: str = "",
) -> Iterator[tuple[int, Outcome]]:
    """Seeds ``first..last - 1`` and what became of them, in order.

    Seeds divisible by ``threads_every`` run on the engine of threads too; with 0 none does.
    ``values`` are those of :meth:`.Case.of_seed`.
    """
    seed = first
    while seed < last:
        worker = _Worker(seed, last, threads_every, values)
        try:
            if worker.next_line(START_LIMIT_S) is None:
                raise RuntimeError("the worker does not start: " + " | ".join(worker.tail))
            while seed < last:
                try:
                    line = worker.next_line(limit_s)
                except queue.Empty:
                    result = Outcome("HANG", "", "", f"no result after {limit_s:g} s")
                else:
                    result = _read_line(line, seed, worker)
                yield seed, result
                seed += 1
                if result.kind in ("HANG", "CRASH"):
                    break
        finally:
            worker.close()


def _read_line(line: str | None, seed: int, worker: _Worker) -> Outcome:
    if line is None:
        worker.process.wait()
        code = worker.process.returncode
        return Outcome("CRASH", "", str(code), f"exit status {code}: {' | '.join(worker.tail)}")
    number, fields = json.loads(line)
    if number != seed:
        raise RuntimeError(f"the worker answered seed {number} instead of {seed}")
    known: dict[str, Any] = fields
    return Outcome(**known)
