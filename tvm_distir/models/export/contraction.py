# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write products of tensors, attention and convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .body_writer import Body, Ssa
from .step import PRECISE, ExportStep, Write, dot, refuse, softmax
from .text import integers, table

_SIDES = {"N": "b", "C": "f", "O": "o", "I": "i"}


def matmul(body: Body, a: Ssa, b: Ssa, kind: str) -> Ssa:
    """Write a product with the semantics of NumPy's matmul."""
    if len(a.shape) == len(b.shape) == 1:
        return dot(body, a, b, ([], []), ([0], [0]), kind)
    if len(a.shape) == 1:
        product = matmul(body, body.reshape(a, (1, *a.shape)), b, kind)
        return body.reshape(product, (*product.shape[:-2], product.shape[-1]))
    if len(b.shape) == 1:
        product = matmul(body, a, body.reshape(b, (*b.shape, 1)), kind)
        return body.reshape(product, product.shape[:-1])
    if len(b.shape) == 2:
        return dot(body, a, b, ([], []), ([len(a.shape) - 1], [0]), kind)
    front = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (body.broadcast(v, (*front, *v.shape[-2:])) for v in (a, b))
    batch = list(range(len(front)))
    return dot(body, a, b, (batch, batch), ([len(front) + 1], [len(front)]), kind)


def _linear(step: ExportStep) -> Ssa:
    product = matmul(step.body, step[0], step.body.transpose(step[1], [1, 0]), step.dtype)
    bias = step.optional(2)
    return product if bias is None else step.body.binary("add", product, bias)


def _einsum(step: ExportStep) -> Ssa:
    text = str(step.attrs.subscripts).replace(" ", "")
    sides, _, result = text.partition("->")
    words, values = sides.split(","), list(step[0])
    if "->" not in text:
        raise refuse(step, f"of the form {text}")
    if len(words) == 1 and len(set(words[0])) == len(words[0]):
        return _rearranged(step.body, values[0], words[0], result)
    if len(words) != 2 or any(len(set(word)) != len(word) for word in words):
        raise refuse(step, f"of the form {text}")
    for side in (0, 1):
        for letter in [c for c in words[side] if c not in words[1 - side] + result]:
            values[side] = step.body.reduce("sum", values[side], [words[side].index(letter)])
            words[side] = words[side].replace(letter, "")
    batch = [c for c in words[0] if c in words[1] and c in result]
    inner = [c for c in words[0] if c in words[1] and c not in result]
    positions = [[[w.index(c) for c in letters] for w in words] for letters in (batch, inner)]
    (left, right), (first, second) = positions
    product = dot(step.body, values[0], values[1], (left, right), (first, second), step.dtype)
    have = batch + [c for w in words for c in w if c not in batch + inner]
    return step.body.transpose(product, [have.index(c) for c in result])


def _rearranged(body: Body, value: Ssa, word: str, result: str) -> Ssa:
    """Sum over the letters that the result lacks, and reorder the dims."""
    summed = [i for i, letter in enumerate(word) if letter not in result]
    letters = [letter for letter in word if letter in result]
    return body.transpose(body.reduce("sum", value, summed), [letters.index(c) for c in result])


def _outer(step: ExportStep) -> Ssa:
    body, (a, b) = step.body, (step[0], step[1])
    return body.binary("multiply", body.reshape(a, (*a.shape, 1)), b)


