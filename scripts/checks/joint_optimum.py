#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare propagation with an integer program over all mesh axes jointly.

Usage: scripts/checks/joint_optimum.py [--count N] [--first SEED] [--limit-s S] [--orders]
On N small random modules (private calls, fan-out, meshes of two and three axes): how many cost
exactly the joint optimum, and how far the others are from it. With --orders the states are
placements together with the orders of the axes that shard a dim, and ours are placements first,
orders second.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "python"
BOUNDS = (1e-6, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5, 1.0)


def compare_orders(options: argparse.Namespace) -> int:
    """Compare placements first and orders second with the best of both."""
    from tests.core.propagation.joint_solver import gaps
    from tests.core.propagation.ordered_joint import ordered_gap_of

    from tvm_distir.core.propagation.solve.cost import Costs

    result, byte = [], Costs().wire
    for gap in gaps(ordered_gap_of, options.first, options.count, options.limit_s):
        result.append(gap)
        if gap.decided != gap.best or not gap.proven:
            print(
                f"seed {gap.seed}: {gap.decided / byte:,.2f} instead of {gap.best / byte:,.2f} "
                f"bytes, {'' if gap.proven else 'not '}proven, {gap.tried} placements tried",
                flush=True,
            )
    equal = sum(gap.decided == gap.best and gap.proven for gap in result)
    worst = max((gap.decided - gap.best) / byte for gap in result)
    print(f"{len(result)} modules: {equal} equal to the proven joint optimum of both")
    print(f"  {sum(gap.choices > 0 for gap in result):5d} have dims with an order")
    print(f"  {sum(gap.mesh > 0 for gap in result):5d} would send more in the mesh's order")
    print(f"  {sum(gap.added > 0 for gap in result):5d} send more than their placements promise")
    print(f"  {sum(not gap.proven for gap in result):5d} not proven; worst gap {worst:.1f} bytes")
    return 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=20.0, help="per integer program")
    parser.add_argument("--orders", action="store_true", help="with the orders of axes")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    if options.orders:
        return compare_orders(options)
    from tests.core.propagation.joint_solver import gap_of, gaps

    start, result = time.monotonic(), []
    for gap in gaps(gap_of, options.first, options.count, options.limit_s):
        result.append(gap)
        if gap.decided != gap.best:
            print(
                f"seed {gap.seed}: {gap.decided} instead of {gap.best} (+{gap.relative:.3%}), "
                f"{gap.axes} axes, {gap.nodes} nodes, {gap.calls} calls",
                flush=True,
            )
    equal = sum(gap.decided == gap.best and gap.proven for gap in result)
    apart = sorted(gap.relative for gap in result if gap.decided != gap.best)
    print(f"{len(result)} modules: {equal} equal to the proven joint optimum")
    low = 0.0
    for high in BOUNDS:
        number = sum(low < x <= high for x in apart)
        print(f"  {number:5d} up to {high:.4%} above")
        low = high
    print(f"  {sum(x > low for x in apart):5d} more")
    unproven = sum(gap.decided == gap.best and not gap.proven for gap in result)
    print(f"  {unproven:5d} not beaten, not proven in {options.limit_s:g} s")
    print(f"with calls {sum(g.calls > 0 for g in result)}, in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
