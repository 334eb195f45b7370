# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute products, attention and convolutions of TVM's tensors by PyTorch.

PyTorch sees the tensors of TVM through DLPack, on the CPU or on the GPU where they are, without a
copy. On a GPU both launch their kernels on the default stream, so the order of the calls holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import from_dlpack
from torch.nn.functional import pad, scaled_dot_product_attention
from tvm.runtime import Tensor

from . import torch_gpu_attention
from .packed_names import causal_offset, group_sizes

Order = Sequence[int]

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _view(tensor: Tensor, order: Order) -> torch.Tensor:
    """Return a tensor with its dims in an order."""
    return from_dlpack(tensor).permute(tuple(order))


def product(
    a: Tensor, b: Tensor, cuts: Order, a_order: Order, b_order: Order, out_order: Order, out: Tensor
) -> None:
    """Write a product, of tensors in the groups of :class:`.contractions.Contraction`."""
    x, y, z = _view(a, a_order), _view(b, b_order), _view(out, out_order)
    sizes = group_sizes(z.shape, cuts[4], cuts[5])
    left = x.reshape(group_sizes(x.shape, cuts[0], cuts[1]))
    right = y.reshape(group_sizes(y.shape, cuts[2], cuts[3]))
    if sizes[0] == 1:
        left, right, sizes = left[0], right[0], sizes[1:]
    try:
        result = z.view(sizes)
    except RuntimeError:  # the dims of a group are no single stride
        z.copy_(torch.matmul(left, right).view(z.shape))
        return
    torch.matmul(left, right, out=result)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: int, *orders: Order
) -> None:
    """Write attention with a bias that is added to the scores.

    ``orders`` are those of the operands and of the result, and then the result.
    """
    # TVM: (batch, positions, heads, width); PyTorch: (batch, heads, positions, width).
    *read, out_order, out = orders
    queries, keys, values = (_view(x, order).transpose(1, 2) for x, order in zip((q, k, v), read))
    rows, columns = queries.shape[2], keys.shape[2]
    offset = causal_offset(rows, columns, causal)
    mask = None if bias is None else _view(bias, read[3])
    masked = causal != 0 and (offset != 0 or mask is not None)
    if masked:
        seen = torch.ones(rows, columns, dtype=torch.bool, device=queries.device).tril(offset)
        mask = seen if mask is None else mask.masked_fill(~seen, float("-inf"))
    result = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal != 0 and not masked,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    _view(out, out_order).copy_(result.transpose(1, 2))


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: int, *orders: Order) -> None:
    """Write attention."""
    attend(q, k, v, None, scale, causal, *orders)


def _flash_operands(tensors: Sequence[Tensor], orders: Sequence[Order]) -> list[torch.Tensor]:
    """Return queries, keys and values with as many heads, and what has the heads of queries."""
    views = [_view(x, order).transpose(1, 2) for x, order in zip(tensors, orders)]
    group = views[0].shape[1] // views[1].shape[1]
    if group > 1:
        views[1:3] = [x.repeat_interleave(group, 1) for x in views[1:3]]
    return views


def flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: int, *rest: Any) -> None:
    """Write attention and its log-sum-exps; ``rest`` is the orders, and then both results."""
    *orders, out, sums = rest
    queries, keys, values = _flash_operands((q, k, v), orders)
    operands = queries, keys, values
    if queries.is_cuda:
        result, computed = torch_gpu_attention.attention(operands, bool(causal), scale)
    else:
        result, computed = _FLASH(*operands, 0.0, bool(causal), scale=scale)
    from_dlpack(out).copy_(result.transpose(1, 2))
    from_dlpack(sums).copy_(computed)


def flash_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    do: Tensor,
    lse: Tensor,
    scale: float,
    causal: int,
    *rest: Any,
) -> None:
    """Write the gradients of attention; ``rest`` is the orders, and then the results."""
    *orders, sums_order = rest[:6]
    queries, keys, values, result, grad = _flash_operands((q, k, v, o, do), orders)
    sums = _view(lse, sums_order)
    operands = queries, keys, values
    if grad.is_cuda:
        grads = torch_gpu_attention.attention_backward(
            grad, operands, result, sums, bool(causal), scale
        )
    else:
        grads = _FLASH_BACKWARD(grad, *operands, result, sums, 0.0, bool(causal), scale=scale)
    for computed, out in zip(grads, rest[6:]):
        target = from_dlpack(out).transpose(1, 2)
        heads = target.shape[1]
        if computed.shape[1] != heads:  # the gradients of heads that share keys are summed
            computed = computed.unflatten(1, (heads, -1)).sum(2)
        target.copy_(computed)


def convolution(
    data: Tensor,
    weight: Tensor,
    strides: Order,
    padding: Order,
    dilation: Order,
    output_padding: Order,
    groups: int,
    data_order: Order,
    weight_order: Order,
    out_order: Order,
    out: Tensor,
) -> None:
    """Write a convolution; the orders are those of NCHW and OIHW, or of IOHW if transposed.

    It is transposed where it has a padding of the output.
    """
    x, w, y = _view(data, data_order), _view(weight, weight_order), _view(out, out_order)
    half = len(padding) // 2
    before, behind = list(padding[:half]), list(padding[half:])
    if before != behind:
        pairs = [n for pair in zip(before[::-1], behind[::-1]) for n in pair]
        x, before = pad(x, pairs), [0] * half
    added = list(output_padding)
    if added and x.is_cpu and x.element_size() < 4:  # PyTorch would round parts of the sums
        x, w = x.float(), w.float()
    result = torch.convolution(
        x, w, None, list(strides), before, list(dilation), bool(added), added or [0] * half, groups
    )
    y.copy_(result)


def take_backward(grad: Tensor, indices: Tensor, out_order: Order, out: Tensor) -> None:
    """Write the gradient of the rows of a matrix that were looked up."""
    table, positions = _view(out, out_order), from_dlpack(indices)
    # An index that is outside of the table adds nothing, as in the kernel of TVM.
    inside = (positions >= 0) & (positions < table.shape[0])
    rows = torch.where(inside[..., None], from_dlpack(grad), 0.0)
    if rows.element_size() < 4:  # on CPUs PyTorch adds rows of half precision in their type
        rows = rows.float()
    positions = torch.where(inside, positions, 0)
    table.copy_(torch.ops.aten.embedding_dense_backward(rows, positions, table.shape[0], -1, False))


FUNCTIONS = {
    "product": product,
    "attention": attention,
    "attention_bias": attend,
    "flash": flash,
    "flash_backward": flash_backward,
    "convolution": convolution,
    "take_backward": take_backward,
}
"""The packed functions, by their names after the prefix."""
