# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the BERT encoder in relax.nn (Devlin et al. 2019): post-norm blocks and two heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Fault, FourfoldFfn, indivisible
from .float_norms import LayerNorm
from .layers import Attention, FeedForward
from .transformer_blocks import emit, export_model, layer_class, positions

HEADS = ("mlm", "classify")


@dataclass(frozen=True)
class BertConfig(FourfoldFfn):
    """Configuration of a BERT encoder.

    Attributes
    ----------
    layers, hidden, heads, ffn, vocab : int
        Sizes; ``ffn`` 0 means four times ``hidden``.
    positions, types : int
        Rows of the tables of positions and of token types; ``seq`` cannot exceed ``positions``.
    head : str
        "mlm": logits of the vocabulary for each token (the decoder is the token table); "classify":
        logits of ``classes`` from the first token.
    classes : int
    batch, seq : int
        Samples and tokens per sample.
    dtype : str
        The dtype of weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    eps : float
        Epsilon of the layer norms.
    """

    WORDS: ClassVar = {**FourfoldFfn.WORDS, "head": HEADS}

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 0
    vocab: int = 30522
    positions: int = 512
    types: int = 2
    head: str = "mlm"
    classes: int = 2
    batch: int = 16
    seq: int = 128
    dtype: str = "float32"
    nested: int = 1
    eps: float = 1e-12

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including heads that do not divide, and too few positions."""
        yield from super().faults()
        yield from indivisible("hidden", self.hidden, "heads", self.heads)
        if self.seq > self.positions:
            yield f"seq={self.seq} exceeds positions={self.positions}", f"Add positions={self.seq}."


class BertLayer(nn.Module):  # type: ignore[misc]
    """Encoder layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attn = Attention(config.hidden, config.heads, config.dtype)
        self.attn_norm = LayerNorm(config.hidden, config.dtype, config.eps)
        self.mlp = FeedForward(config.hidden, config.ffn_dim, config.dtype)
        self.mlp_norm = LayerNorm(config.hidden, config.dtype, config.eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        x = self.attn_norm(nn.op.add(x, self.attn(x, mask)))
        return self.mlp_norm(nn.op.add(x, self.mlp(x)))


class Embeddings(nn.Module):  # type: ignore[misc]
    """Sum of token, position and type embeddings, normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.positions = nn.Embedding(config.positions, config.hidden, config.dtype)
        self.types = nn.Embedding(config.types, config.hidden, config.dtype)
        self.norm = LayerNorm(config.hidden, config.dtype, config.eps)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        """Map two times (batch, seq) to (batch, seq, hidden)."""
        tokens = nn.op.take(self.tokens.weight, ids, axis=0, name="tokens")
        rows = nn.op.take(self.positions.weight, positions(ids.shape[1]), axis=0, name="places")
        kinds = nn.op.take(self.types.weight, types, axis=0, name="kinds")
        return self.norm(nn.op.add(nn.op.add(tokens, kinds), rows))


class MlmHead(nn.Module):  # type: ignore[misc]
    """Dense layer and norm before the tied decoder, with the decoder's bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden, dtype=config.dtype)
        self.norm = LayerNorm(config.hidden, config.dtype, config.eps)
        self.bias = nn.Parameter((config.vocab,), config.dtype)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Map (batch, seq, hidden) and (vocab, hidden) to (batch, seq, vocab)."""
        x = self.norm(nn.op.gelu(self.dense(x)))
        logits = nn.op.matmul(x, nn.op.permute_dims(table), name="scores")
        return nn.op.add(logits, self.bias, name="logits")


class ClassifyHead(nn.Module):  # type: ignore[misc]
    """Pooler of the first token and a linear classifier."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden, config.hidden, dtype=config.dtype)
        self.classifier = nn.Linear(config.hidden, config.classes, dtype=config.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to (batch, classes)."""
        batch, _, hidden = x.shape
        first = emit(relax.op.strided_slice(x._expr, [1], [0], [1]), "first")
        pooled = nn.op.tanh(self.pooler(nn.op.reshape(first, (batch, hidden))))
        return self.classifier(pooled)


class Bert(nn.Module):  # type: ignore[misc]
    """Model from token ids, token types and attention mask to logits."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        layer = layer_class(BertLayer, config.nested)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList([layer(config) for _ in range(config.layers)])
        self.is_mlm = config.head == "mlm"
        if self.is_mlm:
            self.mlm = MlmHead(config)
        else:
            self.classify = ClassifyHead(config)

    def main(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map int32 (batch, seq) inputs to logits; the mask is 0 at padding tokens."""
        batch, seq = attention_mask.shape
        mask = nn.op.not_equal(attention_mask, Tensor.from_scalar(0, "int32"), name="counts")
        mask = nn.op.reshape(mask, (batch, 1, 1, seq))
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.mlm(x, self.embeddings.tokens.weight) if self.is_mlm else self.classify(x)


def build(config: BertConfig) -> ir.IRModule:
    """Build the module of a BERT without allocating weights."""
    tokens = ((config.batch, config.seq), "int32")
    return export_model(
        Bert(config), input_ids=tokens, token_type_ids=tokens, attention_mask=tokens
    )
