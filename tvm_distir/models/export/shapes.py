# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write ops that move elements."""

from __future__ import annotations

from tvm_distir.core.rewriting import permutation

from .body_writer import Ssa
from .step import ExportStep, Write, dims, refuse


def _reshape(step: ExportStep) -> Ssa:
    return step.body.reshape(step[0], step.shape)


def _permute(step: ExportStep) -> Ssa:
    return step.body.transpose(step[0], permutation(step.call, len(step[0].shape)))


def _joined(step: ExportStep, parts: list[Ssa], axis: int) -> Ssa:
    notes = f"dimension = {axis} : i64"
    return step.body.op("concatenate", parts, step.shape, parts[0].dtype, notes)


def _concat(step: ExportStep) -> Ssa:
    axis = int(step.attrs.axis or 0) % len(step.shape)
    return _joined(step, list(step[0]), axis)


def _stack(step: ExportStep) -> Ssa:
    axis = int(step.attrs.axis or 0) % len(step.shape)
    size = [1 if i == axis else n for i, n in enumerate(step.shape)]
    return _joined(step, [step.body.reshape(part, size) for part in step[0]], axis)


def _split(step: ExportStep) -> tuple[Ssa, ...]:
    x, axis, begin, parts = step[0], step.axis(len(step[0].shape)), 0, []
    for field in step.call.ty.fields:
        end = begin + dims(field)[axis]
        begins = [begin if i == axis else 0 for i in range(len(x.shape))]
        ends = [end if i == axis else n for i, n in enumerate(x.shape)]
        parts.append(step.body.slice(x, begins, ends))
        begin = end
    return tuple(parts)


def _strided_slice(step: ExportStep) -> Ssa:
    x = step[0]
    rank, strides = len(x.shape), step.optional(4)
    begins, ends, steps, turned = [0] * rank, list(x.shape), [1] * rank, []
    for i, axis in enumerate(step[1]):
        axis = int(axis) % rank
        stride = int(strides[i]) if strides else 1
        where = range(x.shape[axis])[slice(int(step[2][i]), int(step[3][i]), stride)]
        if stride < 0 and len(where):
            turned.append(axis)
            where = where[::-1]
        first = where[0] if len(where) else 0
        begins[axis], steps[axis] = first, abs(stride)
        ends[axis] = where[-1] + 1 if len(where) else first
    return _reversed(step, step.body.slice(x, begins, ends, steps), turned)


def _reversed(step: ExportStep, value: Ssa, axes: list[int]) -> Ssa:
    if not axes:
        return value
    listed = ", ".join(map(str, axes))
    notes = f"dimensions = array<i64: {listed}>"
    return step.body.op("reverse", [value], value.shape, value.dtype, notes)


def _repeat(step: ExportStep) -> Ssa:
    x, body = step[0], step.body
    if step.attrs.axis is None:
        x = body.reshape(x, [step.shape[0] // int(step.attrs.repeats)])
    axis = 0 if step.attrs.axis is None else step.axis(len(x.shape))
    wide = [*x.shape[: axis + 1], int(step.attrs.repeats), *x.shape[axis + 1 :]]
    result_dims = [i for i in range(len(wide)) if i != axis + 1]
    return body.reshape(body.broadcast(x, wide, result_dims), step.shape)


def _tile(step: ExportStep) -> Ssa:
    body, counts = step.body, step.integers("repeats")
    rank = max(len(counts), len(step[0].shape))
    sizes = [1] * (rank - len(step[0].shape)) + list(step[0].shape)
    counts = [1] * (rank - len(counts)) + counts
    x = body.reshape(step[0], sizes)
    wide = [n for pair in zip(counts, sizes) for n in pair]
    return body.reshape(body.broadcast(x, wide, range(1, 2 * rank, 2)), step.shape)


def _pad(step: ExportStep) -> Ssa:
    widths = step.integers("pad_width")
    if str(step.attrs.pad_mode) != "constant":
        raise refuse(step, f"of the mode {step.attrs.pad_mode}")
    return step.body.pad(step[0], widths[::2], widths[1::2], float(step.attrs.pad_value))


def _triangle(upper: bool) -> Write:
    def write(step: ExportStep) -> Ssa:
        x, body = step[0], step.body
        rank = len(x.shape)
        row, column = (body.iota(x.shape, rank - 2 + i, "int64") for i in (0, 1))
        diagonal = step.optional(1)
        offset = int(diagonal if diagonal is not None else getattr(step.attrs, "k", 0))
        gap = body.binary("subtract", column, row)
        return body.select(body.compare("GE" if upper else "LE", gap, offset), x, 0)

    return write


_REPEATING = (("half_pixel", "round"), ("asymmetric", "floor"), ("asymmetric", ""))
"""Coordinates and roundings by which every row is taken as often as the size grows."""


def _resize(step: ExportStep) -> Ssa:
    layout, body = str(step.attrs.layout), step.body
    x: Ssa = step[0]
    if str(step.attrs.method) != "nearest_neighbor":
        raise refuse(step, f"by the method {step.attrs.method}")
    how = str(step.attrs.coordinate_transformation_mode), str(step.attrs.rounding_method)
    if how not in _REPEATING:
        raise refuse(step, f"with {how[0]} and {how[1]}, which repeat no rows")
    for axis in (layout.index("H"), layout.index("W")):
        times, rest = divmod(step.shape[axis], x.shape[axis])
        if rest:
            raise refuse(step, "by a factor that is not an integer")
        wide = [*x.shape[: axis + 1], times, *x.shape[axis + 1 :]]
        result_dims = [i for i in range(len(wide)) if i != axis + 1]
        size = [n * times if i == axis else n for i, n in enumerate(x.shape)]
        x = body.reshape(body.broadcast(x, wide, result_dims), size)
    return x


def same(step: ExportStep) -> Ssa:
    """Return the operand."""
    value: Ssa = step[0]
    return value


WRITERS: dict[str, Write] = {
    **{n: _reshape for n in ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")},
    "permute_dims": _permute,
    "broadcast_to": lambda step: step.body.broadcast(step[0], step.shape),
    "concat": _concat,
    "stack": _stack,
    "split": _split,
    "strided_slice": _strided_slice,
    "flip": lambda step: _reversed(step, step[0], [step.axis(len(step[0].shape))]),
    "repeat": _repeat,
    "tile": _tile,
    "nn.pad": _pad,
    "tril": _triangle(False),
    "triu": _triangle(True),
    "image.resize2d": _resize,
    "builtin.stop_lift_params": same,
}
