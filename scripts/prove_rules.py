#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prove the sharding rules by execution: every op, every case, every placement it offers.

Usage: scripts/prove_rules.py [NAME ...] [--lowered]
Runs each call of the case table (python/tests/rules) on blocks of its operands, along every
factor of its rule over 2 and 3 devices, and compares the joined results with the whole call; so
too every operand group the rule calls linear. With --lowered each sharded call is also lowered
and run on virtual devices (minutes). NAME: only cases whose name holds one of the words.
Prints "N ops, M cases, ..., W wrong"; exits 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "tests" / "rules"))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--lowered", action="store_true", help="also lower each sharded call")
    options = parser.parse_args()

    from rule_harness import Proof, run_cases
    from rule_lowered import NOT_LOWERED, prove_lowered
    from rule_table import TABLE, UNPROVED, chunks

    chosen = [c for c in TABLE if not options.names or any(n in c.name for n in options.names)]
    total = Proof({})
    for number, chunk in enumerate(chunks(chosen)):
        total.add(run_cases(chunk))
        if sys.stderr.isatty():
            print(f"{number * 60 + len(chunk)} of {len(chosen)}", end="\r", file=sys.stderr)
    inside = lowered = 0
    for case in chosen:
        ran, wrong = prove_lowered(case, only_inside=True)
        inside += ran
        if options.lowered and case.numpy is None and case.name not in NOT_LOWERED:
            more, found = prove_lowered(case)
            lowered, wrong = lowered + more, wrong + found
        total.failures[case.name] += wrong
    for name, found in total.wrong.items():
        print(name, *found, sep="\n  ")
    if not options.names:
        for op, why in UNPROVED.items():
            print(f"not proved: {op}: {why}")
        for name, why in NOT_LOWERED.items() if options.lowered else ():
            print(f"not lowered: {name}: {why}")
    total.placements += inside
    print(total.summary() + (f", {lowered} placements lowered" if options.lowered else ""))
    return 1 if total.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
