#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Validate the sharding rules of this checkout by execution: every op, every case, every placement.

Usage: scripts/checks/check_rules.py [WORD ...] [--op NAME] [--missing] [--lowered]
Rules of installed packages are included, as by ``python -m tvm_distir.execution.rule_validation``.
The sources are those beside this script whatever else is installed. With --lowered each sharded
call is also lowered by the passes and run on virtual devices (minutes); with --missing placements
that would be correct, but that no factor has, are named. Prints "N ops, M cases, ..., W wrong";
exits 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]


def lowered(words: list[str], ops: list[str]) -> int:
    """Lower and run each sharded call; return the exit code.

    Parameters
    ----------
    words : list of str
        Parts of the names of cases; all cases if empty.
    ops : list of str
        Ops of the cases; all ops if empty.
    """
    from tests.core.ops.rule_cases.all_cases import TABLE
    from tests.core.ops.rule_lowered import NOT_LOWERED, check_lowered

    ran = differ = 0
    for case in TABLE:
        if (words and not any(w in case.name for w in words)) or (ops and case.op not in ops):
            continue
        if case.numpy is not None or case.name in NOT_LOWERED:
            print(f"not lowered: {case.name}: {NOT_LOWERED.get(case.name, 'TVM has no kernel')}")
            continue
        count, wrong = check_lowered(case)
        ran, differ = ran + count, differ + len(wrong)
        if wrong:
            print(case.name, *wrong, sep="\n  ")
    print(f"{ran} placements lowered, {differ} wrong")
    return int(differ > 0 or ran == 0)


def name_missing(words: list[str], ops: list[str]) -> None:
    """Print the placements of some cases, all by default, that rules leave out."""
    from missing_placements import missing
    from tests.core.ops.rule_cases.all_cases import TABLE

    everything = not words and not ops
    for factor in missing(
        [c for c in TABLE if everything or c.op in ops or any(w in c.name for w in words)]
    ):
        print(f"missing: {factor}")


def main() -> int:
    """Run the command."""
    import tvm_distir

    result = Path(tvm_distir.__file__).resolve().parent
    if result != ROOT / "tvm_distir":
        print(f"check_rules: {result} was imported, not {ROOT / 'tvm_distir'}", file=sys.stderr)
        return 2
    from tests.core.ops.rule_cases.all_cases import TABLE, UNPROVED

    from tvm_distir.execution.rule_validation.__main__ import main as validate

    more = {"--lowered", "--missing"} & {*sys.argv[1:]}
    arguments = [a for a in sys.argv[1:] if a not in more]
    code = validate(arguments, TABLE, UNPROVED)
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--op", action="append", default=[])
    selection, _ = parser.parse_known_args(arguments)
    if "--missing" in more:
        name_missing(selection.words, selection.op)
    if "--lowered" in more:
        code |= lowered(selection.words, selection.op)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
