# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define experts to which tokens are permuted, in relax.nn.

Each sample is a group of tokens, or several of them (Lepikhin et al. 2021, "GShard", section 2.2):
a token goes to its ``top_k`` experts, an expert takes at most ``capacity`` tokens of a group, first
choices before second ones and then in order; a token above that is dropped there. The rows of the
tokens
are read into the slots of the experts, and the results are read back: no product with a one-hot
table. Every expert has a buffer of known size, so that the buffers of all devices can change
hands by an all-to-all.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .decoder_config import DecoderConfig
from .layers import FeedForward, activation
from .transformer_blocks import back_to, emit, in_float32, part, split_tokens

_GPT_OSS_SLOPE = 1.702
"""Slope of the sigmoid in GPT-OSS's gated activation, as its published code has it."""


def activated(config: DecoderConfig, gate: Tensor) -> Tensor:
    """Return the activation of the gates of experts."""
    limit = config.swiglu_limit
    if not limit:
        return activation(config.activation, gate)
    gate = nn.op.minimum(gate, Tensor.from_scalar(limit, gate.dtype))
    slope = Tensor.from_scalar(_GPT_OSS_SLOPE, gate.dtype)
    return nn.op.multiply(gate, nn.op.sigmoid(nn.op.multiply(gate, slope)))


def bounded(config: DecoderConfig, up: Tensor) -> Tensor:
    """Return the values that the gates of experts multiply."""
    limit = config.swiglu_limit
    if not limit:
        return up
    up = emit(relax.op.clip(up._expr, -limit, limit), "bounded")
    return nn.op.add(up, Tensor.from_scalar(1.0, up.dtype))


def feed_forward(config: DecoderConfig, inner: int) -> FeedForward:
    """Return the feed-forward block of a configuration, ``inner`` elements wide."""
    flags = (bool(config.ffn_bias), bool(config.gated))
    return FeedForward(config.hidden, inner, config.dtype, config.activation, *flags)


class ExpertRouter(nn.Module):  # type: ignore[misc]
    """ExpertRouter of tokens to experts; its weight is (hidden, experts), as it is multiplied."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter((config.hidden, config.experts), config.dtype)
        if config.expert_bias:
            self.bias = nn.Parameter((config.experts,), config.dtype)
        if config.routing == "sigmoid":
            self.correction = nn.Parameter((config.experts,), "float32")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Select experts for the tokens of (groups, seq, hidden).

        Returns
        -------
        gates : Tensor
            float32 (groups, seq, top_k).
        indices : Tensor
            int32 (groups, seq, top_k).
        """
        config = self.config
        logits = nn.op.matmul(x, self.weight, name="router_logits")
        if config.expert_bias:
            logits = nn.op.add(logits, self.bias)
        logits = in_float32(logits)
        if config.routing == "softmax":
            values, indices = nn.op.topk(logits, config.top_k, axis=-1)
            gates = nn.op.softmax(values, axis=-1, name="gates")
        elif config.routing == "softmax_all":
            probabilities = nn.op.softmax(logits, axis=-1, name="probabilities")
            gates, indices = nn.op.topk(self._admitted(probabilities, 1), config.top_k, axis=-1)
        else:
            scores = nn.op.sigmoid(logits, name="scores")
            choice = nn.op.add(scores, self.correction, name="choice")
            _, indices = nn.op.topk(self._admitted(choice, 2), config.top_k, axis=-1)
            gates = emit(relax.op.gather_elements(scores._expr, indices._expr, axis=2), "gates")
            total = nn.op.sum(gates, axis=-1, keepdims=True)
            gates = nn.op.divide(gates, nn.op.add(total, Tensor.from_scalar(1e-20, "float32")))
        if config.routing_scale != 1.0:
            gates = nn.op.multiply(gates, Tensor.from_scalar(config.routing_scale, "float32"))
        return gates, indices

    def _admitted(self, choice: Tensor, count_of_best: int) -> Tensor:
        """Return scores (groups, seq, experts), 0 for experts that a token may not use.

        It may use those of the groups of experts with the largest sums of their best scores.
        """
        config = self.config
        if config.top_groups == config.expert_groups:
            return choice
        groups, seq, experts = choice.shape
        count, size = config.expert_groups, experts // config.expert_groups
        by_group = nn.op.reshape(choice, (groups, seq, count, size))
        best, _ = nn.op.topk(by_group, min(count_of_best, size), axis=-1)
        _, admitted = nn.op.topk(nn.op.sum(best, axis=-1), config.top_groups, axis=-1)
        numbers = Tensor.from_const(np.arange(count, dtype="int32"))
        same = nn.op.equal(nn.op.unsqueeze(admitted, 3), numbers)
        mask = nn.op.sum(nn.op.astype(same, "float32"), axis=2)
        masked = nn.op.multiply(by_group, nn.op.unsqueeze(mask, 3), name="admitted")
        return nn.op.reshape(masked, (groups, seq, experts))


