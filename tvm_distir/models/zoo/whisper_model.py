# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define Whisper in relax.nn (Radford et al. 2023): an audio encoder and a text decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .configs import Config, Fault, indivisible
from .float_norms import LayerNorm
from .layers import Attention, FeedForward
from .transformer_blocks import causal_mask, export_model, layer_class, positions


@dataclass(frozen=True)
class WhisperConfig(Config):
    """Configuration of a Whisper.

    Attributes
    ----------
    layers, decoder_layers, hidden, heads, decoder_heads, ffn, decoder_ffn, vocab : int
        Sizes of the encoder and of the decoder.
    mels : int
        Channels of the spectrogram.
    frames : int
        Positions of the encoder; the spectrogram has twice as many.
    positions : int
        Rows of the decoder's table of positions; ``seq`` cannot exceed it.
    batch, seq : int
        Samples, and tokens per sample of the decoder.
    dtype : str
        The dtype of weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: all layers are part of ``main``.
    """

    layers: int = 12
    decoder_layers: int = 12
    hidden: int = 768
    heads: int = 12
    decoder_heads: int = 12
    ffn: int = 3072
    decoder_ffn: int = 3072
    vocab: int = 51865
    mels: int = 80
    frames: int = 1500
    positions: int = 448
    batch: int = 16
    seq: int = 448
    dtype: str = "float32"
    nested: int = 1

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including heads that do not divide, and too few positions."""
        yield from super().faults()
        yield from indivisible("hidden", self.hidden, "heads", self.heads)
        yield from indivisible("hidden", self.hidden, "decoder_heads", self.decoder_heads)
        if self.seq > self.positions:
            yield f"seq={self.seq} exceeds positions={self.positions}", f"Add positions={self.seq}."


class WhisperLayer(nn.Module):  # type: ignore[misc]
    """Layer of the encoder; or of the decoder, which also attends to the encoder's result."""

    def __init__(self, config: WhisperConfig, heads: int, ffn: int, crosses: bool = False) -> None:
        super().__init__()
        hidden, dtype = config.hidden, config.dtype
        self.self_attn = Attention(hidden, heads, dtype, key_bias=False)
        self.self_attn_layer_norm = LayerNorm(hidden, dtype)
        if crosses:
            self.encoder_attn = Attention(hidden, heads, dtype, key_bias=False)
            self.encoder_attn_layer_norm = LayerNorm(hidden, dtype)
        self.mlp = FeedForward(hidden, ffn, dtype)
        self.final_layer_norm = LayerNorm(hidden, dtype)

    def forward(self, x: Tensor, encoded: Tensor = None, mask: Tensor = None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        x = nn.op.add(x, self.self_attn(self.self_attn_layer_norm(x), mask))
        if encoded is not None:
            x = nn.op.add(x, self.encoder_attn(self.encoder_attn_layer_norm(x), None, encoded))
        return nn.op.add(x, self.mlp(self.final_layer_norm(x)))


class AudioEncoder(nn.Module):  # type: ignore[misc]
    """Two convolutions over time and layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        hidden, dtype = config.hidden, config.dtype
        layer = layer_class(WhisperLayer, config.nested, "EncoderLayer")
        self.conv1 = nn.Conv1D(config.mels, hidden, 3, padding=1, bias=True, dtype=dtype)
        self.conv2 = nn.Conv1D(hidden, hidden, 3, stride=2, padding=1, bias=True, dtype=dtype)
        self.embed_positions = nn.Embedding(config.frames, hidden, dtype)
        self.layers = nn.ModuleList(
            [layer(config, config.heads, config.ffn) for _ in range(config.layers)]
        )
        self.layer_norm = LayerNorm(hidden, dtype)

    def forward(self, features: Tensor) -> Tensor:
        """Map (batch, mels, 2 frames) to (batch, frames, hidden)."""
        x = nn.op.gelu(self.conv2(nn.op.gelu(self.conv1(features))))
        x = nn.op.permute_dims(x, [0, 2, 1])
        x = nn.op.add(x, self.embed_positions.weight)
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class TextDecoder(nn.Module):  # type: ignore[misc]
    """Layers over tokens, and the head, which is the token table."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        layer = layer_class(WhisperLayer, config.nested, "DecoderLayer")
        sizes = (config.decoder_heads, config.decoder_ffn)
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, config.dtype)
        self.embed_positions = nn.Embedding(config.positions, config.hidden, config.dtype)
        self.layers = nn.ModuleList(
            [layer(config, *sizes, crosses=True) for _ in range(config.decoder_layers)]
        )
        self.layer_norm = LayerNorm(config.hidden, config.dtype)

    def forward(self, ids: Tensor, encoded: Tensor) -> Tensor:
        """Map ids (batch, seq) to logits (batch, seq, vocab)."""
        position_ids = positions(ids.shape[1])
        x = nn.op.take(self.embed_tokens.weight, ids, axis=0, name="tokens")
        rows = nn.op.take(self.embed_positions.weight, position_ids, axis=0, name="places")
        x, mask = nn.op.add(x, rows), causal_mask(position_ids)
        for layer in self.layers:
            x = layer(x, encoded, mask)
        head = nn.op.permute_dims(self.embed_tokens.weight)
        return nn.op.matmul(self.layer_norm(x), head, name="logits")


class Whisper(nn.Module):  # type: ignore[misc]
    """Model from a spectrogram and token ids to logits."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = AudioEncoder(config), TextDecoder(config)

    def main(self, input_features: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Map (batch, mels, 2 frames) and ids (batch, seq) to logits (batch, seq, vocab)."""
        return self.decoder(decoder_input_ids, self.encoder(input_features))


def build(config: WhisperConfig) -> ir.IRModule:
    """Build the module of a Whisper without allocating weights."""
    return export_model(
        Whisper(config),
        input_features=((config.batch, config.mels, 2 * config.frames), config.dtype),
        decoder_input_ids=((config.batch, config.seq), "int32"),
    )
