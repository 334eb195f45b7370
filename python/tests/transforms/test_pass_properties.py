# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What every pass owes: a well-formed module that parses back, the same each time, input untouched.

Each pass runs on each model, at the level it takes.
"""

from __future__ import annotations

import inspect

import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.planning.strategies import megatron

GPT = {"layers": 2, "hidden": 16, "heads": 4, "seq": 8, "batch": 4, "vocab": 32}


def rules(*rows, axes):
    named = [{"param": name, "placement": text} for name, text in rows]
    return td.Plan.from_dict({"schema_version": 1, "mesh": axes, "rules": named})


def gpt():
    mod = td.zoo.gpt(**GPT)
    return mod, td.planning.compose(mod, {"dp": 2, "tp": 2}, "data_parallel+megatron")


def nested():
    mod = td.zoo.gpt(**GPT, nested=1)
    return mod, megatron(mod, {"tp": 4})


def convolution():
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 3, 9, 8), "float32"), k: R.Tensor((4, 3, 3, 3), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(x, k, padding=1)
            b = R.nn.relu(a)
            c = R.sum(b, axis=[1, 2])
            R.output(b, c)
        return (b, c)
""")
    return mod, rules(("x", "S[2], S[0]"), axes={"sp": 2, "dp": 2})


def uneven():
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((7, 10), "float16"), w: R.Tensor((10, 5), "float16")):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.softmax(a, axis=1)
            c = R.permute_dims(b, [1, 0])
            R.output(c)
        return c
""")
    return mod, rules(("x", "S[0], S[1]"), ("w", "R, S[0]"), axes={"dp": 3, "tp": 2})


def two_meshes():
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.relu(a)
            R.output(b)
        return b
""")
    return mod, td.Plan.from_dict(
        {
            "schema_version": 1,
            "meshes": {
                "first": {"axes": {"tp": 2}, "start": 0},
                "second": {"axes": {"tp": 2}, "start": 2},
            },
            "rules": [
                {"param": "x", "mesh": "first", "placement": "S[0]"},
                {"value": "b", "mesh": "second", "placement": "S[1]"},
            ],
        }
    )


MODELS = {f.__name__: f for f in (gpt, nested, convolution, uneven, two_meshes)}


@pytest.fixture(scope="module", params=sorted(MODELS))
def levels(request):
    """A model at every level, and its plan."""
    mod, plan = MODELS[request.param]()
    created = {1: mod}
    steps = [
        transform.AnnotateSharding(plan),
        transform.PropagateSharding(),
        transform.LegalizeRedistribute(),
        transform.LowerDistIR(),
    ]
    for level, step in enumerate(steps, 1):
        created[level + 1] = step(created[level])
    return created, plan


PASSES = {
    "AnnotateSharding": (1, 2),
    "OutlineRepeatedLayers": (1, 1),
    "InlinePrivateFunctions": (1, 1),
    "PropagateSharding": (2, 3),
    "LegalizeRedistribute": (3, 4),
    "CancelCollectives": (4, 4),
    "FuseCollectives": (4, 4),
    "RegatherActivations": (4, 4),
    "MergeReductions": (4, 4),
    "MoveGathers": (4, 4),
    "MoveSlices": (4, 4),
    "OptimizeCollectives": (4, 4),
    "RemoveUnused": (4, 4),
    "ShareCollectives": (4, 4),
    "LowerDistIR": (4, 5),
    "BucketGathers": (5, 5),
    "BucketReductions": (5, 5),
    "SplitCollectives": (5, 5),
    "DeferReductions": (5, 5),
    "ScheduleCollectives": (5, 5),
    "ReplicateInputs": (5, 5),
}
"""Level taken and level given."""
ELSEWHERE = {
    "FuseAttention": "test_fuse_attention.py: it changes modules with attention only",
    "TrainStep": "test_gradient_functions.py: it takes models with one output, not yet trained",
    "RingAttention": "test_ring_attention.py: it refuses modules without attention to do so",
    "WriteAttention": "test_ring_attention.py: it changes modules with attention only",
    "SerializePipeline": "test_stages.py: it changes steps in stages only",
    "ExpandSchedule": "test_stages.py: it changes steps in stages only",
    "OrderAxes": "test_axis_orders.py: it changes modules with several axes on a dim only",
    "GatherAtStart": "test_first_gathers.py: it changes steps that gather new weights only",
    "DonateInputs": "test_donate_inputs.py: it changes steps that append to caches only",
    "OffloadStates": "test_host_states.py: it changes training steps with states only",
    "PrefetchGathers": "test_optimize_prefetch.py: it changes steps for a system only",
}


def test_every_pass_is_listed():
    factories = {
        name
        for name in transform.__all__
        if name[0].isupper() and inspect.isfunction(getattr(transform, name))
    }
    assert factories == {*PASSES, *ELSEWHERE}


def text_of(mod):
    return mod.script(show_meta=True)


@pytest.mark.parametrize("name", PASSES)
def test_properties(levels, name):
    created, plan = levels
    before, after = PASSES[name]
    mod = created[before]
    remaining = text_of(mod)
    make = getattr(transform, name)
    step = make(plan) if name == "AnnotateSharding" else make()
    result = step(mod)
    assert text_of(mod) == remaining, "the input was changed"
    relax.analysis.well_formed(result)
    check_level(result, after)
    text = text_of(result)
    assert tvm_ffi.structural_equal(tvm.script.from_source(text), result), "it parses to another"
    assert text_of(step(mod)) == text, "a second run gives something else"


def test_a_pass_that_changes_its_input_is_found(levels):
    """The comparison above sees a function put into the module."""
    mod = levels[0][1]
    remaining = text_of(mod)
    copy = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    assert text_of(copy) == remaining
    copy.update_func(copy.get_global_var("main"), copy["main"].with_attr("seen", 1))
    assert text_of(copy) != remaining
