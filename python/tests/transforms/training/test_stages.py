# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages and micro-batches against steps at once, by execution."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir

import tvm_distir as td
from tests.nightly import nightly_but
from tests.plain_systems import PLAIN_A100
from tests.transforms.training.pipeline_models import assert_close, schedule_of, tower
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schedules.notes import Pipeline
from tvm_distir.core.plan.schedules.orders import ORDERS
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.core.plan.schema import MeshSpec, PlanRule
from tvm_distir.execution.runtime import entries
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import compose, make_plan
from tvm_distir.support.errors.tree import DependencyError, DistIRError, ModelError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule, SerializePipeline

BATCH, LAYERS = 8, 8
MESH = {"pp": 3, "dp": 2}
OPTIONS: dict[str, Any] = {"loss": "mse", "optimizer": "adam", "clip": 0.1}


@functools.cache
def _at_once(tied: bool, skip: bool = False) -> tuple[list[str], list[Any], list[Any]]:
    """Names and values of the inputs of a step at once, and its results."""
    step = td.train_step(tower(LAYERS, BATCH, tied, skip), **OPTIONS)
    values = draw_inputs(step, seed=0)
    return param_names(step["main"]), values, Reference(step).run(values)


def _staged(
    kind: str, stages: int, micros: int, tied: bool = True, skip: bool = False, layers: int = LAYERS
) -> ir.IRModule:
    schedule = schedule_of(kind, stages, micros)
    return td.train_step(tower(layers, BATCH // micros, tied, skip), schedule=schedule, **OPTIONS)


SIZES = list(itertools.product([1, 2, 3, 4], [1, 2, 4, 8]))
"""Stages and micro-batches."""


@pytest.mark.parametrize(
    ("stages", "micros"),
    nightly_but(SIZES, {0, 2, 5, 11, 12}),
)
def test_stages_in_turn_are_the_step_at_once(stages: int, micros: int) -> None:
    names, values, expected = _at_once(tied=True)
    turn = SerializePipeline()(_staged("1f1b", stages, micros))
    assert param_names(turn["main"]) == names
    assert_close(Reference(turn).run(values), expected)


# One micro-batch; more than stages; fewer.
@pytest.mark.parametrize(
    ("stages", "micros"),
    nightly_but(SIZES[4:], {0, 6, 9}),
)
@pytest.mark.parametrize("kind", ORDERS)
def test_every_schedule_gives_the_weights_of_one_device(
    kind: str, stages: int, micros: int
) -> None:
    _, values, expected = _at_once(tied=True)
    step = _staged(kind, stages, micros)
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 1}))
    programs = ExpandSchedule()(local)
    check_level(programs, 5)
    assert_close(td.run(programs, values, engine="virtual"), expected)


@pytest.mark.parametrize("skip", [False, True])
def test_values_that_pass_stages_and_weights_of_one_stage(skip: bool) -> None:
    _, values, expected = _at_once(tied=False, skip=skip)
    step = _staged("1f1b", 4, 4, tied=False, skip=skip)
    pipeline = Pipeline.of(step)
    assert pipeline is not None
    passed = [sum(w.startswith("activation") for w in s.params) for s in pipeline.stages]
    assert passed == ([0, 1, 2, 2] if skip else [0, 1, 1, 1])
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 1}))
    assert_close(td.run(ExpandSchedule()(local), values, engine="virtual"), expected)


@pytest.mark.parametrize(
    ("kind", "most"),
    [("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8]), ("zero_bubble", [4, 3, 2, 1])],
)
def test_activations_in_flight_while_running(kind: str, most: list[int]) -> None:
    """What the forward functions gave and the backward ones have not taken, as programs run."""
    step = _staged(kind, 4, 8)
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 1}))
    program = td.export(ExpandSchedule()(local))
    matches = []
    for entry in program.entries:
        flying = high = 0
        for op in program.functions[entry.function].ops:
            name = op.callee or ""
            flying += name.startswith("part") and "_forward" in name
            flying -= name.startswith("part") and "_backward" in name and "_weights" not in name
            high = max(high, flying)
        assert flying == 0
        matches.append(high)
    assert matches == most


