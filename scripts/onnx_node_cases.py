#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run ONNX's backend cases (a node each) through the import, on one device and cut over two.

Usage: scripts/onnx_node_cases.py [--match TEXT] [--every K] [--alone] [--jobs N] [--limit-s S]
       [--out FILE.jsonl]
Prints what is wrong, then a table: per stage, how many cases came out equal (with anything cut, or
all whole), were refused by each code, or failed. Exits 1 when a case gave other numbers than ONNX
says, or anything but a DistIRError.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "tests" / "frontend"))

from node_cases import BAD, NodeCase, Outcome, check, collected

FORK = multiprocessing.get_context("fork")
"""Workers inherit the cases, which take half a minute to collect; TVM is imported in them."""


class _Worker:
    """A process that checks one case after the other."""

    def __init__(self, cases: list[NodeCase], cuts: bool) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_work, args=(cases, cuts, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.at = -1
        self.until_s = 0.0

    def give(self, number: int, limit_s: float) -> None:
        """Start a case."""
        self.at, self.until_s = number, time.monotonic() + limit_s
        self.pipe.send(number)

    def answer(self) -> list[Outcome] | None:
        """What became of the case; None while it is under way."""
        try:
            if self.pipe.poll():
                return [Outcome(**fields) for fields in self.pipe.recv()]
        except EOFError:
            self.process.join()
            return [Outcome("single", "CRASH", "", f"exit status {self.process.exitcode}")]
        if time.monotonic() > self.until_s:
            return [Outcome("single", "HANG", "", "no result in time")]
        return None

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(cases: list[NodeCase], cuts: bool, pipe: Connection) -> None:
    while True:
        case = cases[pipe.recv()]
        pipe.send([outcome.as_dict() for outcome in check(case, cuts)])


def outcomes(
    cases: list[NodeCase], cuts: bool, jobs: int, limit_s: float
) -> Iterator[tuple[NodeCase, list[Outcome]]]:
    """Cases and what became of them, as they end."""
    waiting = list(range(len(cases)))[::-1]
    busy: list[_Worker] = []
    while waiting or busy:
        while waiting and len(busy) < jobs:
            busy.append(_Worker(cases, cuts))
            busy[-1].give(waiting.pop(), 2 * limit_s)
        wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in list(busy):
            found = worker.answer()
            if found is None:
                continue
            yield cases[worker.at], found
            if waiting and found[0].kind not in ("CRASH", "HANG"):
                worker.give(waiting.pop(), limit_s)
            else:
                worker.close()
                busy.remove(worker)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--match", default="", metavar="TEXT", help="cases whose name holds TEXT")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="each K-th case")
    parser.add_argument("--alone", action="store_true", help="on one device only")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--limit-s", type=float, default=60.0, help="per case")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all outcomes, a line each")
    options = parser.parse_args()
    cases = [case for case in collected() if options.match in case.name][:: options.every]
    counts: dict[str, collections.Counter[tuple[str, str]]] = collections.defaultdict(
        collections.Counter
    )
    lines: list[dict[str, Any]] = []
    start, bad = time.monotonic(), 0
    for case, found in outcomes(cases, not options.alone, options.jobs, options.limit_s):
        for outcome in found:
            stage = "a dim" if outcome.stage.startswith("S[") else outcome.stage
            counts[stage][outcome.kind, outcome.code] += 1
            lines.append({"case": case.name, **outcome.as_dict()})
            if outcome.kind in BAD:
                bad += 1
                print(case.name, *outcome.as_dict().values(), sep=" | ", flush=True)
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for stage, counted in counts.items():
        print(f"{stage}: {sum(counted.values())}")
        for (kind, code), number in sorted(counted.items(), key=lambda item: (item[0], item[1])):
            print(f"{number:8d}  {kind} {code}")
    print(f"{len(cases)} cases in {time.monotonic() - start:.0f} s, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
