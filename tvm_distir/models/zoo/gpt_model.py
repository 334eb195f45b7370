# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the GPT-2 architecture in relax.nn: learned positions, pre-norm, tied LM head."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax.frontend import nn

from .configs import GptConfig
from .layers import Attention, FeedForward, FusedAttention
from .transformer_blocks import (
    LayerNorm,
    causal_mask,
    dropped,
    export_tokens,
    layer_class,
    positions,
)


class GptLayer(nn.Module):  # type: ignore[misc]
    """Transformer layer."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden, config.dtype)
        sizes, rate = (config.hidden, config.heads, config.dtype), config.dropout
        self.attn = (
            FusedAttention(*sizes, dropout=rate, flash=config.attention == "flash")
            if config.fused_qkv
            else Attention(*sizes, dropout=rate)
        )
        self.ln_2 = LayerNorm(config.hidden, config.dtype)
        self.mlp = FeedForward(
            config.hidden, config.ffn_dim, config.dtype, approximate="tanh", dropout=rate
        )

    def forward(self, x: Any, mask: Any) -> Any:
        """Map (batch, seq, hidden) to the same shape."""
        x = nn.op.add(x, self.attn(self.ln_1(x), mask))
        return nn.op.add(x, self.mlp(self.ln_2(x)))


class Gpt(nn.Module):  # type: ignore[misc]
    """Model from token ids to logits."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        layer = layer_class(GptLayer, config.nested)
        self.seq, self.dropout = config.seq, config.dropout
        self.wte = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.wpe = nn.Embedding(config.positions, config.hidden, config.dtype)
        self.h = nn.ModuleList([layer(config) for _ in range(config.layers)])
        self.ln_f = LayerNorm(config.hidden, config.dtype)

    def main(self, input_ids: Any) -> Any:
        """Map ids (batch, seq) to logits (batch, seq, vocab)."""
        places = positions(self.seq)
        tokens = nn.op.take(self.wte.weight, input_ids, axis=0, name="tokens")
        x = nn.op.add(tokens, nn.op.take(self.wpe.weight, places, axis=0, name="places"))
        x = dropped(x, self.dropout)
        mask = causal_mask(places)
        for layer in self.h:
            x = layer(x, mask)
        head = nn.op.permute_dims(self.wte.weight)
        return nn.op.matmul(self.ln_f(x), head, name="logits")


def build(config: GptConfig) -> ir.IRModule:
    """Build the module of a GPT without allocating weights."""
    return export_tokens(Gpt(config), config.batch, config.seq)
