# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute matrix products, attention and convolutions of TVM's tensors by PyTorch.

PyTorch sees the tensors of TVM through DLPack, on the CPU or on the GPU where they are, without a
copy. On a GPU both launch their kernels on the default stream, so the order of the calls holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import from_dlpack
from torch.nn.functional import pad, scaled_dot_product_attention
from tvm.runtime import Tensor

from .packed_names import CAUSAL


def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product of two tensors."""
    torch.matmul(from_dlpack(a), from_dlpack(b), out=from_dlpack(out))


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: int, out: Tensor
) -> None:
    """Write attention with a bias that is added to the scores."""
    # TVM: (batch, positions, heads, width); PyTorch: (batch, heads, positions, width).
    queries, keys, values = (from_dlpack(x).transpose(1, 2) for x in (q, k, v))
    rows, columns = queries.shape[2], keys.shape[2]
    offset = abs(columns - rows) if CAUSAL[causal] == "BottomRight" else 0
    mask = None if bias is None else from_dlpack(bias)
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
    from_dlpack(out).copy_(result.transpose(1, 2))


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: int, out: Tensor) -> None:
    """Write attention."""
    attend(q, k, v, None, scale, causal, out)


def conv2d(
    data: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    data_dims: Sequence[int],
    weight_dims: Sequence[int],
    out_dims: Sequence[int],
    out: Tensor,
) -> None:
    """Write a convolution of tensors whose dims are given in the order of NCHW and OIHW."""
    x, w, y = (
        from_dlpack(tensor).permute(*map(int, dims))
        for tensor, dims in ((data, data_dims), (weight, weight_dims), (out, out_dims))
    )
    top, left, bottom, right = (int(n) for n in padding)
    before = [top, left]
    if (top, left) != (bottom, right):
        x, before = pad(x, (left, right, top, bottom)), [0, 0]
    steps, spread = ([int(n) for n in values] for values in (strides, dilation))
    y.copy_(torch.conv2d(x, w, None, steps, before, spread, groups))


def take_backward(grad: Tensor, indices: Tensor, out: Tensor) -> None:
    """Write the gradient of the rows of a matrix that were looked up."""
    table, positions = from_dlpack(out), from_dlpack(indices)
    # An index that is outside of the table adds nothing, as in the kernel of TVM.
    inside = (positions >= 0) & (positions < table.shape[0])
    rows = torch.where(inside[:, None], from_dlpack(grad), 0.0)
    if rows.element_size() < 4:  # on CPUs PyTorch adds rows of half precision in their type
        rows = rows.float()
    positions = torch.where(inside, positions, 0)
    table.copy_(torch.ops.aten.embedding_dense_backward(rows, positions, table.shape[0], -1, False))


FUNCTIONS = {
    "matmul": matmul,
    "attention": attention,
    "attention_bias": attend,
    "conv2d": conv2d,
    "take_backward": take_backward,
}
"""The packed functions, by their names after the prefix."""
