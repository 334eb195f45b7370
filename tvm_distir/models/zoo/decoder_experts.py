# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute sizes of the experts of a decoder from its configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .configs import Config, Fault, indivisible


@dataclass(frozen=True)
class ExpertSizes(Config):
    """Fields of a decoder that determine the sizes of its experts (:class:`.DecoderConfig`)."""

    seq: int = 4096
    ffn: int = 14336
    experts: int = 0
    top_k: int = 1
    expert_ffn: int = 0
    dense_layers: int = 0
    expert_groups: int = 1
    top_groups: int = 1
    capacity_factor: float = 1.0
    token_groups: int = 1

    @property
    def expert_width(self) -> int:
        """Return the width of an expert."""
        return self.expert_ffn or self.ffn

    @property
    def capacity(self) -> int:
        """Return the slots of an expert for a group of tokens."""
        tokens = self.seq // self.token_groups
        if not self.capacity_factor:
            return tokens
        even = tokens * self.top_k * self.capacity_factor / self.experts
        return min(tokens, max(1, math.ceil(even)))

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return bool(self.experts) and layer >= self.dense_layers

    def expert_faults(self) -> Iterator[Fault]:
        """Yield faults of the numbers of experts and groups."""
        if self.top_k > self.experts:
            yield (
                f"top_k={self.top_k} exceeds experts={self.experts}",
                f"Add experts={self.top_k}, or choose a smaller top_k.",
            )
        yield from indivisible("experts", self.experts, "expert_groups", self.expert_groups)
        yield from indivisible("seq", self.seq, "token_groups", self.token_groups)
        if self.top_groups > self.expert_groups:
            yield (
                f"top_groups={self.top_groups} exceeds expert_groups={self.expert_groups}",
                "Choose a smaller top_groups.",
            )
