# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute sizes of the experts of a decoder from its configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .configs import Fault, indivisible


class ExpertSizes:
    """Mixin of configurations with experts, whose fields it reads."""

    seq: int
    ffn: int
    experts: int
    top_k: int
    expert_ffn: int
    dense_layers: int
    expert_groups: int
    top_groups: int
    capacity_factor: float

    @property
    def expert_width(self) -> int:
        """Return the width of an expert."""
        return self.expert_ffn or self.ffn

    @property
    def capacity(self) -> int:
        """Return the slots of an expert for a sample."""
        if not self.capacity_factor:
            return self.seq
        even = self.seq * self.top_k * self.capacity_factor / self.experts
        return min(self.seq, max(1, math.ceil(even)))

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
        if self.top_groups > self.expert_groups:
            yield (
                f"top_groups={self.top_groups} exceeds expert_groups={self.expert_groups}",
                "Choose a smaller top_groups.",
            )
