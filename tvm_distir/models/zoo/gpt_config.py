# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configuration of a GPT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .configs import Fault, FourfoldFfn
from .decoder_config import DecoderConfig


@dataclass(frozen=True)
class GptConfig(FourfoldFfn):
    """Configuration of a GPT-2 style decoder.

    The fields mean what those of :class:`.DecoderConfig` mean, with other defaults; ``ffn`` 0 means
    four times ``hidden``.
    """

    FLAGS = frozenset({"nested", "fused_qkv"})
    MAY_BE_ZERO = frozenset({"ffn", "dropout"})

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 0
    vocab: int = 50257
    positions: int = 1024
    batch: int = 16
    seq: int = 128
    dtype: str = "float32"
    nested: int = 1
    dropout: float = 0.0
    fused_qkv: int = 0
    attention: str = "softmax"

    @property
    def decoder(self) -> DecoderConfig:
        """Return the same model as a configuration of decoders."""
        sizes = {**vars(self), "kv_heads": self.heads, "ffn": self.ffn_dim}
        return DecoderConfig(
            **sizes, tied=1, norm="layer", gated=0, activation="gelu_tanh", qkv_bias=1, o_bias=1,
            ffn_bias=1,
        )  # fmt: skip

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including those of the decoder."""
        yield from super().faults()
        yield from self.decoder.faults()
