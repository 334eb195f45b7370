# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The bytes that a step sends, by hand as Megatron-LM and FSDP2 send them, and as we send them."""

from __future__ import annotations

from collections import Counter

import pytest

import tvm_distir as td
from tvm_distir.core.collectives.volume import sent_bytes

LAYERS, HIDDEN, FEED, KV, VOCAB, SEQ = 2, 4096, 14336, 1024, 32000, 4096
LLAMA = (
    f"zoo:llama?layers={LAYERS},hidden={HIDDEN},heads=32,kv_heads=8,vocab={VOCAB},seq={SEQ},"
    "dtype=bfloat16"
)
LAYER = HIDDEN * (2 * HIDDEN + 2 * KV + 3 * FEED)
TABLE = VOCAB * HIDDEN
WIDTH = 2
"""Bytes of a bfloat16."""


def sent(strategy, mesh, batch):
    """The bytes that a device sends along ``tp``, and along the other axes."""
    plan = {"strategy": strategy, "mesh": mesh, "batch": batch, "system": "h100"}
    analysis = td.analyze(LLAMA, train={"optimizer": "adamw"}, **plan)
    program, total = td.export(analysis.module), Counter()
    for _, op in program.executed(program.entries[0].function):
        if op.kind == "collective":
            names = {program.meshes[op.mesh].axes[a] for a in op.mesh_axes}
            size = sent_bytes(op.collective, op.payload_bytes, op.group_size)
            total["tp" if names == {"tp"} else "tp and others" if "tp" in names else "data"] += size
    return total


@pytest.mark.quick
@pytest.mark.parametrize(
    ("strategy", "mesh", "gathers", "layer_sends", "table_sends"),
    [
        # Megatron-LM gathers the inputs of a layer once more in the backward pass.
        ("zero:stage=1+megatron:sequence=1", {"dp": 4, "tp": 8}, 10 * LAYERS + 5, 2, 2),
        # FSDP2 gathers a layer in both passes, and keeps its root group gathered.
        ("fsdp+megatron:sequence=1", {"dp": 4, "tp": 8}, 8 * LAYERS + 4, 3, 2),
        (
            "context_parallel+zero:stage=1+megatron:sequence=1", {"dp": 2, "cp": 2, "tp": 4},
            10 * LAYERS + 5, 2, 2,
        ),
    ],
)  # fmt: skip
def test_steps_send_what_trainers_send(strategy, mesh, gathers, layer_sends, table_sends):
    batch, tp, dp, cp = 16, mesh["tp"], mesh["dp"], mesh.get("cp", 1)
    tokens = batch // dp * (SEQ // cp)
    found = sent(strategy, mesh, batch)
    along_tp = gathers * tokens * HIDDEN * WIDTH * (tp - 1) // tp
    assert found["tp"] == pytest.approx(along_tp, rel=0.001)
    assert found["tp and others"] < 0.001 * along_tp

    share = (dp * cp - 1) / (dp * cp) * WIDTH / tp
    weights = (layer_sends * LAYERS * LAYER + table_sends * 2 * TABLE) * share
    heads = 4 * LAYERS * tokens * (HIDDEN + KV) // tp * WIDTH * (cp - 1) // cp
    trainer = weights + heads
    # The gradient of the embedding is not reduced: its tokens are moved, to devices that sum all.
    moved = tokens * HIDDEN // tp * WIDTH * ((dp - 1) / dp + (cp - 1) / cp)
    ours = trainer - TABLE * share + moved
    assert found["data"] == pytest.approx(ours, rel=0.005)