def rows_at(x: Tensor, index: Tensor, name: str) -> Tensor:
    """Return the rows (*groups, count, hidden) of ``x`` at int32 (*groups, count) places."""
    position = nn.op.unsqueeze(nn.op.astype(index, "int64"), index.ndim)
    return emit(relax.op.gather_nd(x._expr, position._expr, batch_dims=index.ndim - 1), name)


class Permutation:
    """The slots of experts that tokens take.

    Parameters
    ----------
    indices : Tensor
        int32 (*groups, seq, top_k), the expert of each choice.
    config : DecoderConfig

    Attributes
    ----------
    admitted : Tensor
        float32 (*groups, seq, top_k), 1 where the choice has a slot.
    slot_of_choice : Tensor
        int32 (*groups, seq * top_k): where the result of a choice is; the last slot without one.
    token_of_slot : Tensor
        int32 (*groups, experts * capacity): the token in each slot; 0 where the slot is empty.
    """

    def __init__(self, indices: Tensor, config: DecoderConfig) -> None:
        *groups, seq, k = indices.shape
        at = len(groups)
        swapped = [*range(at), at + 1, at]
        experts, capacity = config.experts, config.capacity
        slots = experts * capacity
        order = nn.op.reshape(nn.op.permute_dims(indices, swapped), (*groups, k * seq))
        numbers = Tensor.from_const(np.arange(experts, dtype="int32"))
        chosen = nn.op.astype(nn.op.equal(nn.op.unsqueeze(order, at + 1), numbers), "int32")
        before = nn.op.cumsum(chosen, axis=at, exclusive=True)
        position = nn.op.sum(nn.op.multiply(before, chosen), axis=at + 1, name="place")
        fits = nn.op.less(position, Tensor.from_scalar(capacity, "int32"))
        slot = nn.op.add(nn.op.multiply(order, Tensor.from_scalar(capacity, "int32")), position)
        slot = nn.op.where(fits, slot, Tensor.from_scalar(slots, "int32"), name="slot")
        token = np.tile(np.arange(seq, dtype="int32"), k).reshape(*[1] * at, k * seq)
        token = nn.op.broadcast_to(Tensor.from_const(token), (*groups, k * seq))
        empty = nn.op.zeros((*groups, slots + 1), "int32")
        filled = emit(
            relax.op.scatter_elements(empty._expr, slot._expr, token._expr, axis=at), "filled"
        )
        self.token_of_slot = part(filled, 0, slots, "token_of_slot", axis=at)
        by_token = nn.op.permute_dims(nn.op.reshape(slot, (*groups, k, seq)), swapped)
        last = Tensor.from_scalar(slots - 1, "int32")
        self.slot_of_choice = nn.op.reshape(nn.op.minimum(by_token, last), (*groups, seq * k))
        self.admitted = nn.op.astype(
            nn.op.less(by_token, Tensor.from_scalar(slots, "int32")), "float32"
        )


