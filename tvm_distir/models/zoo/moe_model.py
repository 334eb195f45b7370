# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a mixture of experts in relax.nn: Llama layers with Mixtral's feed-forward block.

Each sample is a group of tokens (Lepikhin et al. 2021, "GShard", section 2.2): a token goes to
its ``top_k`` experts, an expert takes at most ``capacity`` tokens of a group, first choices
before second ones and then in order; a token above that is dropped there. Routing is dense: one
matmul puts tokens into the experts' slots, one takes results out, so that every expert has a
buffer of known size, and the buffers of all devices can change hands by an all-to-all. Gates are
the softmax over the chosen logits (Jiang et al. 2024, "Mixtral of Experts", section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir
from tvm.relax.frontend import nn

from .configs import Fault, LlamaConfig
from .llama_model import Llama, LlamaLayer
from .transformer_blocks import Tensor, back_to, export_tokens, in_float32


@dataclass(frozen=True)
class MoeConfig(LlamaConfig):
    """Configuration of a Mixtral style decoder, which extends :class:`LlamaConfig`.

    Attributes
    ----------
    experts, top_k : int
        Experts of a layer, and how many of them work on a token.
    capacity_factor : float
        The number of slots of an expert for a sample, relative to an even spread of its tokens; 0:
        as many as the sample has tokens, so that none is dropped.
    """

    MAY_BE_ZERO = frozenset({"capacity_factor"})

    vocab: int = 32000
    theta: float = 1e6
    experts: int = 8
    top_k: int = 2
    capacity_factor: float = 1.25

    @property
    def capacity(self) -> int:
        """Return the slots of an expert for a sample."""
        if not self.capacity_factor:
            return self.seq
        even = self.seq * self.top_k * self.capacity_factor / self.experts
        return min(self.seq, max(1, math.ceil(even)))

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including fewer experts than a token needs."""
        yield from super().faults()
        if self.top_k > self.experts:
            yield (
                f"top_k={self.top_k} exceeds experts={self.experts}",
                f"Add experts={self.top_k}, or choose a smaller top_k.",
            )


DEFAULT_SIZE = "mixtral-8x7b"
PRESETS = {
    "tiny": MoeConfig(
        2, 64, 8, 4, 96, 512, batch=4, seq=16, dtype="float32", theta=10000.0, experts=4
    ),
    "mixtral-8x7b": MoeConfig(),
    "mixtral-8x22b": MoeConfig(56, 6144, 48, 8, 16384),
}


class Router(nn.Module):  # type: ignore[misc]
    """Router of tokens to slots of experts, with weights.

    The weight table is (hidden, experts), as it is multiplied.
    """

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter((config.hidden, config.experts), config.dtype)

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Route (groups, seq, hidden).

        Returns
        -------
        dispatch : Tensor
            (groups, seq, experts, capacity), 1 where the token takes the slot.
        combine : Tensor
            The same shape: the token's gate there, in ``dtype``.
        """
        config, dtype = self.config, x.dtype
        groups, seq, _ = x.shape
        k, experts, capacity = config.top_k, config.experts, config.capacity
        logits = in_float32(nn.op.matmul(x, self.weight, name="router_logits"))
        values, indices = nn.op.topk(logits, k, axis=-1)
        gates = nn.op.softmax(values, axis=-1, name="gates")
        chosen = self._one_hot(indices, experts)
        order = nn.op.permute_dims(chosen, [0, 2, 1, 3])
        order = nn.op.reshape(order, (groups, k * seq, experts))
        before = nn.op.reshape(
            nn.op.cumsum(order, axis=1, exclusive=True), (groups, k, seq, experts)
        )
        before = nn.op.permute_dims(before, [0, 2, 1, 3])
        place = nn.op.sum(nn.op.multiply(before, chosen), axis=3, name="place")
        slots = self._one_hot(nn.op.astype(place, "int32"), capacity)
        pairs = nn.op.permute_dims(chosen, [0, 1, 3, 2])
        weighted = nn.op.multiply(pairs, nn.op.unsqueeze(gates, 2))
        dispatch = nn.op.matmul(pairs, slots, name="dispatch")
        combine = nn.op.matmul(weighted, slots, name="combine")
        return back_to(dispatch, dtype), back_to(combine, dtype)

    @staticmethod
    def _one_hot(indices: Any, size: int) -> Any:
        """Map int32 (...) to float32 (..., size), with 1 at the index if it is in range."""
        numbers = Tensor.from_const(np.arange(size, dtype="int32"))
        same = nn.op.equal(nn.op.unsqueeze(indices, indices.ndim), numbers)
        return nn.op.astype(same, "float32")


class Experts(nn.Module):  # type: ignore[misc]
    """SwiGLU experts with stacked weights (experts, in, out), and their router."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        up = (config.experts, config.hidden, config.ffn)
        down = (config.experts, config.ffn, config.hidden)
        self.router = Router(config)
        self.gate_proj = nn.Parameter(up, config.dtype)
        self.up_proj = nn.Parameter(up, config.dtype)
        self.down_proj = nn.Parameter(down, config.dtype)

    def forward(self, x: Any) -> Any:
        """Map (groups, seq, hidden) to the same shape."""
        groups, seq, hidden = x.shape
        experts, capacity = self.config.experts, self.config.capacity
        dispatch, combine = self.router(x)
        slots = experts * capacity
        into = nn.op.permute_dims(nn.op.reshape(dispatch, (groups, seq, slots)), [0, 2, 1])
        expert_rows = nn.op.reshape(
            nn.op.matmul(into, x, name="dispatched"), (groups, experts, capacity, hidden)
        )
        expert_rows = nn.op.reshape(
            nn.op.permute_dims(expert_rows, [1, 0, 2, 3]), (experts, groups * capacity, hidden)
        )
        gate = nn.op.silu(nn.op.matmul(expert_rows, self.gate_proj, name="gate"))
        up = nn.op.matmul(expert_rows, self.up_proj, name="up")
        outputs = nn.op.matmul(nn.op.multiply(gate, up), self.down_proj, name="made")
        outputs = nn.op.permute_dims(
            nn.op.reshape(outputs, (experts, groups, capacity, hidden)), [1, 0, 2, 3]
        )
        outputs = nn.op.reshape(outputs, (groups, slots, hidden))
        return nn.op.matmul(nn.op.reshape(combine, (groups, seq, slots)), outputs, name="combined")


class MoeLayer(LlamaLayer):
    """Transformer layer with experts."""

    feed_forward = Experts


class Moe(Llama):
    """Model from token ids to logits."""

    layer = MoeLayer


def build(config: MoeConfig) -> ir.IRModule:
    """Build the module of a mixture of experts without allocating weights."""
    return export_tokens(Moe(config), config.batch, config.seq)
