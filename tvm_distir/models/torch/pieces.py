# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate slices, splits, padding and concatenation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, axis_of, constant

_op = relax.op
_MOST = 2**63 - 1
"""Torch's word for the end of a dim."""


def _cat(call: AtenCall) -> Expr:
    parts = [call.cast(part, call.dtype) for part in call["tensors"]]
    aligned = [part for part in parts if shape_of(part) != (0,)]  # torch passes over empty vectors
    if not aligned:
        return parts[0]
    axis = axis_of(call["dim"], len(shape_of(aligned[0])))
    nonempty = [part for part in aligned if shape_of(part)[axis] != 0] or aligned[:1]
    return nonempty[0] if len(nonempty) == 1 else call.emit(_op.concat(nonempty, axis))


def _stack(call: AtenCall) -> Expr:
    parts = [call.cast(part, call.dtype) for part in call["tensors"]]
    axis = axis_of(call["dim"], len(shape_of(parts[0])) + 1)
    return call.emit(_op.concat([call.emit(_op.expand_dims(part, axis)) for part in parts], axis))


def _cut(call: AtenCall, sizes: list[int]) -> list[Expr]:
    if len(sizes) == 1:
        return [call["self"]]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    parts = call.emit(_op.split(call["self"], ends, call.axis))
    return [call.emit(relax.TupleGetItem(parts, i)) for i in range(len(sizes))]


def _in_pieces(call: AtenCall, size: int) -> list[Expr]:
    total = shape_of(call["self"])[call.axis]
    return _cut(call, [min(size, total - begin) for begin in range(0, total, size)])


def _split(call: AtenCall) -> Expr:
    if "split_sizes" in call.names:
        return _cut(call, [int(n) for n in call["split_sizes"]])
    return _in_pieces(call, call["split_size"])


