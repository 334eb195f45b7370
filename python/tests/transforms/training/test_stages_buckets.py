# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Buckets of a pipeline stage are of one phase, and run as often as their members did."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import pytest
from tvm import ir

import tvm_distir as td
from tests.transforms.training.pipeline_models import schedule_of
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.plan.schedules.notes import Pipeline
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.optimize import bucket
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions
from tvm_distir.transforms.stage_body import StageBody

SIZES = {"size": "tiny", "hidden": 8, "heads": 2, "vocab": 16, "seq": 4, "positions": 4}


@functools.cache
def _local(kind: str, strategy: str) -> tuple[ir.IRModule, Any, ir.IRModule]:
    """A step in two stages, its plan, and the step as devices run it, without buckets."""
    mod = td.zoo.gpt(**SIZES, layers=2, batch=4)
    step = td.train_step(mod, optimizer="sgd", schedule=schedule_of(kind, 2, 2))
    plan = make_plan(step, f"pipeline:micro_batches=2+{strategy}", {"pp": 2, "tp": 2})
    return step, plan, td.distribute(step, plan)


def _elements(mod: ir.IRModule) -> Counter[Any]:
    """Elements of the results of the collectives of each stage, by phase and kind."""
    pipeline, elements = Pipeline.of(mod), Counter[Any]()
    for note in pipeline.stages:
        for when, bindings in StageBody(mod, note, pipeline.varying).bindings.items():
            for binding in bindings:
                kind = dist_op_name(binding.value)
                if kind in ("all_reduce", "all_gather"):
                    size = math.prod(int(n) for n in binding.var.ty.shape)
                    elements[note.function, when, kind] += size
    return elements


@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize("strategy", ["megatron", "megatron:sequence=1"])
def test_a_phase_keeps_its_collectives(kind: str, strategy: str) -> None:
    """The gradient that a stage sends is of another phase than those summed after it."""
    _, _, local = _local(kind, strategy)
    merged = BucketGathers()(BucketReductions()(local))
    assert _elements(merged) == _elements(local)


def test_a_step_with_buckets_runs_and_sends_what_is_predicted() -> None:
    """Equal to one device; as many bytes as without buckets, executed and predicted."""
    step, plan, local = _local("1f1b", "megatron")
    merged = BucketReductions()(local)
    ran, predicted = [], []
    for mod in (local, merged):
        report = td.verify(step, plan, dist=mod)
        report.check()  # the collectives that ran are those of the exported program, too
        ran.append(_sums(report.collectives))
        predicted.append(_sums(td.simulate(td.export(mod), "dgx-a100").collectives))
    assert ran[0] == ran[1] and predicted[0] == predicted[1] == ran[0]


def test_phases_are_assigned_once_per_kind_of_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, the last, and all stages in between, however many these are."""
    assigned: list[str] = []

    def counted(mod: ir.IRModule, note: Any, *arguments: Any, **options: Any) -> StageBody:
        assigned.append(note.function)
        return StageBody(mod, note, *arguments, **options)

    monkeypatch.setattr(bucket, "StageBody", counted)
    mod = td.zoo.gpt(**SIZES, layers=5, batch=4)
    step = td.train_step(mod, optimizer="sgd", schedule=schedule_of("1f1b", 5, 2))
    plan = make_plan(step, "pipeline:micro_batches=2+megatron", {"pp": 5, "tp": 2})
    local = td.distribute(step, plan)
    BucketReductions()(local)
    assert len(assigned) == len(set(assigned)) == 3


def _sums(collectives: Any) -> int:
    return sum(c.bytes_per_device for c in collectives if c.kind == "all_reduce")
