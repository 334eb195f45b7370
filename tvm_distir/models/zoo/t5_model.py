# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define T5 in relax.nn (Raffel et al. 2020): an encoder and a decoder with relative positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from tvm import ir
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Config, Fault
from .float_norms import RmsNorm
from .layers import FeedForward
from .transformer_blocks import (
    MASKED_SCORE,
    back_to,
    export_model,
    in_float32,
    layer_class,
    merge_heads,
    split_heads,
)

FEED_FORWARDS = ("relu", "gated-gelu")


@dataclass(frozen=True)
class T5Config(Config):
    """Configuration of a T5.

    Attributes
    ----------
    layers, decoder_layers, hidden, heads, head_dim, ffn, vocab : int
        Sizes; the width of attention is ``heads * head_dim``.
    buckets, distance : int
        Buckets of relative positions, and the distance from which all share the last one.
    feed_forward : str
        ``relu`` (T5 1.0), or ``gated-gelu`` (T5 1.1, Flan-T5).
    tied, scaled : int
        1: the head is the token table; 1: it reads results that are divided by the square root of
        ``hidden``, as in T5 1.0.
    batch, seq, decoder_seq : int
        Samples, and tokens per sample of the encoder and of the decoder.
    dtype : str
        The dtype of weights and activations: float32, float16 or bfloat16.
    eps : float
        Epsilon of RMSNorm.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    """

    FLAGS = frozenset({"nested", "tied", "scaled"})
    WORDS: ClassVar = {**Config.WORDS, "feed_forward": FEED_FORWARDS}

    layers: int = 12
    decoder_layers: int = 12
    hidden: int = 768
    heads: int = 12
    head_dim: int = 64
    ffn: int = 3072
    vocab: int = 32128
    buckets: int = 32
    distance: int = 128
    feed_forward: str = "relu"
    tied: int = 1
    scaled: int = 1
    batch: int = 16
    seq: int = 512
    decoder_seq: int = 128
    dtype: str = "float32"
    eps: float = 1e-6
    nested: int = 1

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including an odd number of buckets."""
        yield from super().faults()
        if self.buckets % 4:
            yield f"buckets={self.buckets}", "Give a multiple of 4."
        elif self.distance <= self.buckets:
            yield f"distance={self.distance}", "Give more than the number of buckets."


def relative_buckets(config: T5Config, count: int, causal: bool) -> npt.NDArray[np.int32]:
    """Return the bucket of each pair of a query and a key, (count, count).

    Half of the buckets are of single distances; behind them the distances grow by a constant
    factor up to ``distance`` (Raffel et al. 2020, section 2.1).
    """
    offset = np.arange(count)[None, :] - np.arange(count)[:, None]
    buckets, first = config.buckets, np.zeros_like(offset)
    if causal:
        offset = np.maximum(-offset, 0)
    else:
        buckets //= 2
        first = np.where(offset > 0, buckets, 0)
        offset = np.abs(offset)
    exact = buckets // 2
    growth = np.log(np.maximum(offset, 1).astype("float32") / exact)
    step = growth / math.log(config.distance / exact) * (buckets - exact)
    far = np.minimum(exact + step.astype("int64"), buckets - 1)
    bucket_of: npt.NDArray[np.int32] = (first + np.where(offset < exact, offset, far)).astype(
        "int32"
    )
    return bucket_of


class T5Attention(nn.Module):  # type: ignore[misc]
    """Attention whose scores are not scaled, with a bias by relative position."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.heads * config.head_dim
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(config.hidden, width, bias=False, dtype=config.dtype))
        self.o_proj = nn.Linear(width, config.hidden, bias=False, dtype=config.dtype)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor = None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape, with keys and values of ``source``."""
        q = split_heads(self.q_proj(x), self.heads)
        k, v = (split_heads(proj(source), self.heads) for proj in (self.k_proj, self.v_proj))
        scores = nn.op.matmul(q, nn.op.permute_dims(k, [0, 1, 3, 2]), name="scores")
        scores = in_float32(scores)
        if bias is not None:
            scores = nn.op.add(scores, bias, name="biased")
        weights = back_to(nn.op.softmax(scores, axis=-1, name="probs"), q.dtype)
        return self.o_proj(merge_heads(nn.op.matmul(weights, v, name="mixed")))


def _feed_forward(config: T5Config) -> FeedForward:
    gated = config.feed_forward == "gated-gelu"
    kind = "gelu_tanh" if gated else "relu"
    return FeedForward(config.hidden, config.ffn, config.dtype, kind, bias=False, gated=gated)


class T5Layer(nn.Module):  # type: ignore[misc]
    """Layer of the encoder; or of the decoder, which also attends to the encoder's result."""

    def __init__(self, config: T5Config, crosses: bool) -> None:
        super().__init__()
        self.ln_1 = RmsNorm(config.hidden, config.dtype, config.eps)
        self.self_attn = T5Attention(config)
        self.ln_2 = RmsNorm(config.hidden, config.dtype, config.eps)
        if crosses:
            self.cross_attn = T5Attention(config)
            self.ln_3 = RmsNorm(config.hidden, config.dtype, config.eps)
        self.mlp = _feed_forward(config)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor = None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        y = self.ln_1(x)
        x = nn.op.add(x, self.self_attn(y, y, bias))
        if encoded is None:
            return nn.op.add(x, self.mlp(self.ln_2(x)))
        x = nn.op.add(x, self.cross_attn(self.ln_2(x), encoded))
        return nn.op.add(x, self.mlp(self.ln_3(x)))