def _chunk(call: AtenCall) -> Expr:
    return _in_pieces(call, -(-shape_of(call["self"])[call.axis] // call["chunks"]))


def _unbind(call: AtenCall) -> Expr:
    parts = _cut(call, [1] * shape_of(call["self"])[call.axis])
    return [call.emit(_op.squeeze(part, [call.axis])) for part in parts]


def sliced(call: AtenCall, x: Expr, axis: int, begin: int, end: int, step: int = 1) -> Expr:
    """Return ``x[begin:end:step]`` along an axis, with bounds as in Python."""
    total = shape_of(x)[axis]
    first, last, _ = slice(begin, end, step).indices(total)
    if (first, step) == (0, 1) and last >= total:
        return x
    return call.emit(_op.strided_slice(x, [axis], [first], [max(last, first)], [step]))


def _slice(call: AtenCall) -> Expr:
    begin, end = call["start"] or 0, _MOST if call["end"] is None else call["end"]
    return sliced(call, call["self"], call.axis, begin, end, call["step"])


def _narrow(call: AtenCall) -> Expr:
    x, begin = call["self"], call["start"]
    begin = begin + shape_of(x)[call.axis] if begin < 0 else begin
    return sliced(call, x, call.axis, begin, begin + call["length"])


def _select(call: AtenCall) -> Expr:
    x, axis, index = call["self"], call.axis, call["index"]
    index = index + shape_of(x)[axis] if index < 0 else index
    return call.emit(_op.squeeze(sliced(call, x, axis, index, index + 1), [axis]))


def _unfold(call: AtenCall) -> Expr:
    """Return the windows along an axis, whose elements are a new last axis."""
    x, width, step = call["self"], int(call["size"]), int(call["step"])
    shape = shape_of(x)
    axis = axis_of(call["dimension"], len(shape))
    count = (shape[axis] - width) // step + 1
    if step == width:
        rows = sliced(call, x, axis, 0, count * width)
        windows = call.reshaped(rows, [*shape[:axis], count, width, *shape[axis + 1 :]])
    else:
        index = np.arange(count)[:, None] * step + np.arange(width)
        windows = call.emit(_op.take(x, relax.const(index, "int64"), axis))
    order = [d for d in range(len(shape) + 1) if d != axis + 1]
    return call.emit(_op.permute_dims(windows, [*order, axis + 1]))


def _roll(call: AtenCall) -> Expr:
    x = call["self"]
    if not call["dims"]:
        raise Unsupported("a roll over the flattened tensor")
    for shift, dim in zip(call["shifts"], call["dims"], strict=True):
        axis = axis_of(dim, len(shape_of(x)))
        size = shape_of(x)[axis]
        boundary = -shift % size
        if boundary:
            parts = [sliced(call, x, axis, boundary, size), sliced(call, x, axis, 0, boundary)]
            x = call.emit(_op.concat(parts, axis))
    return x


def _pad(call: AtenCall) -> Expr:
    if "mode" in call.names and call["mode"] != "constant":
        raise Unsupported(f'padding of the mode "{call["mode"]}"')
    x, pads = call["self"], [int(n) for n in call["pad"]]
    widths = [(0, 0)] * (len(shape_of(x)) - len(pads) // 2)
    widths += list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    for axis, (before, after) in enumerate(widths):
        if before < 0 or after < 0:  # torch crops
            x = sliced(call, x, axis, max(-before, 0), shape_of(x)[axis] + min(after, 0))
    flat = [max(n, 0) for pair in widths for n in pair]
    if not any(flat):
        return x
    value, dtype = call["value"] or 0.0, dtype_of(x)
    if dtype != "bool":
        return call.emit(_op.nn.pad(x, flat, pad_value=float(value)))
    padded = call.emit(_op.nn.pad(call.cast(x, "int8"), flat, pad_value=float(bool(value))))
    return call.cast(padded, dtype)


def _diff(call: AtenCall) -> Expr:
    axis, ends = call.axis, [call["prepend"], call["self"], call["append"]]
    present = [part for part in ends if part is not None]
    x = present[0] if len(present) == 1 else call.emit(_op.concat(present, axis))
    for _ in range(call["n"]):
        size = shape_of(x)[axis]
        later, sooner = sliced(call, x, axis, 1, size), sliced(call, x, axis, 0, size - 1)
        make = _op.not_equal if call.dtype == "bool" else _op.subtract
        x = call.emit(make(later, sooner))
    return x


def _slice_scatter(call: AtenCall) -> Expr:
    size = shape_of(call["self"])[call.axis]
    end = size if call["end"] is None else call["end"]
    first, last, step = slice(call["start"] or 0, end, call["step"]).indices(size)
    src = call.cast(call["src"], dtype_of(call["self"]))
    if step != 1:
        return _interleaved(call, np.arange(first, last, step), src)
    return _written(call, first, last, src)


def _interleaved(call: AtenCall, rows: npt.NDArray[np.int64], src: Expr) -> Expr:
    """Return ``self`` with other rows at some indices: a choice between two tensors."""
    shape = shape_of(call["self"])
    sources = np.zeros(shape[call.axis], "int64")
    is_written = np.zeros((shape[call.axis], *[1] * (len(shape) - call.axis - 1)), "bool")
    sources[rows], is_written[rows] = np.arange(len(rows)), True
    spread = call.emit(_op.take(src, constant(sources, "int64"), call.axis))
    return call.emit(_op.where(constant(is_written, "bool"), spread, call["self"]))


def _written(call: AtenCall, first: int, last: int, src: Expr) -> Expr:
    """Return ``self`` with other rows from the first up to the last."""
    x, axis = call["self"], call.axis
    size = shape_of(x)[axis]
    parts = [sliced(call, x, axis, 0, first)] if first else []
    parts += [src, *([sliced(call, x, axis, last, size)] if last < size else [])]
    return call.emit(_op.concat(parts, axis)) if len(parts) > 1 else src


def _select_scatter(call: AtenCall) -> Expr:
    index = call["index"] % shape_of(call["self"])[call.axis]
    row = call.cast(call["src"], dtype_of(call["self"]))
    return _written(call, index, index + 1, call.emit(_op.expand_dims(row, call.axis)))


CONVERTERS: dict[str, Converter] = by_name(
    (_cat, "cat.default"),
    (_stack, "stack.default"),
    (_split, "split.Tensor split_with_sizes.default"),
    (_chunk, "chunk.default"),
    (_unbind, "unbind.int"),
    (_slice, "slice.Tensor"),
    (_narrow, "narrow.default"),
    (_select, "select.int"),
    (_unfold, "unfold.default"),
    (_roll, "roll.default"),
    (_pad, "pad.default constant_pad_nd.default"),
    (_diff, "diff.default"),
    (_slice_scatter, "slice_scatter.default"),
    (_select_scatter, "select_scatter.default"),
)
