#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the planner of redistributions by execution: every pair of placements, on every device.

Usage: scripts/checks/check_redistribution.py [--every N] [--whole N] [--pairs N]
All pairs of placements, shards, replicas and partial sums (also max, min, prod) to shards and
replicas, of tensors of 1 to 3 dims on meshes of 2 to 8 devices, of even and uneven sizes, with
device ids in order and permuted, in eight types: planned, run by the engines' own definition of
the collectives on NumPy shards with junk in their padding, and every device's shard compared bit
for bit. The same between placements that say which axis of a dim is major, on views of a mesh,
where one view states both. Then transfers between meshes that are disjoint, overlap, are part of
one another, or are the same devices in another shape and order: all pairs of placements on all
pairs of meshes, each element that a device lacks received once. --every runs one case of N.
--whole sends N modules of redistributions, --pairs modules of transfers between N pairs of meshes,
through the passes, the lowering, TVM's compiler and the engines virtual and threads (default 12
and 24).
Prints "N cases ... W wrong"; exits 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "python"


def check_plans(every: int) -> tuple[int, list[str]]:
    """Run the plans of all cases; returns their number and what is wrong."""
    from tests.core.passes import redistribute_harness as harness

    from tvm_distir.core.redistribution.planner import Planner

    planner, wrong, count = Planner(), [], 0
    by_mesh: collections.Counter[tuple[int, ...]] = collections.Counter()
    for number, case in enumerate(harness.all_cases()):
        if number % every:
            continue
        plan = planner.plan(*harness.request(case))
        fault = harness.difference(case, plan.steps)
        wrong += [fault] if fault else []
        count += 1
        by_mesh[case.mesh] += 1
    for mesh, cases in sorted(by_mesh.items(), key=lambda item: (len(item[0]), item[0])):
        print(f"  mesh {mesh}: {cases} cases")
    return count, wrong


VIEWS = (((2, 2), (8, 12)), ((2, 3), (7, 5)), ((2, 2, 2), (8, 24)), ((2, 2, 2), (7, 5)),
         ((2, 3, 2), (11,)))  # fmt: skip
"""Meshes and shapes of the redistributions between views."""


def check_views(every: int) -> tuple[int, list[str]]:
    """Run the plans between all ordered placements of some meshes; as :func:`check_plans`."""
    from tests.core.passes import redistribute_harness as harness

    from tvm_distir.core.redistribution.planner import Planner

    planner, wrong, count = Planner(), [], 0
    for mesh, shape in VIEWS:
        for request in list(harness.view_requests(shape, mesh))[::every]:
            fault = harness.view_difference(request, planner.plan_views(request).steps)
            wrong += [fault] if fault else []
            count += 1
    return count, wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--whole", type=int, default=12, metavar="N")
    parser.add_argument("--pairs", type=int, default=24, metavar="N")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from tests.core.passes import redistribute_whole
    from tests.transforms import transfer_cases

    start = time.perf_counter()
    count, wrong = check_plans(options.every)
    seconds = time.perf_counter() - start
    print(f"{count} cases planned and run on NumPy shards, {len(wrong)} wrong ({seconds:.0f} s)")
    viewed, on_views = check_views(options.every)
    print(f"{viewed} cases between views of a mesh, {len(on_views)} wrong")
    moved, bad = transfer_cases.prove(options.every)
    print(f"{moved} transfers between meshes, {len(bad)} wrong")
    pairs, ran, failed = redistribute_whole.check_transfers(options.pairs)
    print(
        f"{ran} transfers between {pairs} pairs of meshes through passes, compiler and engines, "
        f"{len(failed)} wrong"
    )
    modules, cases, worse = redistribute_whole.prove(options.whole)
    print(
        f"{cases} cases in {modules} modules through passes, compiler and engines, "
        f"{len(worse)} wrong"
    )
    faults = [*wrong, *on_views, *bad, *failed, *worse]
    for text in faults[:50]:
        print(f"wrong: {text}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
