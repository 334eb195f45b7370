# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configurations of decoders with defaults of their own: Llama and Mixtral."""

from __future__ import annotations

from dataclasses import dataclass

from .decoder_config import DecoderConfig


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """Configuration of a Llama, with the sequences of its training."""

    seq: int = 2048


@dataclass(frozen=True)
class MoeConfig(LlamaConfig):
    """Configuration of a Mixtral, whose tokens products with one-hot tables move to experts."""

    vocab: int = 32000
    theta: float = 1e6
    experts: int = 8
    top_k: int = 2
    dispatch: str = "one_hot"
    capacity_factor: float = 1.25
