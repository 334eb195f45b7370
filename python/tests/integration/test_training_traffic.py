# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What sequence parallelism sends, forward and in training, from one annotation; at any size.

Expected: Megatron's schedule (Korthikanti et al. 2022, section 4.2.2). Each block of a layer has
one all-gather before it and one reduce-scatter behind it; the backward part the same. With
``sequence=1`` devices keep their parts alone, and the backward part has one more all-gather each.
"""

from __future__ import annotations

from collections import Counter

import pytest

import tvm_distir as td
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import DEFAULT_MESH, PlanRule, parse_open_placement
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.training_parts import with_updates

MESH = {"dp": 2, "tp": 4}
STRATEGY = "data_parallel+megatron"
LAYERS = 2
SIZES = {"layers": LAYERS, "hidden": 256, "heads": 16, "seq": 64, "batch": 16, "vocab": 512}
MODELS = {
    "gpt": {"size": "tiny", **SIZES, "positions": 64, "nested": 0},
    "llama": {"size": "tiny", **SIZES, "kv_heads": 8, "ffn": 1024, "nested": 0},
}
#: The residual stream as the first layer reads it.
FIRST = {"gpt": "add", "llama": "tokens"}


def of_tp(dist):
    """Activation-sized collectives over tp alone: how many of a kind, and wire bytes by ring."""
    program = td.export(dist)
    counts, wire, ranks = Counter(), 0, MESH["tp"]
    for function, op in program.executed(program.entries[0].function):
        if op.kind != "collective" or tuple(op.mesh_axes) != (1,):
            continue
        if len(function.values[op.outputs[0]].shape) != 3:
            continue  # statistics of the loss
        counts[op.collective] += 1
        whole = op.payload_bytes * (ranks if op.collective == "reduce_scatter" else 1)
        wire += whole * (ranks - 1) // ranks * (2 if op.collective == "all_reduce" else 1)
    return counts, wire


def annotated(mod, value):
    """Megatron's weights, and one annotation: the sequence of one value over tp."""
    plan = make_plan(mod, STRATEGY, MESH)
    rule = PlanRule("value", value, parse_open_placement("S[0], S[1]"), DEFAULT_MESH)
    return with_updates(mod, Plan(plan.meshes, (*plan.rules, rule)))


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("train", [False, True])
def test_two_layers(name, train):
    """Per layer 2 + 2 forward and 4 + 4 in training; embedding and head add one of each part.

    Forward the embedding ends in a reduce-scatter and the head begins with an all-gather; in the
    backward part it is the other way round. One collective is 3/4 of an activation of 512 KiB.
    """
    mod = getattr(td.zoo, name)(**MODELS[name])
    mod = td.train_step(mod) if train else mod
    counts, wire = of_tp(td.distribute(mod, annotated(mod, FIRST[name])))
    each = (2 * LAYERS + 1) * (2 if train else 1)
    assert counts == {"all_gather": each, "reduce_scatter": each}
    of_layers = 2 * 2 * LAYERS * (2 if train else 1)
    part = 8 * 64 * 256 * 4 * 3 // 4
    assert wire == 2 * each * part
    assert of_layers * part == (6_291_456 if train else 3_145_728)


@pytest.mark.parametrize("train", [False, True])
def test_without_it_all_reduces(train):
    """Two per layer forward and four in training, and one for the embedding (and the head).

    Of a smaller table the gradient is reduced instead of the activation's.
    """
    mod = td.zoo.gpt(**{**MODELS["gpt"], "vocab": 1024})
    mod = td.train_step(mod) if train else mod
    counts, _ = of_tp(td.distribute(mod, make_plan(mod, STRATEGY, MESH)))
    assert counts == {"all_reduce": (2 * LAYERS + 1) * (2 if train else 1)}


@pytest.mark.parametrize("size", ["gpt3-6.7b", "gpt3-175b"])
def test_at_gpt3_sizes(size):
    """Analysis only: two layers of the real widths, float16, the schedule is the same."""
    mod = td.zoo.gpt(size=size, layers=LAYERS, batch=4)
    step = td.train_step(mod)
    plan = make_plan(step, f"{STRATEGY}:sequence=1", MESH)
    counts, wire = of_tp(td.distribute(step, plan))
    each = 2 * LAYERS + 1  # forward, and back; what was gathered forward is gathered again there
    assert counts == {"all_gather": 3 * each, "reduce_scatter": 2 * each}
    hidden = {"gpt3-6.7b": 4096, "gpt3-175b": 12288}[size]
    assert wire == 5 * each * (2 * 2048 * hidden * 2 * 3 // 4)
