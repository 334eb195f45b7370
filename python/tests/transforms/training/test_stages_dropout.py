# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Dropouts of steps in stages: every micro-batch has masks of its own, the same on any devices."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.nightly import nightly_but
from tests.transforms.training.pipeline_models import assert_close, schedule_of, tower
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.plan.schedules.notes import Pipeline, first_stream
from tvm_distir.core.plan.schedules.orders import ORDERS
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.training.autodiff.rules.primfuncs import unmarked
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule, SerializePipeline
from tvm_distir.transforms.training.step.dropouts import with_streams

BATCH, LAYERS, MICROS = 8, 8, 4
OPTIONS: dict[str, Any] = {"loss": "mse", "optimizer": "adam", "clip": 0.1}


def _staged(kind: str, stages: int, micros: int = MICROS, **more: Any) -> ir.IRModule:
    model = tower(LAYERS, BATCH // micros, rate=0.25)
    schedule = schedule_of(kind, stages, micros)
    return td.train_step(model, schedule=schedule, **{**OPTIONS, **more})


@functools.cache
def _once() -> tuple[list[str], list[Any], list[Any]]:
    """Names and values of the inputs of a step at once, and its results."""
    step = td.train_step(tower(LAYERS, BATCH, rate=0.25), **OPTIONS)
    values = draw_inputs(step, seed=0)
    return param_names(step["main"]), values, Reference(step).run(values)


@functools.cache
def _in_turn() -> list[Any]:
    """Results of the micro-batches one after the other, on one device."""
    return Reference(SerializePipeline()(_staged("1f1b", 2))).run(_once()[1])


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_one_micro_batch_is_the_step_at_once(stages: int) -> None:
    names, values, expected = _once()
    turn = SerializePipeline()(_staged("1f1b", stages, 1))
    assert param_names(turn["main"]) == names
    assert_close(Reference(turn).run(values), expected)


def test_masks_do_not_depend_on_the_stages() -> None:
    for stages in (1, 3, 4):
        assert_close(
            Reference(SerializePipeline()(_staged("1f1b", stages))).run(_once()[1]), _in_turn()
        )


def test_every_micro_batch_draws_masks_of_its_own() -> None:
    """The loss is the mean of those of the model, told the streams of each micro-batch."""
    names, values, _ = _once()
    inputs = dict(zip(names, values, strict=True))
    mod = with_streams(tower(LAYERS, BATCH // MICROS, rate=0.25), as_input=True)
    functions = mod.functions.items()
    plain = {g: unmarked(f) if isinstance(f, relax.Function) else f for g, f in functions}
    forward, losses = Reference(ir.IRModule(plain)), []
    weights = [inputs[name] for name in param_names(mod["main"])[1:-1]]
    for micro in range(MICROS):
        stream = np.array(first_stream("stream:0", micro), "int64")
        (result,) = forward.run([inputs["x"][micro::MICROS], *weights, stream])
        losses.append(np.mean((result - inputs["targets"][micro::MICROS]) ** 2))
    assert_close(_in_turn()[:1], [np.mean(losses)])
    same = forward.run([inputs["x"][::MICROS], *weights, np.array(1 << 32, "int64")])[0]
    assert not np.array_equal(same, forward.run([inputs["x"][::MICROS], *weights, np.int64(0)])[0])


def test_the_state_counts_steps_once() -> None:
    names, values, _ = _once()
    pipeline = Pipeline.of(_staged("1f1b", 4))
    assert pipeline is not None
    at = pipeline.outputs.index("dropout")
    assert _in_turn()[at] == values[names.index("dropout")] + 1


def test_stages_alike_share_a_function() -> None:
    pipeline = Pipeline.of(_staged("1f1b", 4))
    assert pipeline is not None
    assert [s.function for s in pipeline.stages] == ["stage0", "stage1", "stage1", "stage3"]
    streams = [w for s in pipeline.stages for w in s.params if w.startswith("stream:")]
    assert streams == ["stream:0", "stream:3", "stream:5", "stream:7"]


OTHERS = ("data_parallel", "zero:stage=3", "tensor_parallel")


@pytest.mark.parametrize(
    ("others", "kind"),
    nightly_but(itertools.product(OTHERS, ORDERS), {0, 2, 6, 8, 14}),
)
def test_every_schedule_draws_the_masks_of_one_device(kind: str, others: str) -> None:
    step = _staged(kind, 2)
    words = f"pipeline:schedule={kind},micro_batches={MICROS}"
    words += ",chunks=2" if kind == "interleaved" else ""
    mesh = {"pp": 2, "tp" if others == "tensor_parallel" else "dp": 2}
    plan = make_plan(step, f"{words}+{others}", mesh)
    programs = ExpandSchedule()(td.distribute(step, plan))
    check_level(programs, 5)
    assert_close(td.run(programs, _once()[1], engine="virtual"), _in_turn())


@pytest.mark.parametrize("recompute", ["megatron", "selective", "full", "checkpoint"])
def test_what_is_made_again_has_the_masks_it_had(recompute: str) -> None:
    step = _staged("zero_bubble", 2, recompute=recompute)
    assert_close(Reference(SerializePipeline()(step)).run(_once()[1]), _in_turn())
    plan = make_plan(step, f"pipeline:schedule=zero_bubble,micro_batches={MICROS}", {"pp": 2})
    assert_close(td.run(td.distribute(step, plan), _once()[1], engine="virtual"), _in_turn())


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_a_step_with_dropouts_is_verified(engine: str) -> None:
    step = _staged("1f1b", 2)
    plan = make_plan(step, f"pipeline:micro_batches={MICROS}+data_parallel", {"pp": 2, "dp": 2})
    assert td.verify(step, plan, engine=engine).equal


def test_masks_where_every_micro_batch_has_an_update() -> None:
    """The state counts updates, as the step of the optimizer does; both phases draw alike."""
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": MICROS, "stash": True}
    model = tower(LAYERS, BATCH // MICROS, tied=False, rate=0.25)
    step = td.train_step(model, loss="mse", schedule=schedule)
    turn = SerializePipeline()(step)
    values = draw_inputs(turn, seed=0)
    expected = Reference(turn).run(values)
    plan = make_plan(step, "data_parallel", {"dp": 2})
    assert_close(td.run(td.distribute(step, plan), values, engine="virtual"), expected)
    pipeline = Pipeline.of(step)
    assert pipeline is not None
    state = values[param_names(turn["main"]).index("dropout")]
    assert expected[pipeline.outputs.index("dropout")] == state + MICROS
