# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives that overlap by default, and those of activations, which block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax

import tvm_distir as td
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.ir import meshes
from tvm_distir.core.ir.operators.async_ops import is_done, started_op
from tvm_distir.core.ir.operators.ops import call_axes
from tvm_distir.core.ir.views import first_view, moved_axes
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.optimize.overlap_choice import OverlapChoice
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
                view = binding.value.attrs["device_mesh"]
                first = first_view(view, meshes(mod))
                axes = sorted(moved_axes(call_axes(binding.value), view, first))
                name = f"{kind} {','.join(map(str, axes))}"
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
    matches = {name.split()[1].split(",")[0] for name in usual}
    assert matches == axes
    requests = overlapped(distributed(strategy, mesh, overlap_activations=True))
    assert sum(requests.values()) >= sum(usual.values())
    if "tp" in mesh:
        assert any("1" in name or axes == set() for name in requests)


def test_blocking_collectives_take_longer_and_give_the_same_bits() -> None:
    step = td.train_step(
        td.zoo.gpt(layers=2, hidden=1024, heads=8, batch=4, seq=512, positions=512)
    )
    plan = make_plan(step, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 4})
    times = [
        td.simulate(
            td.export(td.distribute(step, plan, system=SYSTEM, overlap_activations=requests)),
            SYSTEM,
        ).time_s
        for requests in (True, False)
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


TEXT = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["dp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def layer(
        x: R.Tensor((4, 8), "float32"), w: R.Tensor((4, 8), "float32")
    ) -> R.Tensor((2, 16), "float32"):
        h = R.negative(x)
        x_start = R.dist.all_to_all_start(h, "mesh[0]", 0, 0, 1)
        w_start = R.dist.all_to_all_start(w, "mesh[0]", 0, 0, 1)
        v = R.dist.collective_done(w_start)
        y = R.dist.collective_done(x_start)
        z = R.add(v, y)
        return z
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((4, 8), "float32")):
        R.func_attr({"num_input": 1, "dist.io": {"mesh": 0, "inputs": [
            {"index": 0, "name": "x", "shape": [8, 8], "dtype": "float32", "placement": "S[0]"},
            {"index": 1, "name": "w", "shape": [8, 8], "dtype": "float32", "placement": "S[0]"}
        ], "outputs": []}})
        cls = Module
        h = R.exp(x)
        y = cls.layer(h, w)
        return y
"""


def test_exchanges_of_activations_block_and_those_of_weights_do_not() -> None:
    """Such as those of tokens that go to experts along the axis of the samples."""
    mod = tvm.script.from_source(TEXT)
    fn = mod["layer"]
    rows = [(b, b.var, b.value, None) for block in fn.body.blocks for b in block.bindings]
    chosen = OverlapChoice(mod).of("layer", fn.params, rows)
    assert [str(var.name) for var in chosen] == ["w_start"]
