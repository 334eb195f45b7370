#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Print which ops have a sharding rule, or what the rules allow for the calls of a MODEL.

Usage: scripts/checks/rule_coverage.py [MODEL] [--why]
Without MODEL: every Relax op, where its rule comes from, in how many calls it is proved, what may
be cut of the call that offers most, and what may not and why not. With MODEL (a file or
zoo:NAME?...): every distinct call, what of it may be cut and, with --why, what may not and why not.
Exits 1 when a call of MODEL has no rule.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.core.ops.op_coverage import call_coverage, op_coverage, table
from tests.core.ops.rule_cases.all_cases import TABLE, UNPROVED

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.ops.match import describe_factor

#: Kinds of factors whose devices exchange data inside the op.
INSIDE = ("halo", "stat")


def _reasons(rules: list[Rule]) -> list[str]:
    """Why dims of some calls of an op are whole, each reason once."""
    whys = dict.fromkeys(why for r in rules for why in r.why_replicated.values())
    return [why for why in whys if why != "its extent is 1"]


def print_ops() -> int:
    """Print the table of all ops."""
    rules: dict[str, list[Rule]] = {}
    for case in TABLE:
        rules.setdefault(case.op, []).append(case.rule())
    lines: list[tuple[str, ...]] = []
    counts: Counter[str] = Counter()
    for row in op_coverage():
        counts[row.source] += 1
        if row.source in ("system", "none"):
            lines.append((row.op, row.source, "", f"no rule: {row.why}"))
            continue
        proved = rules.get(row.op, [])
        best = max(proved, key=lambda r: len(r.factors), default=None)
        if best is None:
            lines.append((row.op, row.source, "0", f"not validated: {UNPROVED[row.op]}"))
            continue
        counts["cut" if best.factors else "whole"] += 1
        cut = [describe_factor(f) + f" ({f.kind})" * (f.kind in INSIDE) for f in best.factors]
        lines.append((row.op, row.source, str(len(proved)), "; ".join(cut) or "nothing"))
        lines += [("", "", "", f"  whole: {why}") for why in _reasons(proved)]
    print(table(("op", "rule", "cases", "may be cut"), lines))
    total = sum(counts[s] for s in ("hand", "derived", "system", "none"))
    ruled = counts["hand"] + counts["derived"]
    print(
        f"{total} ops: {ruled} with a rule ({counts['hand']} hand, {counts['derived']} derived; "
        f"{counts['cut']} may be cut, {counts['whole']} never, {len(UNPROVED)} not validated), "
        f"{counts['system']} system, {counts['none']} without"
    )
    return 0


def print_calls(model: str, why: bool) -> int:
    """Print the table of a model's calls."""
    from tvm_distir.models.model import load_model

    lines: list[tuple[str, ...]] = []
    rows = call_coverage(load_model(model).mod)
    for r in rows:
        allowed = "; ".join(r.factors) or "nothing"
        lines.append((str(r.count), r.op, r.source, r.signature, allowed))
        if why or r.source == "none":
            lines += [("", "", "", "", f"  {reason}") for reason in r.why_replicated]
    print(table(("calls", "op", "rule", "shapes", "may be cut"), lines))
    missing = sum(r.count for r in rows if r.source == "none")
    print(f"{sum(r.count for r in rows)} calls, {len(rows)} distinct, {missing} without a rule")
    return 1 if missing else 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--why", action="store_true", help="say what may not be cut and why not")
    options = parser.parse_args()
    return print_ops() if options.model is None else print_calls(options.model, options.why)


if __name__ == "__main__":
    raise SystemExit(main())
