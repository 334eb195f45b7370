# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of models: equal to the single device's, and what they send."""

from __future__ import annotations

from collections import Counter

import pytest

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.model_info import (
    as_mesh_spec,
    parameter_rule,
    tensor_parameters,
)
from tvm_distir.planning.strategies.training_parts import with_updates
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions

#: Vocabularies that divide by nothing: the table is padded.
SMALL = {"layers": 1, "hidden": 32, "heads": 4, "vocab": 63, "seq": 8, "batch": 4}
GPT = {"size": "tiny", **SMALL, "positions": 8}
LLAMA = {"size": "tiny", **SMALL, "kv_heads": 2, "ffn": 64}
#: Large steps: what a wrong gradient does to a weight is not lost in its rounding.
RATE = {"sgd": 10.0, "adam": 1.0}


def step_of(name, keys, optimizer="sgd", **options):
    mod = getattr(td.zoo, name)(**keys)
    return td.train_step(mod, optimizer=optimizer, rate=RATE[optimizer], **options)


def verified(step, plan):
    """Distributed, at its level, and equal to the single device's result."""
    dist = td.distribute(step, plan)
    check_level(dist, 5)
    report = td.verify(step, plan, dist=dist)
    assert report.equal, report
    return dist


def collectives(dist):
    """Per collective: kind, mesh axes, shape and bytes of the result, in order."""
    program = td.export(dist)
    return [
        (op.collective, tuple(op.mesh_axes), function.values[op.outputs[0]].shape, op.payload_bytes)
        for function, op in program.executed(program.entries[0].function)
        if op.kind == "collective"
    ]


def test_gpt_under_data_parallel_and_megatron():
    """Embedding, head, cross entropy over the cut vocabulary, SGD; no logits are gathered."""
    step = step_of("gpt", GPT)
    dist = verified(step, make_plan(step, "data_parallel+megatron", {"dp": 2, "tp": 2}))
    vocab = (63, 32, 64)
    assert not [c for c in collectives(dist) if c[0] == "all_gather" and c[2][-1:] in vocab[:1]]
    shapes = {
        str(e["name"]): (tuple(map(int, e["shape"])), str(e["placement"]))
        for e in dist["main"].attrs["dist.io"]["inputs"]
    }
    assert shapes["wte.weight"] == ((63, 32), "R, S[0]")


def test_gpt_with_sequence_parallelism_and_adam():
    """States lie as their weights do."""
    step = step_of("gpt", GPT, "adam")
    plan = make_plan(step, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 2})
    dist = verified(step, plan)
    placed = {str(e["name"]): str(e["placement"]) for e in dist["main"].attrs["dist.io"]["inputs"]}
    name = "h.0.mlp.up_proj.weight"
    assert placed[name] == placed[f"{name}.m"] == placed[f"{name}.v"] == "R, S[0]"


def test_llama_under_tensor_parallel():
    """RoPE, grouped queries, rms norms; weights placed by the rules alone."""
    step = step_of("llama", LLAMA)
    verified(step, make_plan(step, "tensor_parallel", {"tp": 2}))


def stored_in_shards(step, ranks):
    """ZeRO stage 3: the first dim of every weight, and of what follows it, over dp."""
    spec = as_mesh_spec({"dp": ranks})
    fn = step["main"]
    data = data_positions(fn)
    rules = [
        parameter_rule(p, spec, {0: 0 if p.shape and p.shape[0] % ranks == 0 else -1}, False)
        for p in tensor_parameters("main", fn, None)
    ]
    assert set(data) == {0, 1}
    return with_updates(step, Plan((spec,), tuple(rules)))


@pytest.mark.parametrize("reread", [False, True])
def test_weights_stored_in_shards(reread):
    """One reduce-scatter per weight, nothing whole is reduced; those of layers are gathered twice.

    The functions of a layer's forward and backward part gather their own weights. What stands in
    ``main`` is gathered once, or once for either part where it is read anew.
    """
    keys = {**GPT, "vocab": 64, "seq": 32, "positions": 32, "batch": 32}
    step = step_of("gpt", keys, "adam", reread=reread)
    plan = stored_in_shards(step, 2)
    dist = td.distribute(step, plan)
    if reread:
        assert td.verify(step, plan, dist=dist).equal
    result = Counter(c[0] for c in collectives(dist) if len(c[2]) > 1)
    matrices = [p for p in tensor_parameters("main", step["main"], None) if p.ndim == 2][2:]
    of_layers = [p for p in matrices if p.name.startswith("h.0.")]
    # All but the table of positions, whose rows are looked up, are used twice.
    twice = len(matrices) - 1 if reread else len(of_layers)
    assert (len(matrices), len(of_layers)) == (8, 6)
    assert result["reduce_scatter"] == len(matrices)
    assert result["all_gather"] == len(matrices) + twice
    assert not result["all_reduce"]
    for make in (BucketReductions(), BucketGathers()):
        dist = make(dist)
    check_level(dist, 5)
    result = Counter(c[0] for c in collectives(dist) if c[0] != "all_reduce")
    assert result["reduce_scatter"] == 2  # of the layer, of main
    # Forward, backward; in main what is gathered first, the places looked up, what comes again.
    assert result["all_gather"] == 2 + (3 if reread else 2)
    again = dist["main"].attrs["dist.io"]
    states = [e for e in again["inputs"] if str(e["name"]).endswith((".m", ".v"))]
    assert states and all(str(e["placement"]) == "S[0]" for e in states)
