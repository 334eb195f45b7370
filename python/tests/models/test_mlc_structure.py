# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A Llama of MLC-LLM's structure, distributed here and written, moves what MLC's own does."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from tvm import ir
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

import tvm_distir as td
from tests.models.test_relax_ccl import Divided
from tvm_distir.core.ir import relax_functions, static_shape
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.planning import make_plan

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY, LAYERS = 32, 4, 2, 8, 48, 40, 2


class Mlp(nn.Module):
    """The gated layer of Llama."""

    def __init__(self, size: int) -> None:
        inner = INNER // size
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, HIDDEN, bias=False)
        self.gate_up_proj.weight.attrs["shard_strategy"] = Divided(0, [inner, inner])
        self.down_proj.weight.attrs["shard_strategy"] = Divided(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result, or the terms of it."""
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(op.silu(gate) * up)


class Attention(nn.Module):
    """The grouped attention of Llama, without rotation and cache, which move nothing."""

    def __init__(self, size: int) -> None:
        self.heads, self.kv_heads = HEADS // size, KV_HEADS // size
        segments = [self.heads * HEAD, self.kv_heads * HEAD, self.kv_heads * HEAD]
        self.qkv_proj = nn.Linear(HIDDEN, sum(segments), bias=False)
        self.o_proj = nn.Linear(self.heads * HEAD, HIDDEN, bias=False)
        self.qkv_proj.weight.attrs["shard_strategy"] = Divided(0, segments)
        self.o_proj.weight.attrs["shard_strategy"] = Divided(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result, or the terms of it."""
        batch, tokens, _ = x.shape
        fused = self.qkv_proj(x)
        fused = op.reshape(fused, (batch, tokens, self.heads + 2 * self.kv_heads, HEAD))
        q, k, v = op.split(fused, [self.heads, self.heads + self.kv_heads], axis=2)
        k, v = (op.repeat(t, HEADS // KV_HEADS, axis=2) for t in (k, v))
        q, k, v = (op.permute_dims(t, [0, 2, 1, 3]) for t in (q, k, v))
        scores = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) / math.sqrt(HEAD)
        mixed = op.permute_dims(op.matmul(op.softmax(scores, axis=-1), v), [0, 2, 1, 3])
        return self.o_proj(op.reshape(mixed, (batch, tokens, self.heads * HEAD)))


class Layer(nn.Module):
    """A layer of Llama, whose two residual sums follow reductions."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.self_attn, self.mlp = Attention(size), Mlp(size)
        self.input_layernorm = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the layer."""
        x = self._sum(self.self_attn(self.input_layernorm(x)), x)
        return self._sum(self.mlp(self.post_attention_layernorm(x)), x)

    def _sum(self, out: Tensor, x: Tensor) -> Tensor:
        return (op.ccl_allreduce(out, "sum") if self.size > 1 else out) + x


class Llama(nn.Module):
    """The layers and logits of a Llama, for one of several devices."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.layers = nn.ModuleList([Layer(size) for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def prefill(self, x: Tensor) -> Tensor:
        """Return the logits of embedded tokens."""
        x = op.ccl_broadcast_from_worker0(x) if self.size > 1 else x
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def _spec(tokens: int) -> Any:
    modes = {"param_mode": "plain", "effect_mode": "none"}
    return {"prefill": {"x": nn.spec.Tensor([1, tokens, HIDDEN], "float32"), "$": modes}}


def _moved(mod: ir.IRModule) -> Counter[str]:
    """Return the number of reductions and gathers of ``R.ccl``, and the bytes of each kind."""
    moved: Counter[str] = Counter()
    for _, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            kind = str(getattr(getattr(binding.value, "op", None), "name", ""))
            if kind.startswith("relax.ccl.") and "worker0" not in kind:
                x = binding.value.args[0]
                moved[kind] += 1
                moved[f"{kind} bytes"] += 4 * math.prod(map(int, static_shape(x.ty) or ()))
    return moved


@pytest.mark.parametrize("tokens", [1, 6])
def test_a_written_llama_moves_what_that_of_mlc_does(tokens: int) -> None:
    exported = Llama(2).export_tvm(_spec(tokens))
    single = td.from_nn(Llama(1), _spec(tokens))
    local = td.distribute(single, make_plan(single, "megatron", {"tp": 2}))
    written = td.to_ccl(local)
    assert _moved(written) == _moved(exported[0])
    assert _moved(written)["relax.ccl.allreduce"] == 2 * LAYERS
    mlc, ours = td.from_ccl(exported, 2), td.from_ccl(written, 2)
    reports = [td.verify(single, dist=mod, entry="prefill") for mod in (mlc, ours)]
    assert all(report.equal for report in reports)
    assert reports[0].collectives == reports[1].collectives
