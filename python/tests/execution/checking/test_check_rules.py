# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules prove stored programs for all inputs, and what they say of layouts is what NumPy does."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir

import tvm_distir as td
from tvm_distir.execution.checking.alignment import SHARDED, Layout
from tvm_distir.execution.checking.checking import drawn_inputs
from tvm_distir.execution.checking.comparison import RankComparison
from tvm_distir.execution.checking.layout_rules import local_shape, reshaped
from tvm_distir.execution.checking.proving import prove
from tvm_distir.execution.checking.repairs import DELETE, REGROUP, SCALE, ValueChange
from tvm_distir.execution.checking.traced_module import TracedModule

pytestmark = pytest.mark.quick
TRACES = Path(__file__).parent / "traces"
NAME = "tensor_and_data_parallel"
HINTS = {"x": {"dp": 0}, "y": {"dp": 0}, "a": {"tp": 1}, "b": {"tp": 0}}


def stored(kind: str) -> ir.IRModule:
    if tvm.__version__.startswith("0.26."):
        pytest.skip("the stored traces are JSON of TVM 0.27")
    return tvm.ir.load_json((TRACES / f"{NAME}_{kind}.json").read_text(encoding="utf-8"))


def test_a_right_program_is_proved() -> None:
    report = td.check(stored("right"), stored("reference"), hints=HINTS, by="rules")
    assert report.equal and report.method == "rules"
    assert str(report).startswith("EQUAL by rules on dp=2, tp=2: 5 outputs for all inputs")


def test_a_known_wrong_output_is_an_alarm() -> None:
    report = td.check(stored("dp_over_tp"), stored("reference"), hints=HINTS, by="rules")
    assert report.verdict == "wrong" and report.method == "rules"
    assert "grad:ln is view1 (partial over dp, times 2), not view1 (replicated)" in report.problem
    assert report.problem.endswith("a reduction over dp is missing")


def test_what_rules_do_not_know_runs_where_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = stored("no_g"), stored("reference")
    assert td.check(*programs, hints=HINTS, by="rules").repair == "sum mm1 over tp"
    monkeypatch.setattr("tvm_distir.execution.checking.checking.MOST_BYTES", 0)
    report = td.check(*programs, hints=HINTS, by="rules")
    assert report.verdict == "unproved"
    assert "not proved at full size: add1 (add) [x = x (sharded" in report.problem
    assert "mm1 = mm1 (sharded along dim 0 over dp, partial over tp)" in report.problem
    with pytest.raises(td.support.errors.WrongProgramError, match=r"DIST0693 programs\.py"):
        report.check()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"by": "proof"}, "DIST0152 by"),
        ({"micro_batches": (2, 0)}, "DIST0152 micro_batches: a batch is not 0 micro-batches"),
    ],
)
def test_options_of_no_meaning_are_refused(options: Any, match: str) -> None:
    with pytest.raises(td.support.errors.UsageError, match=match):
        td.check(stored("right"), stored("reference"), **options)


def test_no_fault_is_proved() -> None:
    module, reference = TracedModule(stored("right")), TracedModule(stored("reference"))
    right = RankComparison(module, reference, drawn_inputs(reference, {}, 0), HINTS)
    family, verdicts = right.families[0], set()
    for name in filter(family.is_collective, family.order):
        for change in (
            ValueChange(DELETE),
            ValueChange(SCALE, factor=2.0),
            ValueChange(REGROUP, (0, 1)),
        ):
            changed = copy.copy(module)
            changed.codes = right.patched({(0, name): change})
            verdicts.add(prove(changed, reference, HINTS, 0).verdict)
    assert verdicts == {"wrong", "unproved"}


def _parts(value: np.ndarray, dim: int, blocks: int, count: int) -> list[np.ndarray]:
    shape = value.shape
    split = value.reshape([*shape[:dim], blocks, count, -1, *shape[dim + 1 :]])
    local = [*shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
    return [split.take(rank, dim + 1).reshape(local) for rank in range(count)]


SHAPES = [(24,), (4, 6), (2, 12), (2, 3, 4), (4, 1, 6), (1, 4, 3, 2), (12, 2)]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SHAPES, SHAPES)))
def test_a_reshape_of_shards_is_the_shard_of_the_reshape(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    value = np.arange(24)
    for dim, blocks, count in itertools.product(range(len(before)), (1, 2, 3), (2, 3)):
        if before[dim] % (blocks * count):
            continue
        layouts = reshaped((Layout(SHARDED, dim, blocks),), before, after, (count,))
        parts = _parts(value.reshape(before), dim, blocks, count)
        outer = math.prod(before[:dim]) * blocks
        fits = [d for d, n in enumerate(after) if math.prod(after[: d + 1]) % (outer * count) == 0]
        if layouts is None:
            assert not any(outer % math.prod(after[:d]) == 0 for d in fits)
            continue
        shape = local_shape(after, layouts, (count,))
        want = _parts(value.reshape(after), layouts[0].dim, layouts[0].blocks, count)
        for part, other in zip(parts, want):
            assert np.array_equal(part.reshape(shape), other)
