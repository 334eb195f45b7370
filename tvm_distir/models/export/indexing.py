# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write look-ups, pools, losses, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_distir.models.common.hlo_names import SCATTERS

from .body_writer import Body, Ssa
from .step import ExportStep, Windows, Write, clipped, gather, refuse, scatter, slide, take
from .text import Unwritable


def _take(step: ExportStep) -> Ssa:
    x, index, body = step[0], step[1], step.body
    if step.attrs.axis is None:
        x = body.reshape(x, [math.prod(x.shape)])
    axis = 0 if step.attrs.axis is None else step.axis(len(x.shape))
    index = index if isinstance(index, Ssa) else body.constant(index, "int64")
    if str(step.attrs.mode) == "wrap":
        index = _wrapped(body, index, x.shape[axis])
    return take(body, x, index, axis)


def _wrapped(body: Body, index: Ssa, size: int) -> Ssa:
    rest = body.binary("remainder", index, size)
    return body.select(body.compare("LT", rest, 0), body.binary("add", rest, size), rest)


def _elements(step: ExportStep, x: Ssa, index: Ssa) -> tuple[int, str, Ssa]:
    """Return the axis, the batch dims as text, and the indices as vectors of size 1."""
    axis = step.axis(len(x.shape))
    front = [i for i in range(len(x.shape)) if i != axis]
    if any(x.shape[i] != index.shape[i] for i in front):
        raise refuse(step, "of fewer rows than the tensor has")
    below = step.body.compare("LT", index, 0)
    index = step.body.select(below, step.body.binary("add", index, x.shape[axis]), index)
    return axis, str(front), step.body.reshape(index, (*index.shape, 1))


def _gather_elements(step: ExportStep) -> Ssa:
    x, index = step[0], step[1]
    axis, front, index = _elements(step, x, index)
    index = clipped(step.body, index, x.shape[axis])
    rank = len(x.shape)
    numbers = f"collapsed_slice_dims = [{axis}], operand_batching_dims = {front}"
    numbers += f", start_indices_batching_dims = {front}, start_index_map = [{axis}]"
    numbers += f", index_vector_dim = {rank}"
    return gather(step.body, x, index, step.shape, numbers, [1] * rank)


def _gather_nd(step: ExportStep) -> Ssa:
    """Write windows over the dims after those that the last dim of the indices selects."""
    x, index, front = step[0], step[1], int(step.attrs.batch_dims)
    last = len(index.shape) - 1
    batch = list(range(front))
    named = list(range(front, front + index.shape[-1]))
    windows = list(range(last, len(step.shape)))
    numbers = f"offset_dims = {windows}, collapsed_slice_dims = {named}"
    numbers += f", operand_batching_dims = {batch}, start_indices_batching_dims = {batch}"
    numbers += f", start_index_map = {named}, index_vector_dim = {last}"
    sizes = [1 if i in batch + named else n for i, n in enumerate(x.shape)]
    return gather(step.body, x, index, step.shape, numbers, sizes)


def _slice_scatter(step: ExportStep) -> Ssa:
    """Write a slice update as a look-up in the new rows, selected by position."""
    x, new, body = step[0], step[1], step.body
    axis = step.axis(len(x.shape))
    size = x.shape[axis]
    written_rows = range(size)[slice(*(int(step[i]) for i in (2, 3, 4)))]
    row_sources, covered = np.zeros(size, "int64"), np.zeros(size, bool)
    row_sources[list(written_rows)] = np.arange(len(written_rows))
    covered[list(written_rows)] = True
    rows = take(body, new, body.constant(row_sources, "int64"), axis)
    sizes = [size if i == axis else 1 for i in range(len(x.shape))]
    return body.select(body.constant(covered.reshape(sizes), "bool"), rows, x)


