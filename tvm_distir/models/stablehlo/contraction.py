# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate products of tensors and convolutions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.models.mlir.tree import Opaque

from .operation_call import Converter, HloCall
from .translated_values import TranslatedTensor, integers

_op = relax.op
_SIDES = re.compile(r"\[(.*?)\]\s*x\s*\[(.*?)\]\s*->\s*\[(.*?)\]")
_CONVOLUTIONS = {1: _op.nn.conv1d, 2: _op.nn.conv2d, 3: _op.nn.conv3d}


def _picked(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    return [shape[dim] for dim in dims]


def _dot_general(call: HloCall) -> TranslatedTensor:
    """Translate to a matmul, merging dims only where a side has several free or contracted ones."""
    numbers, write = call.numbers("dot_dimension_numbers"), call.write
    batch, other_batch, inner, other_inner = (
        integers(numbers.get(f"{side}_{kind}_dimensions"))
        for kind in ("batching", "contracting")
        for side in ("lhs", "rhs")
    )
    x, y = call.full(0), call.full(1)
    if dtype_of(x) != dtype_of(y):  # a gradient of a product that accumulates in float32
        x, y = (write.cast(side, call.dtype) for side in (x, y))
    left, right = shape_of(x), shape_of(y)
    out = call.dtype if dtype_of(x) != call.dtype else None
    free = [i for i in range(len(left)) if i not in batch + inner]
    other_free = [i for i in range(len(right)) if i not in other_batch + other_inner]
    turned = write.permute(y, other_batch + other_inner + other_free)
    x = write.permute(x, batch + free + inner)
    lead, rows, columns = (_picked(left, batch), _picked(left, free), _picked(right, other_free))
    if not inner:
        x = write.reshape(x, lead + rows + [1] * len(columns))
        y = write.reshape(turned, lead + [1] * len(rows) + columns)
        return TranslatedTensor(write.cast(write.emit(_op.multiply(x, y)), call.dtype), call.shape)
    depth = [math.prod(_picked(left, inner))]
    if batch and len(rows) != 1:
        rows = [math.prod(rows)]
    if batch or len(columns) > 1:
        columns = [math.prod(columns)]
    x = write.reshape(x, lead + (rows or [1]) + depth)
    y = write.reshape(turned, lead + depth + columns)
    product = write.emit(_op.matmul(x, y, out_dtype=out))
    return TranslatedTensor(write.reshape(product, call.shape), call.shape)


def _convolution(call: HloCall) -> TranslatedTensor:
    dims = call.attribute("dimension_numbers")
    sides = _SIDES.search(dims.body) if isinstance(dims, Opaque) else None
    if sides is None:
        raise Unsupported("the dims of a convolution cannot be read")
    data, kernel, result = ([word.strip() for word in side.split(",")] for side in sides.groups())
    rank = len(data) - 2
    if rank not in _CONVOLUTIONS:
        raise Unsupported(f"a convolution over {rank} dims")
    spatial, write = [str(i) for i in range(rank)], call.write
    ones = [1] * rank
    x = write.permute(call.full(0), [data.index(w) for w in ["b", "f", *spatial]])
    weight = write.permute(call.full(1), [kernel.index(w) for w in ["o", "i", *spatial]])
    for i, turned in enumerate(call.integers("window_reversal", [0] * rank)):
        weight = write.emit(_op.flip(weight, 2 + i)) if turned else weight
    groups = int(call.attribute("feature_group_count", 1))
    batch_groups = int(call.attribute("batch_group_count", 1))
    if batch_groups > 1:
        x, groups = _as_channels(call, x, batch_groups), batch_groups
    pads = call.pairs("padding", rank)
    gaps = [n - 1 for n in call.integers("lhs_dilation", ones)]
    edge = [0, 0]
    if any(gaps) or any(n < 0 for pair in pads for n in pair):
        low = edge + [min(a, 0) for a, _ in pads]
        high = edge + [min(b, 0) for _, b in pads]
        x = write.pad(x, low, high, edge + gaps)
        pads = [(max(a, 0), max(b, 0)) for a, b in pads]
    convolved = write.emit(
        _CONVOLUTIONS[rank](
            x,
            weight,
            strides=call.integers("window_strides", ones),
            padding=[a for a, _ in pads] + [b for _, b in pads],
            dilation=call.integers("rhs_dilation", ones),
            groups=groups,
            out_dtype=call.dtype if call.dtype != dtype_of(x) else None,
        )
    )
    order = ["b", "f", *spatial]
    return write.value(write.permute(convolved, [order.index(word) for word in result]))


def _as_channels(call: HloCall, x: Expr, groups: int) -> Expr:
    """Turn groups of the batch into groups of channels: ``(G b, c, ...)`` to ``(b, G c, ...)``."""
    batch, channels, *rest = shape_of(x)
    grouped = call.write.reshape(x, [groups, batch // groups, channels, *rest])
    turned = call.write.permute(grouped, [1, 0, *range(2, len(rest) + 3)])
    return call.write.reshape(turned, [batch // groups, groups * channels, *rest])


CONVERTERS: dict[str, Converter] = {
    "stablehlo.dot_general": _dot_general,
    "stablehlo.convolution": _convolution,
}
