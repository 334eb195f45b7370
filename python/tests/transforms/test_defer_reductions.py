# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reductions of gradients that travel while the next layer of a backward pass computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.keys import IN_FLIGHT_ATTR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.deferral import DeferReductions
from tvm_distir.transforms.optimize.prefetch import PrefetchGathers
from tvm_distir.transforms.optimize.traffic import traffic
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

SYSTEM = td.System.load("dgx-a100")


def scheduled(step: ir.IRModule, plan: Plan, units: bool = True) -> ir.IRModule:
    """Distribute a step, and split its collectives within each function."""
    mod = td.distribute(step, plan)
    if units:
        mod = BucketGathers(units=True)(BucketReductions(units=True)(mod))
    return ScheduleCollectives(SYSTEM)(SplitCollectives()(mod))


def deferring(mod: ir.IRModule) -> list[str]:
    """Names of the functions that leave results in flight."""
    return sorted(
        str(gv.name_hint)
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function)
        and "results" in ((fn.attrs or {}).get(IN_FLIGHT_ATTR) or {})
    )


@pytest.fixture(scope="module")
def zero() -> tuple[ir.IRModule, Plan]:
    step = td.train_step(tower(3, 64, tied=False), loss="mse", optimizer="adam", reread=True)
    return step, make_plan(step, "fsdp", {"dp": 2})


@pytest.mark.parametrize("units", [False, True])
def test_results_are_the_same_bits(zero: Any, units: bool) -> None:
    """Values and bytes stay, before and after gathers are prefetched too."""
    step, plan = zero
    mod = scheduled(step, plan, units)
    new = DeferReductions()(mod)
    both = PrefetchGathers(SYSTEM, units=True)(new)
    assert deferring(mod) == [] and deferring(new) == ["layer_backward"]
    assert "layer_backward" in deferring(both)
    values = draw_inputs(step, seed=0)
    expected = td.run(td.distribute(step, plan), values, engine="virtual")
    for changed in (new, both):
        check_level(changed, 5)
        assert traffic(changed).total_sent_bytes == traffic(mod).total_sent_bytes
        for engine in ("virtual", "threads"):
            for a, b in zip(expected, td.run(changed, values, engine=engine), strict=True):
                np.testing.assert_array_equal(a, b)
    assert DeferReductions()(new).same_as(new)


def test_layers_that_are_recomputed_in_several_blocks() -> None:
    """What calls the backward pass of a layer, after its forward pass, hands reductions on."""
    model = td.zoo.gpt(size="tiny", layers=3, batch=4, dropout=0.1)
    step = td.train_step(model, optimizer="adam", recompute="checkpoint", reread=True)
    plan = make_plan(step, "fsdp", {"dp": 2})
    mod = scheduled(step, plan)
    new = DeferReductions()(mod)
    check_level(new, 5)
    callers = [name for name in deferring(new) if "checkpoint" in name]
    assert callers and all(len(new[name].body.blocks) > 1 for name in callers)
    values = draw_inputs(step, seed=0)
    results = [td.run(m, values, engine="virtual") for m in (mod, new)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_reductions_overlap_with_the_next_layer() -> None:
    """At most the last reduction is exposed, in a step whose layers take longer than theirs."""
    step = td.train_step(
        td.zoo.gpt(layers=6, hidden=2048, heads=16, batch=16, seq=1024, positions=1024)
    )
    plan = make_plan(step, "fsdp", {"dp": 8})
    mod = scheduled(step, plan)
    exposed = []
    for changed in (mod, DeferReductions()(mod)):
        result = td.simulate(td.export(PrefetchGathers(SYSTEM, units=True)(changed)), SYSTEM)
        exposed.append(max(device.exposed_comm_s for device in result.devices))
    reductions = [c for c in result.collectives if c.kind == "reduce_scatter"]
    layer_s = sum(c.time_s for c in reductions) / sum(c.count for c in reductions)
    assert exposed[0] - exposed[1] > 4 * layer_s


def test_an_operand_is_held_until_the_caller_has_waited(zero: Any) -> None:
    """The gradients of one more layer are live; no more than they take."""
    mod = scheduled(*zero)
    new = DeferReductions()(mod)
    peaks = [td.simulate(td.export(m), SYSTEM).peak_memory_bytes for m in (mod, new)]
    gathered = {str(gv.name_hint): fn for gv, fn in new.functions.items()}["layer_backward"]
    flying = [
        b.value.args[0].ty
        for block in gathered.body.blocks
        for b in block.bindings
        if isinstance(b.value, ir.Call) and str(b.value.op.name).endswith("reduce_scatter_start")
    ]
    bound = sum(int(np.prod([int(n) for n in ty.shape])) * 4 for ty in flying)
    assert bound > 0 and peaks[0] <= peaks[1] <= peaks[0] + 2 * bound


def test_functions_with_other_collectives_stay() -> None:
    """Those of tensor parallelism would queue behind the reductions."""
    step = td.train_step(td.zoo.gpt(size="tiny", layers=2, batch=8), optimizer="sgd")
    mod = scheduled(step, make_plan(step, "fsdp+megatron", {"dp": 2, "tp": 2}))
    assert DeferReductions()(mod).same_as(mod)


def test_phases_of_stages_wait_for_their_own() -> None:
    """What a phase gives to the next one is there; layers inside of a phase are deferred."""
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(tower(4, 64), loss="mse", optimizer="adam", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=2+zero", {"pp": 2, "dp": 2})
    mod = scheduled(step, plan)
    new = DeferReductions()(mod)
    check_level(new, 5)
    names = deferring(new)
    assert names and not any(name.startswith("part") for name in names)
    values = draw_inputs(step, seed=0)
    results = [td.run(ExpandSchedule()(m), values, engine="virtual") for m in (mod, new)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
