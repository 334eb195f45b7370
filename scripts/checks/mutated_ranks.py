# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Change each collective of right programs, and count the faults that ``td.check`` finds.

Each collective is removed, repeated, made to communicate along other axes, and scaled. A change
that changes no output is no fault. What rules alone say is counted too: no fault may be ``equal``.
Needs the extra torch.

    $ python scripts/checks/mutated_ranks.py [NAME...]
"""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from tests.execution.checking.programs import CASES, Case

import tvm_distir as td
from tvm_distir.core.ir.operators import call_axes
from tvm_distir.execution.checking.checking import drawn_inputs, verdict
from tvm_distir.execution.checking.comparison import Patch, RankComparison, RankFamily
from tvm_distir.execution.checking.proving import prove
from tvm_distir.execution.checking.repairs import DELETE, REDUCE, REGROUP, SCALE, ValueChange
from tvm_distir.execution.checking.traced_module import TracedModule
from tvm_distir.support import DistIRError


def compared(case: Case) -> RankComparison:
    """Return a right program beside its reference."""
    module = TracedModule(td.trace_ranks(case.of(), case.ranks, mesh=case.mesh))
    reference = TracedModule(td.trace_ranks(case.single, 1))
    inputs = drawn_inputs(reference, {}, 0)
    return RankComparison(module, reference, inputs, case.hints, case.micro_batches)


def mutants(right: RankComparison) -> Iterator[tuple[str, Patch]]:
    """Yield the changes of each collective, in words."""
    for family in right.families:
        for name in filter(family.is_collective, family.order):
            for text, change in _changes(right, family, name):
                yield f"{text} {name}", {(family.number, name): change}


def _changes(
    right: RankComparison, family: RankFamily, name: str
) -> Iterator[tuple[str, ValueChange]]:
    call, numbers = family.values[name], range(len(right.axes))
    if family.operation(name) == "dist.recv":
        yield from ((f"scale by {f:g}", ValueChange(SCALE, factor=f)) for f in (2.0, 0.5))
        return
    if call.args[0].ty.same_as(call.ty) or str(call.args[0].ty) == str(call.ty):
        yield "remove", ValueChange(DELETE)
    on_mesh = len(call.attrs["device_mesh"].shape) == len(right.axes)
    used = call_axes(call) if on_mesh else tuple(numbers)
    yield "repeat", ValueChange(REDUCE, used)
    for count in range(1, len(right.axes) + 1):
        for axes in itertools.combinations(numbers, count):
            sizes = [
                np.prod([list(right.axes.values())[a] for a in chosen]) for chosen in (axes, used)
            ]
            if axes != used and (
                family.operation(name) == "dist.all_reduce" or sizes[0] == sizes[1]
            ):
                yield f"regroup to {axes}", ValueChange(REGROUP, axes)
    yield from ((f"scale by {f:g}", ValueChange(SCALE, factor=f)) for f in (2.0, 0.5))


def changes_nothing(right: RankComparison, patch: Patch) -> bool:
    """Return whether all outputs of all ranks stay as they are."""
    try:
        results = right.module.run(right.feeds, right.patched(patch)).outputs
    except DistIRError:
        return False
    before = right.computed.outputs
    return all(
        np.allclose(value, before[rank][name], 1e-9, 1e-12)
        for rank, values in results.items()
        for name, value in values.items()
    )


def main() -> None:
    """Judge the mutants of all programs, or of those named."""
    total: Counter[str] = Counter()
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        begin, counts = time.process_time(), Counter[str]()
        right = compared(case)
        if not verdict(right, 0).equal:
            counts["false alarm"] += 1
        proved = prove(right.module, right.reference, case.hints, 0).verdict
        counts[f"right programs {proved} by rules"] += 1
        for text, patch in mutants(right):
            if changes_nothing(right, patch):
                counts["no fault"] += 1
                continue
            module = copy.copy(right.module)
            module.codes = right.patched(patch)
            other = RankComparison(
                module, right.reference, right.inputs, case.hints, case.micro_batches
            )
            report = verdict(other, 0)
            by_rules = prove(module, right.reference, case.hints, 0).verdict
            counts[f"{by_rules} by rules"] += 1
            counts["missed" if report.equal else "found"] += 1
            counts["repaired"] += bool(report.repair)
            if report.equal or not report.repair:
                print(f"  {text}: {report.problem or 'EQUAL'}"[:300])
        print(name, dict(counts), f"{time.process_time() - begin:.1f} s of CPU", flush=True)
        total += counts
    print("all", dict(total))


if __name__ == "__main__":
    main()
