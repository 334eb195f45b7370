# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Batch norms of steps in stages: running statistics go from micro-batch to micro-batch."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from tvm import ir

import tvm_distir as td
from tests.nightly import nightly_but
from tests.transforms.training.pipeline_models import assert_close, normed_tower, schedule_of
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.plan.schedules.notes import Pipeline
from tvm_distir.core.plan.schedules.orders import ORDERS
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import ModelError, PlanError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule, SerializePipeline

BATCH, LAYERS, MICROS = 32, 8, 4
OPTIONS: dict[str, Any] = {"loss": "mse", "optimizer": "sgd"}
RESNET: dict[str, Any] = {"size": "tiny", "depth": 10, "width": 4, "batch": 8}


def _staged(kind: str, stages: int, micros: int = MICROS, **more: Any) -> ir.IRModule:
    model = normed_tower(LAYERS, BATCH // micros)
    schedule = schedule_of(kind, stages, micros)
    return td.train_step(model, schedule=schedule, **{**OPTIONS, **more})


@functools.cache
def _once() -> tuple[list[str], list[Any], list[Any]]:
    """Names and values of the inputs of a step at once, and its results."""
    step = td.train_step(normed_tower(LAYERS, BATCH), **OPTIONS)
    values = draw_inputs(step, seed=0)
    return param_names(step["main"]), values, Reference(step).run(values)


@functools.cache
def _in_turn() -> list[Any]:
    """Results of the micro-batches one after the other, on one device."""
    return Reference(SerializePipeline()(_staged("1f1b", 2))).run(_once()[1])


_near = functools.partial(assert_close, atol=5e-6)


def _pipeline(step: ir.IRModule) -> Pipeline:
    result = Pipeline.of(step)
    assert result is not None
    return result


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_one_micro_batch_is_the_step_at_once(stages: int) -> None:
    names, values, expected = _once()
    turn = SerializePipeline()(_staged("1f1b", stages, 1))
    assert param_names(turn["main"]) == names
    _near(Reference(turn).run(values), expected)


def test_statistics_go_on_and_gradients_are_summed() -> None:
    """By steps at once: each takes the statistics of the one before, all the same weights."""
    single = td.train_step(normed_tower(LAYERS, BATCH // MICROS), **OPTIONS)
    names, reference = param_names(single["main"]), Reference(single)
    pipeline = _pipeline(_staged("1f1b", 2))
    whole = dict(zip(names, _once()[1], strict=True))
    now, results = dict(whole), []
    for micro in range(MICROS):
        now.update({data: whole[data][micro::MICROS] for data in ("x", "targets")})
        result = reference.run([now[name] for name in names])
        results.append(dict(zip(pipeline.outputs, result, strict=True)))
        now.update({name: results[-1][name] for name in pipeline.carried})
    assert len(pipeline.carried) == 2 * LAYERS
    expected = [
        results[-1][name]
        if name in pipeline.carried
        else np.mean([result[name] for result in results], axis=0)
        for name in pipeline.outputs
    ]
    _near(_in_turn(), expected)


def test_stages_alike_share_a_function() -> None:
    pipeline = _pipeline(_staged("1f1b", 4))
    assert [s.function for s in pipeline.stages] == ["stage0", "stage1", "stage1", "stage3"]
    carried = [w for s in pipeline.stages for w in s.results if w in pipeline.carried]
    assert sorted(carried) == sorted(pipeline.carried)


OTHERS = ("data_parallel", "zero:stage=3", "tensor_parallel")


@pytest.mark.parametrize(
    ("others", "kind"),
    nightly_but(itertools.product(OTHERS, ORDERS), {0, 2, 6, 8, 14}),
)
def test_every_schedule_gives_the_statistics_of_one_device(kind: str, others: str) -> None:
    step = _staged(kind, 2)
    words = f"pipeline:schedule={kind},micro_batches={MICROS}"
    words += ",chunks=2" if kind == "interleaved" else ""
    mesh = {"pp": 2, "tp" if others == "tensor_parallel" else "dp": 2}
    programs = ExpandSchedule()(td.distribute(step, make_plan(step, f"{words}+{others}", mesh)))
    check_level(programs, 5)
    _near(td.run(programs, _once()[1], engine="virtual"), _in_turn())


def test_statistics_where_every_micro_batch_has_an_update() -> None:
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": MICROS, "stash": True}
    step = td.train_step(normed_tower(LAYERS, BATCH // MICROS), schedule=schedule, **OPTIONS)
    expected = Reference(SerializePipeline()(step)).run(_once()[1])
    plan = make_plan(step, "data_parallel", {"dp": 2})
    _near(td.run(td.distribute(step, plan), _once()[1], engine="virtual"), expected)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_made_again_reads_the_statistics_it_read(recompute: str) -> None:
    step = _staged("zero_bubble", 2, recompute=recompute)
    _near(Reference(SerializePipeline()(step)).run(_once()[1]), _in_turn())


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_a_step_with_batch_norms_is_verified(engine: str) -> None:
    step = _staged("1f1b", 2)
    plan = make_plan(step, f"pipeline:micro_batches={MICROS}+data_parallel", {"pp": 2, "dp": 2})
    assert td.verify(step, plan, engine=engine).equal


def test_resnet_in_stages() -> None:
    kind, stages = "zero_bubble", 3
    schedule = {"kind": kind, "stages": stages, "micro_batches": 2}
    step = td.train_step(td.zoo.resnet(**RESNET), schedule=schedule)
    turn = SerializePipeline()(step)
    values = draw_inputs(turn, seed=0)
    words = f"pipeline:schedule={kind},micro_batches=2+data_parallel"
    local = td.distribute(step, make_plan(step, words, {"pp": stages, "dp": 2}))
    _near(td.run(local, values, engine="virtual"), Reference(turn).run(values))


def test_resnet_of_one_micro_batch_is_the_step_at_once() -> None:
    step = td.train_step(td.zoo.resnet(**RESNET))
    values = draw_inputs(step, seed=0)
    staged = td.train_step(td.zoo.resnet(**RESNET), schedule="1f1b:stages=3,micro_batches=1")
    _near(Reference(SerializePipeline()(staged)).run(values), Reference(step).run(values))


def test_orders_that_do_not_carry_statistics_are_refused() -> None:
    units = [[["F", 1, 0], ["F", 0, 0], ["B", 1, 0], ["B", 0, 0]]]
    schedule = {"kind": "custom", "stages": 1, "micro_batches": 2, "units": units}
    with pytest.raises(PlanError, match=r"DIST0236.*is carried from micro-batch to micro-batch"):
        td.train_step(normed_tower(2, 4), schedule=schedule, **OPTIONS)


def test_a_statistic_of_two_stages_is_refused_by_name() -> None:
    schedule = "1f1b:stages=2,micro_batches=2"
    with pytest.raises(ModelError, match=r'DIST0354.*"mean0" is a running statistic of several'):
        td.train_step(normed_tower(4, 4, shared=True), schedule=schedule, **OPTIONS)