def _attention(step: ExportStep) -> Ssa:
    """Write softmax attention with heads in dim 2 and a bias or a causal mask."""
    body, attrs = step.body, step.attrs
    q, k, v = (body.transpose(body.accumulated("sum", step[i]), [0, 2, 1, 3]) for i in range(3))
    if k.shape[1] != q.shape[1]:
        raise refuse(step, "of grouped heads")
    factor = attrs.scale
    scale = q.shape[-1] ** -0.5 if factor is None else float(getattr(factor, "value", factor))
    scores = dot(body, q, k, ([0, 1], [0, 1]), ([3], [3]), q.dtype)
    scores = body.binary("multiply", scores, scale)
    bias = step.optional(3)
    if bias is not None:
        scores = body.binary("add", scores, body.accumulated("sum", bias))
    mask = attrs.causal_mask
    if mask is not None and str(mask):
        offset = 0 if "Top" in str(mask) else scores.shape[3] - scores.shape[2]
        row, column = (body.iota(scores.shape, axis, "int64") for axis in (2, 3))
        visible = body.compare("LE", column, body.binary("add", row, offset))
        scores = body.select(visible, scores, -math.inf)
    mixed = dot(body, softmax(body, scores, 3), v, ([0, 1], [0, 1]), ([3], [2]), v.dtype)
    return body.cast(body.transpose(mixed, [0, 2, 1, 3]), step.dtype)


def _side(layout: str) -> str:
    spatial = "DHW"[5 - len(layout) :]
    words = [_SIDES.get(c, str(spatial.index(c)) if c in spatial else c) for c in layout]
    return "[" + ", ".join(words) + "]"


def _convolved(
    step: ExportStep, x: Ssa, weight: Ssa, layouts: Sequence[str], numbers: Mapping[str,
    Sequence[int]],
    pads: Sequence[Sequence[int]], groups: int,
) -> Ssa:  # fmt: skip
    data, kernel, out = (_side(layout) for layout in layouts)
    notes = [
        "batch_group_count = 1 : i64",
        f"dimension_numbers = #stablehlo.conv<{data}x{kernel}->{out}>",
        f"feature_group_count = {groups} : i64",
        f"padding = {table(pads)}",
        PRECISE,
        *(f"{name} = {integers(values)}" for name, values in numbers.items()),
    ]
    return step.body.op("convolution", [x, weight], step.shape, step.dtype, ", ".join(notes))


def _conv(step: ExportStep) -> Ssa:
    attrs, rank = step.attrs, len(step[0].shape) - 2
    pads = step.integers("padding")
    layouts = [str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)]
    layouts[2] = layouts[2] or layouts[0]
    numbers = {
        "lhs_dilation": [1] * rank,
        "rhs_dilation": step.integers("dilation"),
        "window_strides": step.integers("strides"),
    }
    rows = [[pads[i], pads[i + rank]] for i in range(rank)]
    return _convolved(step, step[0], step[1], layouts, numbers, rows, int(attrs.groups))


def _conv_transpose(step: ExportStep) -> Ssa:
    attrs, body, weight = step.attrs, step.body, step[1]
    groups, pads = int(attrs.groups), step.integers("padding")
    strides, gaps, more = (step.integers(n) for n in ("strides", "dilation", "output_padding"))
    rank = len(strides)
    data, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    if data[:2] != "NC" or kernel[:2] != "IO":
        raise refuse(step, f"with the layouts {data} and {kernel}")
    inner, outer, *sizes = weight.shape
    if groups > 1:
        grouped = body.reshape(weight, [groups, inner // groups, outer, *sizes])
        turned = body.transpose(grouped, [1, 0, *range(2, rank + 3)])
        weight = body.reshape(turned, [inner // groups, groups * outer, *sizes])
    notes = f"dimensions = {integers(range(2, rank + 2))}"
    weight = body.op("reverse", [weight], weight.shape, weight.dtype, notes)
    reach = [gap * (size - 1) for gap, size in zip(gaps, sizes)]
    rows = [[reach[i] - pads[i], reach[i] - pads[i + rank] + more[i]] for i in range(rank)]
    numbers = {"lhs_dilation": strides, "rhs_dilation": gaps, "window_strides": [1] * rank}
    return _convolved(step, step[0], weight, [data, kernel, data], numbers, rows, groups)


WRITERS: dict[str, Write] = {
    "matmul": lambda step: matmul(step.body, step[0], step[1], step.dtype),
    "linear": _linear,
    "einsum": _einsum,
    "outer": _outer,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    **{f"nn.conv{n}d": _conv for n in (1, 2, 3)},
    **{f"nn.conv{n}d_transpose": _conv_transpose for n in (1, 2, 3)},
}