@pytest.mark.parametrize("engine", ["threads", "torch", "mpi"])
def test_engines_agree(engine: str) -> None:
    _, values, expected = _at_once(tied=True)
    chosen = td.execution.engine(engine)
    try:
        chosen.check_available()
    except DependencyError as missing:
        pytest.skip(str(missing))
    step = _staged("1f1b", 2, 4)
    plan = make_plan(step, "pipeline:micro_batches=4+zero:stage=1", {"pp": 2, "dp": 2})
    assert_close(td.run(td.distribute(step, plan), values, engine=chosen), expected)


def test_stashed_weights_of_one_stage_are_steps_one_after_the_other() -> None:
    """On one rank every micro-batch is a step of its own."""
    schedule = {"kind": "1f1b", "stages": 1, "micro_batches": 4, "stash": True}
    step = td.train_step(tower(2, 2), loss="mse", optimizer="adam", schedule=schedule)
    turn = SerializePipeline()(step)
    values = draw_inputs(turn, seed=1)
    got = Reference(turn).run(values)
    single = Reference(td.train_step(tower(2, 2), loss="mse", optimizer="adam"))
    remaining, losses = values[2:], []
    for micro in range(4):
        loss, *remaining = single.run([values[0][micro::4], values[1][micro::4], *remaining])
        losses.append(loss)
    assert_close(got, [np.mean(losses, dtype="float32"), *remaining])


@pytest.mark.parametrize("kind", ["1f1b", "gpipe", "zero_bubble", "interleaved"])
def test_backward_parts_read_the_weights_that_forward_parts_read(kind: str) -> None:
    """PipeDream's stashing: programs of ranks against the same units on one device."""
    schedule = schedule_of(kind, 2, 4, stash=True)
    options = {"loss": "mse", "optimizer": "adam", "rate": 0.1}
    step = td.train_step(tower(4, 2, tied=False), schedule=schedule, **options)
    turn = SerializePipeline()(step)
    values = draw_inputs(turn, seed=1)
    expected = Reference(turn).run(values)
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 2}))
    assert_close(td.run(ExpandSchedule()(local), values, engine="virtual"), expected)
    together = td.train_step(
        tower(4, 2, tied=False), schedule={**schedule, "stash": False}, **options
    )
    other = Reference(SerializePipeline()(together)).run(values)
    assert max(float(np.max(np.abs(a - b))) for a, b in zip(expected, other, strict=True)) > 0.01
    with pytest.raises(ModelError, match="several stages"):
        td.train_step(tower(4, 2), schedule=schedule, **options)


def test_stages_alike_share_a_function() -> None:
    step = _staged("1f1b", 4, 2)
    pipeline = Pipeline.of(step)
    assert pipeline is not None
    assert [s.function for s in pipeline.stages] == ["stage0", "stage1", "stage1", "stage3"]
    assert pipeline.stages[1].params[2:4] != pipeline.stages[2].params[2:4]
    assert [each.stages for each in pipeline.sums] == [(0, 3), (0, 1, 2, 3)]


