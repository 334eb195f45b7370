#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run ONNX's backend cases (a node each) through the import, on one device and cut over two.

Usage: scripts/checks/onnx_node_cases.py [--match TEXT] [--every K] [--alone] [--jobs N]
[--limit-s S] [--out FILE.jsonl]
Prints what is wrong, then a table: per stage, how many cases came out equal (with anything cut, or
all whole), were refused by each code, or failed. Exits 1 when a case gave other numbers than ONNX
says, or anything but a DistIRError.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from pathlib import Path
from typing import Any

from case_workers import run_cases
from tests.models.node_cases import BAD, check, collected


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
    # TVM is imported in the workers: collecting the cases takes half a minute, once.
    for number, outcomes in run_cases(
        lambda number: check(cases[number], not options.alone),
        len(cases),
        options.jobs,
        options.limit_s,
    ):
        case = cases[number]
        for outcome in outcomes:
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
        for (kind, code), n in sorted(counted.items(), key=lambda item: (item[0], item[1])):
            print(f"{n:8d}  {kind} {code}")
    print(f"{len(cases)} cases in {time.monotonic() - start:.0f} s, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