class Mixture(nn.Module):  # type: ignore[misc]
    """Experts with stacked weights (experts, in, out), their router, and a shared expert."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, dtype = config, config.dtype
        experts, hidden, inner = config.experts, config.hidden, config.expert_width
        self.router = ExpertRouter(config)
        self.gate_proj = nn.Parameter((experts, hidden, inner), dtype)
        self.up_proj = nn.Parameter((experts, hidden, inner), dtype)
        self.down_proj = nn.Parameter((experts, inner, hidden), dtype)
        if config.expert_bias:
            self.gate_bias = nn.Parameter((experts, 1, inner), dtype)
            self.up_bias = nn.Parameter((experts, 1, inner), dtype)
            self.down_bias = nn.Parameter((experts, 1, hidden), dtype)
        if config.shared_ffn:
            self.shared_experts = feed_forward(config, config.shared_ffn)
        if config.shared_gate:
            self.shared_gate = nn.Linear(hidden, 1, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (groups, seq, hidden) to the same shape."""
        gates, indices = self.router(x)
        result = self.mixed(x, gates, indices)
        if self.config.shared_ffn:
            shared = in_float32(self.shared_experts(x))
            if self.config.shared_gate:
                gate = nn.op.sigmoid(in_float32(self.shared_gate(x)), name="shared_gate")
                shared = nn.op.multiply(shared, gate)
            result = nn.op.add(in_float32(result), shared)
        return back_to(result, x.dtype)

    def mixed(self, x: Tensor, gates: Tensor, indices: Tensor) -> Tensor:
        """Return the sums of the results of experts, weighted by the gates of their tokens."""
        shape, groups = x.shape, self.config.token_groups
        x, gates, indices = (split_tokens(value, groups) for value in (x, gates, indices))
        permutation = Permutation(indices, self.config)
        outputs = self.by_expert(rows_at(x, permutation.token_of_slot, "dispatched"))
        rows = rows_at(outputs, permutation.slot_of_choice, "returned")
        rows = in_float32(nn.op.reshape(rows, (*indices.shape, shape[2])))
        at = indices.ndim - 1
        weights = nn.op.unsqueeze(nn.op.multiply(gates, permutation.admitted), at + 1)
        result = nn.op.sum(nn.op.multiply(rows, weights), axis=at, name="combined")
        return result if groups == 1 else nn.op.reshape(result, shape)

    def by_expert(self, rows: Tensor) -> Tensor:
        """Map the rows in slots of experts, (*groups, experts * capacity, hidden), to results."""
        config = self.config
        (*groups, slots, hidden), experts = rows.shape, config.experts
        at = len(groups)
        rows = nn.op.reshape(rows, (*groups, experts, config.capacity, hidden))
        rows = nn.op.permute_dims(rows, [at, *range(at), at + 1, at + 2])
        rows = nn.op.reshape(rows, (experts, math.prod(groups) * config.capacity, hidden))
        gate = activated(config, self._biased(self.product(rows, self.gate_proj, "gate"), "gate"))
        up = bounded(config, self._biased(self.product(rows, self.up_proj, "up"), "up"))
        inner = nn.op.multiply(gate, up)
        rows = self._biased(self.product(inner, self.down_proj, "outputs"), "down")
        rows = nn.op.reshape(rows, (experts, *groups, config.capacity, hidden))
        rows = nn.op.permute_dims(rows, [*range(1, at + 1), 0, at + 1, at + 2])
        return nn.op.reshape(rows, (*groups, slots, hidden))

    def _biased(self, x: Tensor, name: str) -> Tensor:
        """Add the biases of the experts, where they have some."""
        return nn.op.add(x, getattr(self, f"{name}_bias")) if self.config.expert_bias else x

    def product(self, rows: Tensor, weight: Tensor, name: str) -> Tensor:
        """Multiply (experts, rows, in) by the matrices of the experts, (experts, in, out)."""
        return nn.op.matmul(rows, weight, name=name)


class OneHotMixture(Mixture):
    """Experts whose slots one product fills with tokens, and another one empties.

    Tokens take the same slots as those of :class:`.mixture.Mixture`.
    """

    def mixed(self, x: Tensor, gates: Tensor, indices: Tensor) -> Tensor:
        """Return the sums of the results of experts, weighted by the gates of their tokens."""
        shape = x.shape
        parts = (split_tokens(value, self.config.token_groups) for value in (x, gates, indices))
        x, gates, indices = parts
        *groups, seq, _ = x.shape
        at = len(groups)
        slots = self.config.experts * self.config.capacity
        dispatch, combine = self._tables(gates, indices, x.dtype)
        dispatch = nn.op.reshape(dispatch, (*groups, seq, slots))
        into = nn.op.permute_dims(dispatch, [*range(at), at + 1, at])
        outputs = self.by_expert(nn.op.matmul(into, x, name="dispatched"))
        combine = nn.op.reshape(combine, (*groups, seq, slots))
        result = nn.op.matmul(combine, outputs, name="combined")
        return result if x.shape == shape else nn.op.reshape(result, shape)

    def _tables(self, gates: Tensor, indices: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
        """Return the tables of the choices of tokens, (*groups, seq, top_k).

        Returns
        -------
        dispatch : Tensor
            (*groups, seq, experts, capacity), 1 where the token takes the slot.
        combine : Tensor
            The same shape: the token's gate there.
        """
        *groups, seq, k = indices.shape
        experts, at = self.config.experts, len(groups)
        swapped = [*range(at), at + 1, at, at + 2]
        chosen = _one_hot(indices, experts)
        order = nn.op.permute_dims(chosen, swapped)
        order = nn.op.reshape(order, (*groups, k * seq, experts))
        before = nn.op.reshape(
            nn.op.cumsum(order, axis=at, exclusive=True), (*groups, k, seq, experts)
        )
        before = nn.op.permute_dims(before, swapped)
        position = nn.op.sum(nn.op.multiply(before, chosen), axis=at + 2, name="place")
        slots = _one_hot(nn.op.astype(position, "int32"), self.config.capacity)
        pairs = nn.op.permute_dims(chosen, [*range(at + 1), at + 2, at + 1])
        weighted = nn.op.multiply(pairs, nn.op.unsqueeze(gates, at + 1))
        dispatch = nn.op.matmul(pairs, slots, name="dispatch")
        combine = nn.op.matmul(weighted, slots, name="combine")
        return back_to(dispatch, dtype), back_to(combine, dtype)


def _one_hot(indices: Tensor, size: int) -> Tensor:
    """Map int32 (...) to float32 (..., size), with 1 at the index if it is in range."""
    numbers = Tensor.from_const(np.arange(size, dtype="int32"))
    return nn.op.astype(nn.op.equal(nn.op.unsqueeze(indices, indices.ndim), numbers), "float32")
