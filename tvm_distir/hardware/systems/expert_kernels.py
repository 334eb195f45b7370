# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe kernels of experts by sizes, as tables of measured kernels list them.

A kernel computes all three products of gated experts, for the tokens that select them. Its sizes
are ``slots`` (rows of all experts that work, ``SERVED_CAPACITY`` for each), the experts of the
device, the two dims of their matrices, how many experts work on a token, and all experts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EXPERTS = "experts"
ROUTER_SKEW = 1.01
"""The exponent of the power law by which routers are taken to select experts; 0: evenly. It is
assumed: tables have kernels of several, measured with drawn tokens."""
SERVED_CAPACITY = 1.25
"""Slots of an expert in serving steps, relative to an even spread of the tokens, by default."""
_MATRICES = 3
_FEW = 0.55
"""The share of experts that work where each has one slot at most."""


def tokens_of(sizes: Floats) -> Floats:
    """Return the tokens that select experts, from ``sizes`` (rows, 6 or more).

    It is the inverse of the number of slots, but for rounding.
    """
    rows, local_experts, _, _, top_k, experts = sizes.T[:6]
    share = rows / local_experts
    idle = -np.log1p(-np.minimum(top_k / experts, 1 - 1e-9))
    few = -np.log1p(-np.minimum(share, _FEW)) / idle
    many = np.maximum(share, 0.8) * experts / (SERVED_CAPACITY * top_k)
    return np.asarray(np.maximum(np.where(share < _FEW, few, many), 1.0))


def expert_work(sizes: Floats, element_bytes: float) -> tuple[Floats, Floats]:
    """Return FLOPs and bytes of kernels of experts: of tokens, without empty slots."""
    _, local_experts, first, second, top_k, experts = sizes.T[:6]
    tokens = tokens_of(sizes)
    pairs = tokens * top_k * local_experts / experts
    working = np.maximum(local_experts * (1 - (1 - top_k / experts) ** tokens), 1.0)
    moved = _MATRICES * working * first * second * element_bytes + 5 * pairs * (first + second)
    return 2 * _MATRICES * pairs * first * second, moved


def share_of(sizes: Floats, flops: Floats) -> Floats:
    """Return the share of a product, of ``flops`` with empty slots, in its kernel of experts."""
    rows, _, first, second = sizes.T[:4]
    return np.asarray(flops / (2 * _MATRICES * rows * first * second))


def expert_features(sizes: Floats) -> Floats:
    """Return what the residuals of kernels of experts depend on, (rows, features)."""
    rows, local_experts, first, second, top_k, experts, skew = sizes.T
    logs = (tokens_of(sizes), first * second, top_k, experts, local_experts, rows / local_experts)
    aspect = np.abs(np.log(first / second))
    return np.stack([*(np.log(values) for values in logs), aspect, skew], axis=1)
