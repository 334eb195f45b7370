# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Buckets of a unit: a block gathers its weights by one buffer, whatever their size."""

from __future__ import annotations

from collections import Counter

import pytest
import tvm

import tvm_distir as td
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.transforms.distribute import communication_passes
from tvm_distir.transforms.optimize.bucket import BucketGathers


@pytest.fixture(scope="module")
def step_and_plan():
    """A training step of three blocks whose weights are sharded over two devices."""
    step = td.train_step(td.load_model("zoo:llama?size=tiny,layers=3").mod, optimizer="adamw")
    return step, td.planning.make_plan(step, "zero:stage=3", {"dp": 2})


def test_a_block_gathers_by_fewer_collectives_and_as_many_bytes(step_and_plan):
    step, plan = step_and_plan
    sums = {}
    for bucket_bytes in (0, 1, "unit", None):
        mod = td.distribute(step, plan, system="dgx-a100", bucket_bytes=bucket_bytes)
        program = td.export(mod)
        result = td.simulate(program, "dgx-a100")
        rows = {c.kind: (c.count, c.bytes_per_device) for c in result.collectives}
        early = program.functions["layer_forward_gathers"]
        ahead = Counter(op.collective for op in early.ops if op.kind == "collective")
        sums[bucket_bytes] = rows, ahead["all_gather"], result.time_s
    single, unit = sums[0], sums["unit"]
    assert {kind: size for kind, (_, size) in single[0].items()} == {
        kind: size for kind, (_, size) in unit[0].items()
    }
    assert unit[0]["all_gather"][0] < single[0]["all_gather"][0]
    assert single[1] > unit[1] == 1  # one flat buffer of the next block is ahead
    assert unit[2] < single[2]
    assert sums[1] == single  # a bucket of a byte holds nothing
    assert sums[None] == unit  # the default of training steps


def test_results_are_those_of_single_collectives(step_and_plan):
    step, plan = step_and_plan
    usual = td.distribute(step, plan, system="dgx-a100")
    assert td.verify(step, plan, dist=usual, engine="virtual").equal


def test_activations_are_never_in_the_bucket_of_a_unit():
    """A function's weights are gathered at once; a gathered activation stays by itself."""
    mod = tvm.script.from_source(TEXT)
    unit = BucketGathers(units=True)(mod)
    gathers = [
        [int(n) for n in b.value.args[0].ty.shape]
        for b in unit["layer"].body.blocks[0].bindings
        if dist_op_name(b.value) == "all_gather"
    ]
    assert sorted(gathers) == [[1, 2 * 8 + 2 * 8], [2, 8]]


TEXT = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def layer(
        x: R.Tensor((2, 8), "float32"),
        v: R.Tensor((2, 8), "float32"),
        w: R.Tensor((2, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        a: R.Tensor((4, 8), "float32") = R.dist.all_gather(v, "mesh[0]", 0, 0)
        b: R.Tensor((4, 8), "float32") = R.dist.all_gather(w, "mesh[0]", 0, 0)
        c: R.Tensor((4, 8), "float32") = R.dist.all_gather(x, "mesh[0]", 0, 0)
        d: R.Tensor((4, 8), "float32") = R.add(a, b)
        e: R.Tensor((4, 8), "float32") = R.add(c, d)
        return e
    @R.function
    def main(
        x: R.Tensor((2, 8), "float32"),
        v: R.Tensor((2, 8), "float32"),
        w: R.Tensor((2, 8), "float32"),
    ):
        cls = Module
        y: R.Tensor((2, 8), "float32") = R.sin(x)
        z: R.Tensor((4, 8), "float32") = cls.layer(y, v, w)
        return z
"""


def test_bytes_that_run_ahead_may_still_be_bounded(step_and_plan):
    step, _ = step_and_plan
    passes = dict(communication_passes(step, "dgx-a100", bucket_bytes="unit"))
    assert passes["schedule"]["ahead_bytes"] is None
    assert passes["prefetch"]["units"] and passes["prefetch"]["ahead_bytes"] is None
    assert passes == dict(communication_passes(step, "dgx-a100"))
    bounded = dict(communication_passes(step, "dgx-a100", bucket_bytes="unit", ahead_bytes=7))
    assert bounded["prefetch"]["ahead_bytes"] == 7 and "units" not in bounded["prefetch"]
    assert "prefetch" not in dict(
        communication_passes(step, "dgx-a100", bucket_bytes="unit", ahead_bytes=0)
    )