def _scatter_elements(step: ExportStep) -> Ssa:
    axis, front, index = _elements(step, step[0], step[1])
    numbers = f"update_window_dims = [], inserted_window_dims = [{axis}]"
    numbers += f", input_batching_dims = {front}, scatter_indices_batching_dims = {front}"
    numbers += f", scatter_dims_to_operand_dims = [{axis}]"
    numbers += f", index_vector_dim = {len(step[0].shape)}"
    reduction = str(step.attrs.reduction)
    if reduction not in (*SCATTERS, "update"):
        raise Unwritable(f"a scatter by {reduction}")
    kind = SCATTERS.get(reduction, reduction)
    return scatter(step.body, step[0], index, step[2], numbers, kind)


def _take_backward(step: ExportStep) -> Ssa:
    grad, x, index, body = step[0], step[1], step[2], step.body
    axis = 0 if step.attrs.axis is None else step.axis(len(x.shape))
    count = len(index.shape)
    windows = [i for i in range(len(grad.shape)) if not axis <= i < axis + count]
    numbers = f"update_window_dims = {windows}, inserted_window_dims = [{axis}]"
    numbers += f", scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {count}"
    index = clipped(body, index, x.shape[axis])
    return scatter(body, body.filled(0, x), index, grad, numbers, "add")


def _one_hot(step: ExportStep) -> Ssa:
    body, index, shape = step.body, step[0], step.shape
    axis = step.axis(len(shape))
    result_dims = [i for i in range(len(shape)) if i != axis]
    line = body.iota(shape, axis, index.dtype)
    hit = body.compare("EQ", body.broadcast(index, shape, result_dims), line)
    on, off = (
        v if isinstance(v, Ssa) else body.constant(v, step.dtype) for v in (step[1], step[2])
    )
    return body.select(hit, on, off)


def _of_classes(step: ExportStep, scores: Ssa, index: Ssa) -> tuple[Ssa, list[int]]:
    """Return a mask of each row's class score, and the dims of rows."""
    rows = [i for i in range(len(scores.shape)) if i != 1] if len(scores.shape) > 1 else []
    line = step.body.iota(scores.shape, 1 if rows else 0, index.dtype)
    return step.body.compare("EQ", line, step.body.broadcast(index, scores.shape, rows)), rows


def _row_weights(step: ExportStep, index: Ssa, class_weights: Ssa | None, kind: str) -> Ssa:
    body = step.body
    ones = body.broadcast(body.constant(1, kind), index.shape)
    weights = ones if class_weights is None else take(body, class_weights, index, 0)
    return body.select(body.compare("NE", index, int(step.attrs.ignore_index)), weights, 0)


def _nll_loss(step: ExportStep) -> Ssa:
    body, scores, index = step.body, step[0], step[1]
    hit, _ = _of_classes(step, scores, index)
    weights = _row_weights(step, index, step.optional(2), scores.dtype)
    picked = body.reduce("sum", body.select(hit, scores, 0), [1 if len(scores.shape) > 1 else 0])
    losses = body.binary("multiply", body.unary("negate", picked), weights)
    kind, over = str(step.attrs.reduction), list(range(len(index.shape)))
    if kind == "none":
        return losses
    total = body.reduce("sum", losses, over)
    return (
        total if kind == "sum" else body.binary("divide", total, body.reduce("sum", weights, over))
    )


def _nll_backward(step: ExportStep) -> Ssa:
    body, grad, scores, index = step.body, step[0], step[1], step[2]
    weights = _row_weights(step, index, step.optional(3), scores.dtype)
    kind = str(step.attrs.reduction)
    slope = body.binary("multiply", body.unary("negate", weights), grad)
    if kind == "mean":
        total = body.reduce("sum", weights, list(range(len(index.shape))))
        slope = body.binary("divide", slope, total)
    hit, rows = _of_classes(step, scores, index)
    return body.select(hit, body.broadcast(slope, scores.shape, rows), 0)