class T5Stack(nn.Module):  # type: ignore[misc]
    """Layers of the encoder or of the decoder, with the biases that they share."""

    def __init__(self, config: T5Config, name: str, layers: int, causal: bool) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        layer = layer_class(T5Layer, config.nested, name)
        self.relative = nn.Embedding(config.buckets, config.heads, config.dtype)
        self.layers = nn.ModuleList([layer(config, crosses=causal) for _ in range(layers)])
        self.norm = RmsNorm(config.hidden, config.dtype, config.eps)

    def forward(self, x: Tensor, *encoded: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        bias = self._bias(x.shape[1])
        for layer in self.layers:
            x = layer(x, bias, *encoded)
        return self.norm(x)

    def _bias(self, count: int) -> Tensor:
        """Return the float32 terms of the scores, (1, heads, count, count)."""
        buckets = relative_buckets(self.config, count, self.causal)
        table = nn.op.take(
            self.relative.weight, Tensor.from_const(buckets), axis=0, name="relative"
        )
        bias = in_float32(nn.op.permute_dims(table, [2, 0, 1]))
        if self.causal:
            mask = np.triu(np.full((count, count), MASKED_SCORE, "float32"), 1)
            bias = nn.op.add(bias, Tensor.from_const(mask), name="causal_bias")
        return nn.op.unsqueeze(bias, 0)


class T5(nn.Module):  # type: ignore[misc]
    """Model from token ids of encoder and decoder to logits."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.encoder = T5Stack(config, "EncoderLayer", config.layers, causal=False)
        self.decoder = T5Stack(config, "DecoderLayer", config.decoder_layers, causal=True)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False, dtype=config.dtype)

    def main(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Map ids (batch, seq) and (batch, decoder_seq) to logits (batch, decoder_seq, vocab)."""
        config, table = self.config, self.shared.weight
        encoded = self.encoder(nn.op.take(table, input_ids, axis=0, name="tokens"))
        x = nn.op.take(table, decoder_input_ids, axis=0, name="decoder_tokens")
        x = self.decoder(x, encoded)
        if config.scaled:
            x = nn.op.multiply(x, Tensor.from_scalar(config.hidden**-0.5, config.dtype))
        if not config.tied:
            return self.lm_head(x)
        return nn.op.matmul(x, nn.op.permute_dims(table), name="logits")


def build(config: T5Config) -> ir.IRModule:
    """Build the module of a T5 without allocating weights."""
    return export_model(
        T5(config),
        input_ids=((config.batch, config.seq), "int32"),
        decoder_input_ids=((config.batch, config.decoder_seq), "int32"),
    )
