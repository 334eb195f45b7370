# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A change of any collective of a right program is found and repaired.

``scripts/checks/mutated_ranks.py`` does this for all programs and kinds of changes.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tvm
from tvm import ir

from tvm_distir.execution.checking.checking import drawn_inputs, verdict
from tvm_distir.execution.checking.comparison import RankComparison
from tvm_distir.execution.checking.repairs import DELETE, REGROUP, SCALE, ValueChange
from tvm_distir.execution.checking.traced_module import TracedModule

TRACES = Path(__file__).parent / "traces"
HINTS = {"x": {"dp": 0}, "y": {"dp": 0}, "a": {"tp": 1}, "b": {"tp": 0}}
COLLECTIVES = ["all_reduce", *(f"all_reduce{i}" for i in range(1, 6))]


@pytest.fixture(scope="module")
def right() -> RankComparison:
    module, reference = (
        TracedModule(ir_of(f"tensor_and_data_parallel_{kind}")) for kind in ("right", "reference")
    )
    return RankComparison(module, reference, drawn_inputs(reference, {}, 0), HINTS)


def ir_of(name: str) -> ir.IRModule:
    return tvm.ir.load_json((TRACES / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(
    "change",
    [ValueChange(DELETE), ValueChange(SCALE, factor=2.0), ValueChange(REGROUP, (0, 1))],
    ids=lambda change: change.kind,
)
def test_a_changed_collective_is_found(
    right: RankComparison, name: str, change: ValueChange
) -> None:
    module = copy.copy(right.module)
    module.codes = right.patched({(0, name): change})
    report = verdict(RankComparison(module, right.reference, right.inputs, HINTS), 0)
    assert report.verdict == "wrong"
    assert report.repair, report.problem