def test_stages_on_meshes_of_their_own() -> None:
    """A stage on four devices of two axes, the next one on two of one axis, far away."""
    _, values, expected = _at_once(tied=True)
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2, "meshes": ["wide", "narrow"]}
    step = td.train_step(tower(LAYERS, BATCH // 2), schedule=schedule, **OPTIONS)
    wide = MeshSpec("wide", {"dp": 2, "tp": 2})
    narrow = MeshSpec("narrow", {"dp": 2}, start=10)
    rules = [
        rule
        for mesh, function, text in (
            (wide, "stage0", "data_parallel+tensor_parallel"),
            (narrow, "stage1", "zero:stage=1"),
        )
        for rule in compose(step, mesh, text).rules
        if rule.function == function
    ]
    plan = Plan((wide, narrow), tuple(rules), schedule=Schedule.resolve(schedule))
    programs = ExpandSchedule()(td.distribute(step, Plan.from_dict(plan.to_dict())))
    check_level(programs, 5)
    ranks = [entry.ranks for entry in entries(programs)]
    assert ranks == [(0, 1, 2, 3), (10, 11)]
    assert_close(td.run(programs, values, engine="virtual"), expected)


def test_halves_of_the_backward_part_share_the_products() -> None:
    """Of each layer's two products one is in either half: the weight's gradient comes later."""
    step = _staged("zero_bubble", 2, 2)
    products = {}
    for gv, fn in step.functions.items():
        bindings = [b for block in fn.body.blocks for b in block.bindings]
        products[str(gv.name_hint)] = sum("R.matmul" in str(b.value) for b in bindings)
    assert products["layer_backward_inputs"] == 1
    assert products["layer_backward_weights"] == 1


def test_cuts_by_name() -> None:
    model = tower(4, 2)
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2, "cuts": ["h0"]}
    step = td.train_step(model, loss="mse", schedule=schedule)
    pipeline = Pipeline.of(step)
    assert pipeline is not None
    assert "w0" in pipeline.stages[0].params
    assert "w1" in pipeline.stages[1].params
    with pytest.raises(ModelError, match=r"DIST0354.*h1") as refused:
        td.train_step(model, loss="mse", schedule={**schedule, "cuts": ["h_1"]})
    assert refused.value.location == "schedule/cuts"


def test_more_stages_than_values_are_refused() -> None:
    with pytest.raises(ModelError, match="DIST0354"):
        td.train_step(tower(2, 2), loss="mse", schedule="1f1b:stages=32,micro_batches=2")


def test_gradients_are_reduced_once_per_step() -> None:
    """Not once per micro-batch: the price of what is repeated counts as often."""
    step = _staged("1f1b", 2, 4)
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 2}))
    program = td.export(ExpandSchedule()(local))
    result = td.simulate(program, td.System.load(PLAIN_A100))
    reduced = [c for c in result.collectives if c.kind == "all_reduce" and c.bytes_per_device > 64]
    weights = 2 + LAYERS  # the tied weight on both of its stages
    assert sum(c.count for c in reduced) <= 2 * weights


def test_every_level_prints_and_parses_back() -> None:
    step = _staged("zero_bubble", 2, 2, layers=3)
    plan = make_plan(
        step, "pipeline:micro_batches=2,schedule=zero_bubble+zero:stage=1", {"pp": 2, "dp": 2}
    )
    mod, levels = step, {"global": step, "in turn": SerializePipeline()(step)}
    for make in (AnnotateSharding(plan), PropagateSharding(), LegalizeRedistribute()):
        levels[str(make.info.name)] = mod = make(mod)
    levels["local"] = mod = LowerDistIR()(mod)
    levels["programs"] = ExpandSchedule()(mod)
    for name, single in levels.items():
        again = tvm.script.from_source(single.script(show_meta=True))
        assert tvm_ffi.structural_equal(again, single), name


def test_collectives_split_for_overlap_stay_in_their_units() -> None:
    _, values, expected = _at_once(tied=True)
    step = _staged("1f1b", 2, 2)
    plan = make_plan(step, "pipeline:micro_batches=2+zero:stage=2", {"pp": 2, "dp": 2})
    local = td.distribute(step, plan, bucket_bytes=1 << 20, overlap=PLAIN_A100)
    assert "all_gather_start" in str(local) or "reduce_scatter_start" in str(local)
    check_level(ExpandSchedule()(local), 5)
    assert_close(td.run(local, values, engine="virtual"), expected)


def test_levels_are_told_apart() -> None:
    step = _staged("1f1b", 2, 2)
    with pytest.raises(DistIRError, match="DIST0512"):
        ExpandSchedule()(step)
    plan = make_plan(step, "data_parallel", {"dp": 1})
    placed = PropagateSharding()(AnnotateSharding(plan)(step))
    with pytest.raises(DistIRError, match="DIST0512"):
        SerializePipeline()(placed)


@pytest.mark.parametrize("read", [ExpandSchedule(), td.export])
def test_terms_of_a_sum_that_lie_otherwise_on_one_mesh_are_refused(read: Any) -> None:
    """One is cut along rows and one along columns, and nothing moves them."""
    step = _staged("zero_bubble_v", 2, 2)
    plan = make_plan(step, "data_parallel", {"dp": 2})
    others = [
        PlanRule(kind, name, (dim,), function=function)
        for function, dim in (("stage0", 0), ("stage3", 1))
        for kind, name in (("param", "first.total"), ("value", "first_part"))
    ]
    message = {(rule.kind, rule.name, rule.function) for rule in others}
    remaining = [
        rule for rule in plan.rules if (rule.kind, rule.name, rule.function) not in message
    ]
    local = td.distribute(step, Plan(plan.meshes, (*remaining, *others)))
    with pytest.raises(DistIRError, match=r"DIST0512.*Give both the same placement"):
        read(local)
