# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute attention and its gradients by the kernels that PyTorch has for GPUs.

Flash attention takes half precision, as many queries as keys where it is causal, and heads up to
256 wide. The memory-efficient kernels take all other operands, float32 too, and pad log-sum-exps to
a multiple of 32 rows.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

_ATEN = torch.ops.aten
_WIDEST = 256
_PADDED_ROWS = 32

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, of ``(batch, heads, positions, width)`` and as many heads."""


def _is_flash(operands: Operands, causal: bool) -> bool:
    q, k, _ = operands
    square = not causal or q.shape[2] == k.shape[2]
    return bool(square and q.element_size() == 2 and q.shape[3] <= _WIDEST)


def _with_rows(operands: Operands) -> Operands:
    """Copy operands whose last dim is strided, which the kernels cannot read."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in operands)
    return q, k, v


def attention(operands: Operands, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and the log-sum-exps ``(batch, heads, positions)``."""
    operands = _with_rows(operands)
    if _is_flash(operands, causal):
        op = _ATEN._scaled_dot_product_flash_attention
        computed = op(*operands, 0.0, causal, False, scale=scale)
    else:
        op = _ATEN._scaled_dot_product_efficient_attention
        computed = op(*operands, None, True, 0.0, causal, scale=scale)
    return computed[0], computed[1][..., : operands[0].shape[2]]


def attention_backward(
    grad: torch.Tensor,
    operands: Operands,
    result: torch.Tensor,
    sums: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of queries, keys and values.

    The kernels read the state of a random generator for dropout alone, of which there is none.
    """
    operands = _with_rows(operands)
    rows, columns = operands[0].shape[2], operands[1].shape[2]
    state = torch.zeros((), dtype=torch.int64, device=grad.device)
    if _is_flash(operands, causal):
        state = torch.zeros(2, dtype=torch.uint64, device=grad.device)
        op = _ATEN._scaled_dot_product_flash_attention_backward
        sizes = (None, None, rows, columns)
        computed = op(
            *(grad, *operands, result, sums.contiguous(), *sizes),
            *(0.0, causal, state, state[0]),
            scale=scale,
        )
    else:
        padded = pad(sums, (0, -rows % _PADDED_ROWS), value=torch.inf)
        op = _ATEN._scaled_dot_product_efficient_attention_backward
        computed = op(
            *(grad, *operands, None, result, padded, state, state),
            *(0.0, [True, True, True, False], causal),
            scale=scale,
        )
    return tuple(computed[:3])