def _windows(
    step: ExportStep, shape: Sequence[int], out: Sequence[int]
) -> tuple[Windows, list[int]]:
    """Return the windows of a pool, with ceiling mode as padding at the end."""
    attrs, layout = step.attrs, str(step.attrs.layout)
    spatial = [i for i, letter in enumerate(layout) if letter in "DHW"]
    rank, pads = len(layout), step.integers("padding")
    sizes, steps, gaps = ([1] * rank for _ in range(3))
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(spatial):
        sizes[axis], steps[axis] = int(attrs.pool_size[i]), int(attrs.strides[i])
        gaps[axis] = int(attrs.dilation[i])
        low[axis], high[axis] = pads[i], pads[i + len(spatial)]
        reach = (out[axis] - 1) * steps[axis] + (sizes[axis] - 1) * gaps[axis] + 1
        high[axis] += max(0, reach - shape[axis] - low[axis] - high[axis])
    return Windows(sizes, steps, gaps, low, high), spatial


def _max_pool(step: ExportStep) -> Ssa:
    windows, _ = _windows(step, step[0].shape, step.shape)
    return slide(step.body, "max", step[0], windows)


def _avg_pool(step: ExportStep) -> Ssa:
    x, body = step[0], step.body
    windows, spatial = _windows(step, x.shape, step.shape)
    total = slide(body, "sum", x, windows)
    if step.attrs.count_include_pad and not step.attrs.ceil_mode:
        return body.binary("divide", total, float(math.prod(windows.sizes[i] for i in spatial)))
    if step.attrs.count_include_pad:
        raise refuse(step, "that counts padding and rounds up")
    return body.binary("divide", total, slide(body, "sum", body.filled(1.0, x), windows))


def _adaptive_pool(step: ExportStep) -> Ssa:
    x, layout = step[0], str(step.attrs.layout)
    spatial = [i for i, letter in enumerate(layout) if letter in "DHW"]
    sizes = [1] * len(layout)
    for axis in spatial:
        sizes[axis], rest = divmod(x.shape[axis], step.shape[axis])
        if rest:
            raise refuse(step, "over windows of several sizes")
    flat = [0] * len(layout)
    total = slide(step.body, "sum", x, Windows(sizes, sizes, [1] * len(layout), flat, flat))
    return step.body.binary("divide", total, float(math.prod(sizes)))


def _max_pool_backward(step: ExportStep) -> Ssa:
    """Write the gradient of a max pool, at the first maximum of each window."""
    grad, x, body = step[0], step[1], step.body
    windows, _ = _windows(step, x.shape, grad.shape)
    if any(gap != 1 for gap in windows.gaps):
        raise refuse(step, "with gaps in its windows")
    padded = body.pad(x, windows.low, windows.high, -math.inf)
    flat = [0] * len(x.shape)
    bare = Windows(windows.sizes, windows.steps, windows.gaps, flat, flat)
    inner, left, right = Body("%b"), Ssa("%l", (), x.dtype), Ssa("%r", (), x.dtype)
    chosen = inner.as_region([left, right], inner.compare("GE", left, right))
    regions, operands = f"{chosen}, {body.region('add', x.dtype)}", [padded, grad]
    operands.append(body.constant(0, x.dtype))
    scattered = body.op("select_and_scatter", operands, padded.shape, x.dtype, bare.notes, regions)
    return body.slice(scattered, windows.low, [a + n for a, n in zip(windows.low, x.shape)])


WRITERS: dict[str, Write] = {
    "take": _take,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "slice_scatter": _slice_scatter,
    "scatter_elements": _scatter_elements,
    "grad.take_backward": _take_backward,
    "one_hot": _one_hot,
    "nn.nll_loss": _nll_loss,
    "grad.nll_loss_backward": _nll_backward,
    **{f"nn.max_pool{n}d": _max_pool for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": _adaptive_pool for n in (1, 2, 3)},
    "grad.max_pool2d_backward": _max_pool_backward,
}
