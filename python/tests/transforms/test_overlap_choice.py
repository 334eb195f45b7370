# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives that overlap by default, and those of activations, which block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.ir.async_ops import is_done, started_op
from tvm_distir.core.ir.ops import call_axes
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

SYSTEM = td.System.load("a100")


def overlapped(mod: ir.IRModule) -> dict[str, int]:
    """Count the starts that work stands behind rather than their done, by kind and axes.

    Functions that only start gathers are no work.
    """
    counts: dict[str, int] = {}
    for fn in mod.functions.values():
        if not isinstance(fn, relax.Function):
            continue
        bindings = [
            b
            for block in fn.body.blocks
            for b in block.bindings
            if not (isinstance(b.value, ir.Call) and "_gathers" in str(b.value.op))
        ]
        for binding, behind in zip(bindings, [*bindings[1:], None]):
            kind = started_op(binding.value)
            if kind is None:
                continue
            waits = behind is not None and is_done(behind.value)
            if not (waits and behind.value.args[0].same_as(binding.var)):
                name = f"{kind} {','.join(map(str, call_axes(binding.value)))}"
                counts[name] = counts.get(name, 0) + 1
    return counts


def distributed(strategy: str, mesh: dict[str, int], **options: Any) -> ir.IRModule:
    step = td.train_step(td.zoo.gpt(size="tiny", layers=2, batch=8), optimizer="adam")
    return td.distribute(step, make_plan(step, strategy, mesh), system=SYSTEM, **options)


@pytest.mark.parametrize(
    ("strategy", "mesh", "axes"),
    [
        ("data_parallel+megatron", {"dp": 2, "tp": 2}, {"0"}),
        ("fsdp+megatron", {"dp": 2, "tp": 2}, {"0"}),
        ("megatron", {"tp": 4}, set()),
        ("data_parallel", {"dp": 4}, {"0"}),
    ],
)
def test_only_collectives_along_the_axes_of_the_samples_overlap(
    strategy: str, mesh: dict[str, int], axes: set[str]
) -> None:
    usual = overlapped(distributed(strategy, mesh))
    found = {name.split()[1].split(",")[0] for name in usual}
    assert found == axes
    asked = overlapped(distributed(strategy, mesh, overlap_activations=True))
    assert sum(asked.values()) >= sum(usual.values())
    if "tp" in mesh:
        assert any("1" in name or axes == set() for name in asked)


def test_blocking_collectives_take_longer_and_give_the_same_bits() -> None:
    step = td.train_step(
        td.zoo.gpt(layers=2, hidden=1024, heads=8, batch=4, seq=512, positions=512)
    )
    plan = make_plan(step, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 4})
    times = [
        td.simulate(
            td.export(td.distribute(step, plan, system=SYSTEM, overlap_activations=asked)), SYSTEM
        ).time_s
        for asked in (True, False)
    ]
    assert times[0] < times[1]
    small = td.train_step(td.zoo.gpt(size="tiny", layers=2, batch=8))
    plan = make_plan(small, "data_parallel+megatron", {"dp": 2, "tp": 2})
    usual = td.distribute(small, plan, system=SYSTEM)
    assert td.verify(small, plan, dist=usual, engine="virtual").equal


def test_stages_overlap_their_messages_and_gradients_alone() -> None:
    """The last stage has no tokens; the axes are those that divide the tokens of others."""
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(tower(4, 64), loss="mse", optimizer="adam", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=2+zero", {"pp": 2, "dp": 2})
    usual = td.distribute(step, plan, system=SYSTEM)
    assert {name.split()[1] for name in overlapped(usual)} == {"0"}
    values = draw_inputs(step, seed=0)
    plain = td.distribute(step, plan, system=SYSTEM, bucket_bytes=0, ahead_bytes=0)
    results = [td.run(ExpandSchedule()(m), values, engine="virtual") for m in (plain, usual)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_exchanges_of_activations_block_and_those_of_weights_do_not() -> None:
    """Tokens go to experts along the axis of the samples, and the next op waits for them."""
    step = td.train_step(td.load_model("zoo:moe?size=tiny").mod)
    plan = make_plan(step, "data_parallel+expert_parallel:axis=dp", {"dp": 2})
    usual = overlapped(td.distribute(step, plan, system=SYSTEM))
    assert not any(name.startswith("all_to_all") for name in usual)
