# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate views, which reshape or reorder the elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, shape_of

from .aten_call import AtenCall, Converter, axes_of

_op = relax.op
_MOST_INDICES = 1 << 16


def _size(call: AtenCall) -> list[int]:
    """Return the shape of the result, with -1 resolved."""
    shape = [int(n) for n in call["shape" if "shape" in call.names else "size"]]
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = math.prod(shape_of(call["self"])) // known if known else 0
    return shape


def _view(call: AtenCall) -> Expr:
    return call.reshaped(call["self"], _size(call))


def _flatten(call: AtenCall) -> Expr:
    shape = shape_of(call["self"])
    first, last = axes_of([call["start_dim"], call["end_dim"]], len(shape))
    middle = math.prod(shape[first : last + 1])
    return call.reshaped(call["self"], [*shape[:first], middle, *shape[last + 1 :]])


def _unflatten(call: AtenCall) -> Expr:
    shape = shape_of(call["self"])
    axis, sizes = call.axis, [int(n) for n in call["sizes"]]
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[axis] // math.prod(n for n in sizes if n != -1)
    return call.reshaped(call["self"], [*shape[:axis], *sizes, *shape[axis + 1 :]])


def _expand(call: AtenCall) -> Expr:
    shape, size = shape_of(call["self"]), list(call["size"])
    old = [1] * (len(size) - len(shape)) + list(shape)
    return call.broadcast(
        call["self"], [o if n == -1 else int(n) for o, n in zip(old, size, strict=True)]
    )


def _permuted(call: AtenCall, axes: list[int]) -> Expr:
    if axes == list(range(len(axes))):
        return call["self"]
    return call.emit(_op.permute_dims(call["self"], axes))


def _permute(call: AtenCall) -> Expr:
    return _permuted(call, axes_of(call["dims"], len(shape_of(call["self"]))))


def _transpose(call: AtenCall) -> Expr:
    axes = list(range(len(shape_of(call["self"]))))
    if not axes:
        return call["self"]
    a, b = axes_of([call["dim0"], call["dim1"]], len(axes))
    axes[a], axes[b] = axes[b], axes[a]
    return _permuted(call, axes)


def _matrix_transpose(call: AtenCall) -> Expr:
    return _permuted(call, list(range(len(shape_of(call["self"]))))[::-1])


def _unsqueeze(call: AtenCall) -> Expr:
    return call.emit(_op.expand_dims(call["self"], call["dim"]))


def _squeeze(call: AtenCall) -> Expr:
    """Squeeze only dims of size 1, even if others are given."""
    x = call["self"]
    shape = shape_of(x)
    axes = list(range(len(shape)))
    if "dim" in call.names and shape:
        axes = axes_of([call["dim"]] if isinstance(call["dim"], int) else call["dim"], len(shape))
    removed = [axis for axis in sorted(axes) if shape[axis] == 1]
    return call.emit(_op.squeeze(x, removed)) if removed else x


def _strided(call: AtenCall) -> Expr:
    """Return a view of the memory of a contiguous tensor, by rows where these are contiguous."""
    x = call["self"]
    source: Any = call.node.args[0]
    shape, offset = [int(n) for n in call["size"]], int(call["storage_offset"] or 0)
    strides, count = [int(n) for n in call["stride"]], math.prod(shape)
    tensor = source.meta["val"]
    if not tensor.is_contiguous() or int(tensor.storage_offset()):
        raise Unsupported("a strided view of a tensor that is a view")
    if offset + sum((n - 1) * s for n, s in zip(shape, strides)) >= math.prod(shape_of(x)):
        raise Unsupported("a strided view that reaches beyond its tensor")
    flat = call.reshaped(x, [math.prod(shape_of(x))])
    dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if all(n == 1 or a == b for n, a, b in zip(shape, strides, dense)):
        if (offset, count) != (0, math.prod(shape_of(x))):
            flat = call.emit(_op.strided_slice(flat, [0], [offset], [offset + count]))
        return call.reshaped(flat, shape)
    if count > _MOST_INDICES:
        raise Unsupported("a large strided view that is not contiguous")
    grid = np.indices(shape).reshape(len(shape), -1)
    index = offset + np.array(strides, "int64") @ grid
    return call.reshaped(call.emit(_op.take(flat, relax.const(index, "int64"), 0)), shape)


def _flip(call: AtenCall) -> Expr:
    x = call["self"]
    for axis in axes_of(call["dims"], len(shape_of(x))) if call["dims"] else []:
        x = call.emit(_op.flip(x, axis))
    return x


def _repeat(call: AtenCall) -> Expr:
    repeats = [int(n) for n in call["repeats"]]
    x = call["self"]
    x = call.reshaped(x, [1] * (len(repeats) - len(shape_of(x))) + list(shape_of(x)))
    return x if all(n == 1 for n in repeats) else call.emit(_op.tile(x, repeats))


def _repeat_interleave(call: AtenCall) -> Expr:
    if call["dim"] is None:
        raise Unsupported("repeat_interleave over the flattened tensor")
    return call.emit(_op.repeat(call["self"], int(call["repeats"]), call.axis))


CONVERTERS: dict[str, Converter] = by_name(
    (_view, "view.default _unsafe_view.default reshape.default"),
    (_flatten, "flatten.using_ints"),
    (_unflatten, "unflatten.int"),
    (_expand, "expand.default"),
    (lambda call: call.broadcast(call["self"], shape_of(call["other"])), "expand_as.default"),
    (_permute, "permute.default"),
    (_transpose, "transpose.int"),
    (_matrix_transpose, "t.default"),
    (_unsqueeze, "unsqueeze.default"),
    (_squeeze, "squeeze.default squeeze.dim squeeze.dims"),
    (_strided, "as_strided.default"),
    (_flip, "flip.default"),
    (_repeat, "repeat.default"),
    (_repeat_interleave, "repeat_interleave.self_int"),
)
