# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define decoders of many families in relax.nn, see :class:`.decoder_config.DecoderConfig`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .decoder_attention import FlashTables, GroupedAttention, LatentAttention, PositionTables, norm
from .decoder_config import DecoderConfig
from .mixture import Mixture, OneHotMixture, feed_forward
from .rotary import tables
from .transformer_blocks import (
    capped,
    causal_mask,
    dropped,
    emit,
    export_model,
    layer_class,
    positions,
)


def windowed_mask(position_ids: Tensor, window: int) -> Tensor:
    """Return a bool (seq, seq) mask of the last ``window`` tokens up to the row's."""
    rows = nn.op.unsqueeze(position_ids, 1, name="rows")
    columns = nn.op.unsqueeze(position_ids, 0, name="columns")
    far = nn.op.add(columns, Tensor.from_scalar(window, "int32"))
    near = emit(relax.op.greater(far._expr, rows._expr), "near")
    return emit(relax.op.logical_and(causal_mask(position_ids)._expr, near._expr), "window_mask")


def scaled(x: Tensor, factor: float, name: str) -> Tensor:
    """Multiply by a factor that is not 1."""
    if factor == 1:
        return x
    return nn.op.multiply(x, Tensor.from_scalar(factor, x.dtype), name=name)


class TransformerLayer(nn.Module):  # type: ignore[misc]
    """Layer of the transformer, with a feed-forward block or with experts."""

    attention: tuple[type, type] = (GroupedAttention, LatentAttention)

    def __init__(self, config: DecoderConfig, experts: bool = False) -> None:
        super().__init__()
        self.config = config
        before, behind = _norm_names(config)
        for name in before:
            setattr(self, name, norm(config.hidden, config))
        self.self_attn = self.attention[bool(config.kv_rank)](config)
        for name in behind:
            setattr(self, name, norm(config.hidden, config))
        self.mlp = self.mixture() if experts else feed_forward(config, config.ffn)

    def mixture(self) -> Mixture:
        """Return the experts."""
        return (OneHotMixture if self.config.dispatch == "one_hot" else Mixture)(self.config)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor = None, sin: Tensor = None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        tables = FlashTables if self.config.attention == "flash" else PositionTables
        return self.block(x, tables(mask, cos, sin))

    def block(self, x: Tensor, position_tables: Any) -> Tensor:
        """Apply attention, with what it reads by position, and the feed-forward block."""
        config = self.config
        read = self.input_layernorm(x) if config.pre_norms else x
        mixed = dropped(self.self_attn(read, position_tables), config.dropout)
        mixed = scaled(mixed, config.residual_factor, "scaled_attention")
        if config.parallel:
            normed = self.mlp_layernorm(x) if config.parallel_norms == 2 else read
            return nn.op.add(nn.op.add(x, mixed), self._fed(normed))
        if not config.post_norms:
            x = nn.op.add(x, mixed)
            return nn.op.add(x, self._fed(self.post_attention_layernorm(x)))
        x = nn.op.add(x, self.post_attention_layernorm(mixed))
        out = self._fed(self.pre_feedforward_layernorm(x) if config.pre_norms else x)
        return nn.op.add(x, self.post_feedforward_layernorm(out))

    def _fed(self, x: Tensor) -> Tensor:
        out = dropped(self.mlp(x), self.config.dropout)
        return scaled(out, self.config.residual_factor, "scaled_mlp")


def _norm_names(config: DecoderConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the norms of a layer, before its attention and behind it."""
    if config.parallel:
        return ("input_layernorm", "mlp_layernorm")[: config.parallel_norms], ()
    before = ("input_layernorm",) if config.pre_norms else ()
    if not config.post_norms:
        return before, ("post_attention_layernorm",)
    inner = ("pre_feedforward_layernorm",) if config.pre_norms else ()
    return before, ("post_attention_layernorm", *inner, "post_feedforward_layernorm")


class Decoder(nn.Module):  # type: ignore[misc]
    """Model from token ids to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        dense = "DenseLayer" if config.experts else "Layer"
        classes = [layer_class(TransformerLayer, config.nested, name) for name in (dense, "Layer")]
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, config.dtype)
        if config.positions:
            self.embed_positions = nn.Embedding(config.positions, config.hidden, config.dtype)
        self.layers = nn.ModuleList(
            [
                classes[experts](config, experts)
                for experts in map(config.has_experts, range(config.layers))
            ]
        )
        self.norm = norm(config.hidden, config)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False, dtype=config.dtype)

    def main(self, input_ids: Tensor) -> Tensor:
        """Map ids (batch, seq) to logits (batch, seq, vocab)."""
        config = self.config
        position_ids = positions(config.seq)
        x = self.embedded(input_ids, position_ids)
        by_window = self._tables(position_ids)
        for number, layer in enumerate(self.layers):
            x = layer(x, *by_window[config.has_window(number)])
        return self.logits(x)

    def embedded(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Map ids (batch, seq) at positions, (seq,) or (batch, seq), to (batch, seq, hidden)."""
        config = self.config
        x = nn.op.take(self.embed_tokens.weight, input_ids, axis=0, name="tokens")
        if config.embed_scale:
            scale = Tensor.from_scalar(math.sqrt(config.hidden), config.dtype)
            x = nn.op.multiply(x, scale, name="scaled_tokens")
        x = scaled(x, config.embed_factor, "scaled_tokens")
        if config.positions:
            table = self.embed_positions.weight
            x = nn.op.add(x, nn.op.take(table, position_ids, axis=0, name="places"))
        return dropped(x, config.dropout)

    def logits(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to logits (batch, seq, vocab)."""
        config = self.config
        if config.tied:
            table = nn.op.permute_dims(self.embed_tokens.weight)
            logits = nn.op.matmul(self.norm(x), table, name="logits")
        else:
            logits = self.lm_head(self.norm(x))
        return capped(scaled(logits, config.logit_factor, "scaled_logits"), config.logit_cap)

    def _tables(self, position_ids: Tensor) -> dict[bool, tuple[Tensor, ...]]:
        """Return the mask, and the tables of rotation, of layers with and without a window."""
        config = self.config
        by_window: dict[bool, tuple[Tensor, ...]] = {}
        table: tuple[Tensor, ...] = ()
        for windowed in sorted({config.has_window(number) for number in range(config.layers)}):
            mask = (
                windowed_mask(position_ids, config.window)
                if windowed
                else causal_mask(position_ids)
            )
            if config.positions:
                table = ()
            elif windowed and config.local_theta:
                table = tables(local_rotary(config), position_ids, config.local_theta)
            elif not table:
                table = tables(config, position_ids, config.theta)
            by_window[windowed] = (mask, *table)
        return by_window


def local_rotary(config: DecoderConfig) -> DecoderConfig:
    """Return the configuration of the rotary embedding of layers with a window: not scaled."""
    return replace(config, rotary_scaling="none")


GPT2_WORDS = {
    "embed_tokens": "wte",
    "embed_positions": "wpe",
    "layers": "h",
    "input_layernorm": "ln_1",
    "self_attn": "attn",
    "post_attention_layernorm": "ln_2",
    "norm": "ln_f",
}
"""Words in names of weights of decoders with learned positions."""


def weight_words(config: DecoderConfig) -> dict[str, str]:
    """Return the words in names of weights that are other ones than those of the classes here."""
    return GPT2_WORDS if config.positions else {}


def build(config: DecoderConfig) -> ir.IRModule:
    """Build the module of a decoder without allocating weights."""
    tokens = ([config.batch, config.seq], "int32")
    return export_model(Decoder(config), None, weight_words(config), input_ids=tokens)
