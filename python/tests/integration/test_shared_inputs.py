# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Layers on two meshes: what follows from inputs, such as a mask, is computed on each of them."""

from __future__ import annotations

import pytest

import tvm_distir as td

LAYERS = 4


def stages(width):
    """The first half of the layers, with the embedding, on one mesh, the rest on the other."""
    first, second = {"mesh": "s0", "placement": "R"}, {"mesh": "s1", "placement": "R"}
    layers = [
        {"param": f"layers.{i}.*", **(first if i < LAYERS // 2 else second)} for i in range(LAYERS)
    ]
    ends = [
        {"param": "input_ids", **first},
        {"param": "embed_tokens.weight", **first},
        {"param": "norm.weight", **second},
        {"param": "lm_head.weight", **second},
    ]
    meshes = {f"s{i}": {"axes": {"tp": width}, "start": i * width} for i in range(2)}
    return td.Plan.from_dict({"schema_version": 1, "meshes": meshes, "rules": [*ends, *layers]})


@pytest.mark.parametrize("width", [1, 2])
def test_only_the_activation_is_sent(width):
    mod = td.zoo.llama(size="tiny", layers=LAYERS, batch=2)
    plan = stages(width)
    dist = td.distribute(mod, plan)
    program = td.export(dist)
    sent = [
        program.functions[f].values[op.inputs[0]].name
        for f in program.functions
        for op in program.functions[f].ops
        if op.kind == "transfer" and op.op.endswith("send")
    ]
    # Not the mask, nor the tables of cosines and sines, which all layers share.
    assert [name.startswith("layer_output") for name in sent] == [True]
    assert td.verify(mod, plan, dist=dist).equal
