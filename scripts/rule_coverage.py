#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Print which ops have a sharding rule, or what the rules allow for the calls of a MODEL.

Usage: scripts/rule_coverage.py [MODEL] [--why]
Without MODEL: every Relax op and where its rule comes from. With MODEL (a file or zoo:NAME?...):
every distinct call, what of it may be cut and, with --why, what may not and why not.
Exits 1 when a call of MODEL has no rule.
"""

from __future__ import annotations

import argparse
from collections import Counter

from tvm_distir.rules.cover import call_coverage, op_coverage, table


def print_ops() -> int:
    """Print the table of all ops."""
    rows = op_coverage()
    print(table(("op", "rule"), [(r.op, r.source) for r in rows]))
    counts = Counter(r.source for r in rows)
    print(", ".join(f"{counts[s]} {s}" for s in ("hand", "derived", "system", "none")))
    return 0


def print_calls(model: str, why: bool) -> int:
    """Print the table of a model's calls."""
    from tvm_distir.frontend import load_model

    lines: list[tuple[str, ...]] = []
    rows = call_coverage(load_model(model).mod)
    for r in rows:
        allowed = "; ".join(r.factors) or "nothing"
        lines.append((str(r.count), r.op, r.source, r.signature, allowed))
        if why or r.source == "none":
            lines += [("", "", "", "", f"  {reason}") for reason in r.whole]
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
