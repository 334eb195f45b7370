# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute products, attention and convolutions of TVM's tensors by NumPy's BLAS, on CPUs.

NumPy sees the tensors through DLPack without a copy. All operands are float32 or float64; narrower
floats are widened by TVM's kernels around the calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.runtime import Tensor

from .numpy_convolutions import convolve, convolve_transposed
from .packed_names import causal_offset, group_sizes

Array = npt.NDArray[Any]
Order = Sequence[int]

_SCORES = 1 << 18
"""Scores of attention that are computed at once: they stay in the cache."""


def _view(tensor: Tensor, order: Order) -> Array:
    """Return a tensor with its dims in an order."""
    return np.from_dlpack(tensor).transpose(order)


def _result(tensor: Tensor, order: Order) -> Array:
    """Return a tensor that is written, with its dims in an order."""
    array = np.from_dlpack(tensor)
    if not array.flags.writeable:  # before NumPy 2.1
        memory = (ctypes.c_char * array.nbytes).from_address(tensor.data_ptr())
        array = np.ndarray(array.shape, array.dtype, memoryview(memory))
    return array.transpose(order)


def _matrices(view: Array, second: int, third: int) -> Array:
    """Return the matrices ``(batch, rows, columns)`` of groups of dims, as BLAS reads them."""
    matrices = view.reshape(group_sizes(view.shape, second, third))
    if matrices.itemsize in matrices.strides[1:]:
        return matrices
    return np.ascontiguousarray(matrices)


def product(
    a: Tensor, b: Tensor, cuts: Order, a_order: Order, b_order: Order, out_order: Order, out: Tensor
) -> None:
    """Write a product, of tensors in the groups of :class:`.contractions.Contraction`."""
    z = _result(out, out_order)
    left = _matrices(_view(a, a_order), cuts[0], cuts[1])
    right = _matrices(_view(b, b_order), cuts[2], cuts[3])
    sizes = group_sizes(z.shape, cuts[4], cuts[5])
    if sizes[0] == 1:
        left, right, sizes = left[0], right[0], sizes[1:]
    target = z.reshape(sizes)
    if np.may_share_memory(target, z):
        if target.strides[-1] == target.itemsize:
            np.matmul(left, right, out=target)
        else:  # the transposed product has rows
            axes = (-1, -2)
            np.matmul(right.swapaxes(*axes), left.swapaxes(*axes), out=target.swapaxes(*axes))
    else:
        z[...] = np.matmul(left, right).reshape(z.shape)


def _seen(rows: int, columns: int, causal: int) -> Array | None:
    """Return which keys a query sees, or None for all."""
    if causal == 0:
        return None
    return np.tri(rows, columns, causal_offset(rows, columns, causal), dtype=bool)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: int, *orders: Order
) -> None:
    """Write attention with a bias that is added to the scores.

    ``orders`` are those of the operands and of the result, and then the result.
    """
    *read, out_order, out = orders
    queries, keys, values = (_view(x, order).swapaxes(1, 2) for x, order in zip((q, k, v), read))
    result = _result(out, out_order).swapaxes(1, 2)
    batch, heads, rows = queries.shape[:3]
    shared, columns = keys.shape[1:3]
    seen = _seen(rows, columns, causal)
    added = None
    if bias is not None:
        added = np.broadcast_to(_view(bias, read[3]), (batch, heads, rows, columns))
    group = heads // shared
    step = max(1, _SCORES // max(1, rows * columns)) if group == 1 else group
    for sample in range(batch):
        for first in range(0, heads, step):
            some = slice(first, first + step)
            of_keys = some if group == 1 else first // group
            scores = np.matmul(queries[sample, some], keys[sample, of_keys].swapaxes(-1, -2))
            scores *= scores.dtype.type(scale)
            if added is not None:
                scores += added[sample, some]
            if seen is not None:
                scores[..., ~seen] = -np.inf
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            weighted = np.matmul(scores, values[sample, of_keys])
            np.divide(weighted, scores.sum(-1, keepdims=True), out=result[sample, some])


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: int, *orders: Order) -> None:
    """Write attention."""
    attend(q, k, v, None, scale, causal, *orders)


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
    x, w, y = _view(data, data_order), _view(weight, weight_order), _result(out, out_order)
    if output_padding:
        convolve_transposed(x, w, strides, padding, dilation, y)
    else:
        convolve(x, w, strides, padding, dilation, groups, y)


FUNCTIONS: dict[str, Callable[..., None]] = {
    "product": product,
    "attention": attention,
    "attention_bias": attend,
    "convolution": convolution,
}
"""The packed functions, by their names after the prefix."""
