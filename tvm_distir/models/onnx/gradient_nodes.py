# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert the gradient operators of ONNX Runtime by the gradient rules of this package.

A node such as ``GeluGrad(dY, X)`` is the gradient of a call of ``gelu``, which is emitted for the
rules that read its result, and removed where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import Expr
from tvm.relax.op import add, multiply, sigmoid, strided_slice, subtract, where
from tvm.relax.op import sum as sum_op

from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.transforms import argument_gradients

from .node_call import Converter, NodeCall

_op = relax.op
Op = Callable[..., Expr]


def gradients(
    call: NodeCall, forward: Expr, gradient: Expr, result: Expr | None = None
) -> list[Expr]:
    """Return the gradients of the arguments of a call, of their shapes."""
    parts = argument_gradients(call.builder, forward, gradient, result)
    return [call.emit(part) for part in parts if part is not None]


def _of_operand(op: Op) -> Converter:
    """Return the converter of the gradient ``(dY, X)``, by the operand of an op."""
    return lambda call: gradients(call, op(call[1]), call[0])


def _of_result(op: Op) -> Converter:
    """Return the converter of the gradient ``(dY, Y)``, by the result of an op."""
    return lambda call: gradients(call, op(call[1]), call[0], call[1])


def _biased(op: Op) -> Converter:
    """Return the converter of the gradient ``(dY, X, B)`` of an op of a sum."""
    return lambda call: gradients(call, op(call.emit(add(call[1], call[2]))), call[0])


def _leaky(call: NodeCall) -> list[Expr]:
    """Convert the gradient of a leaky ReLU, whose result has the sign of its operand."""
    return gradients(call, _op.nn.leakyrelu(call[1], call.number("alpha", 0.01)), call[0])


def _quick_gelu(call: NodeCall) -> list[Expr]:
    """Convert the gradient of ``x s(a x)``: ``s + a x s (1 - s)``, with the sigmoid s."""
    gradient, x = call[0], call[1]
    scaled = call.emit(multiply(x, call.constant(call.number("alpha", 1.702), x)))
    s = call.emit(sigmoid(scaled))
    slope = multiply(scaled, multiply(s, subtract(call.constant(1.0, x), s)))
    return [multiply(gradient, call.emit(add(s, slope)))]


def _softmax(op: Op, usual: int, coerced: bool) -> Converter:
    """Return the converter of ``(dY, Y)`` of a softmax; coerced: over all dims from the axis on."""

    def convert(call: NodeCall) -> list[Expr]:
        gradient, y, axis = call[0], call[1], int(call.number("axis", usual))
        shape = shape_of(y)
        axis %= len(shape)
        if not coerced or axis == len(shape) - 1:
            return gradients(call, op(y, axis), gradient, y)
        flat = [math.prod(shape[:axis]), math.prod(shape[axis:])]
        gradient, y = call.shaped(gradient, flat), call.shaped(y, flat)
        (through,) = gradients(call, op(y, 1), gradient, y)
        return [call.shaped(through, shape)]

    return convert


def _within(call: NodeCall, index: Expr, extent: int) -> Expr:
    """Return indices with those below zero counted from the end."""
    below = _op.less(index, call.constant(0, index))
    return call.emit(where(below, add(index, call.constant(extent, index)), index))


def _table(call: NodeCall, shape: int, gradient: int) -> Expr:
    """Return zeros for the operand of a look-up, of which only the shape matters."""
    return call.emit(_op.zeros([int(n) for n in call.numbers(shape)], dtype_of(call[gradient])))


def _gather(call: NodeCall) -> list[Expr]:
    table, axis = _table(call, 0, 2), int(call.number("axis", 0))
    axis %= len(shape_of(table))
    index = _within(call, call[1], shape_of(table)[axis])
    return gradients(call, _op.take(table, index, axis), call[2])


def _gather_elements(call: NodeCall) -> list[Expr]:
    table, axis = _table(call, 1, 0), int(call.number("axis", 0))
    return gradients(call, _op.gather_elements(table, call[2], axis), call[0])


def _gather_nd(call: NodeCall) -> list[Expr]:
    table, batch_dims = _table(call, 0, 2), int(call.number("batch_dims", 0))
    return gradients(call, _op.gather_nd(table, call[1], batch_dims), call[2])


def _slice(call: NodeCall) -> list[Expr]:
    table = _table(call, 1, 0)
    shape, begin, end = shape_of(table), call.numbers(2), call.numbers(3)
    numbers = range(len(begin)) if call.get(4) is None else call.numbers(4)
    steps = [1] * len(begin) if call.get(5) is None else call.numbers(5)
    axes = [int(axis) % len(shape) for axis in numbers]
    if any(int(step) < 0 for step in steps):
        raise Unsupported("a step is negative")
    parts = [
        slice(int(b), int(e), int(s)).indices(shape[axis])
        for b, e, s, axis in zip(begin, end, steps, axes, strict=True)
    ]
    bounds: list[Any] = [list(values) for values in zip(*parts, strict=True)]
    return gradients(call, strided_slice(table, axes, *bounds), call[0])


def _window(call: NodeCall, rows: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """Return the strides, the padding and the dilation of a node with windows.

    Parameters
    ----------
    call : NodeCall
    rows, kernel : sequence of int
        The sizes of the spatial dims of the data, and of a window.
    """
    count = len(kernel)
    strides = [int(n) for n in call.attributes.get("strides", [1] * count)]
    dilation = [int(n) for n in call.attributes.get("dilations", [1] * count)]
    pads = [int(n) for n in call.attributes.get("pads", [0] * 2 * count)]
    mode = call.text("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        totals = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, s, k, d in zip(rows, strides, kernel, dilation, strict=True)
        ]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = [*less, *more] if mode == "SAME_UPPER" else [*more, *less]
    return {"strides": strides, "padding": pads, "dilation": dilation}


def _convolution(call: NodeCall) -> list[Expr]:
    """Convert the gradients of the data, the kernel and the bias of a convolution."""
    gradient, x, w = call[0], call[1], call[2]
    rows, kernel = shape_of(x)[2:], shape_of(w)[2:]
    options = _window(call, rows, kernel) | {"groups": int(call.number("group", 1))}
    op: Op = getattr(_op.nn, f"conv{len(kernel)}d")
    return [*gradients(call, op(x, w, **options), gradient), _over_channels(gradient)]


def _transposed_convolution(call: NodeCall) -> list[Expr]:
    gradient, x, w = call[0], call[1], call[2]
    kernel = shape_of(w)[2:]
    if call.text("auto_pad", "NOTSET").startswith("SAME") or "output_shape" in call.attributes:
        raise Unsupported("auto_pad and output_shape of a transposed convolution")
    more = [int(n) for n in call.attributes.get("output_padding", [0] * len(kernel))]
    options = _window(call, shape_of(x)[2:], kernel) | {"groups": int(call.number("group", 1))}
    op: Op = getattr(_op.nn, f"conv{len(kernel)}d_transpose")
    forward = op(x, w, output_padding=more, **options)
    return [*gradients(call, forward, gradient), _over_channels(gradient)]


def _over_channels(gradient: Expr) -> Expr:
    return sum_op(gradient, [d for d in range(len(shape_of(gradient))) if d != 1])


def _pool(kind: str) -> Converter:
    """Return the converter of the gradient of a pool.

    The operands are the gradient, the operand of the pool and its result. Of an average pool the
    attribute ``shape`` says the shape of its operand, of which nothing else is needed.
    """

    def convert(call: NodeCall) -> list[Expr]:
        gradient, kernel = call[0], [int(n) for n in call.attributes["kernel_shape"]]
        if kind == "avg":
            sizes = [int(n) for n in call.attributes["shape"]]
            x = call.emit(_op.zeros(sizes, dtype_of(gradient)))
        else:
            x = call[1]
        options = _window(call, shape_of(x)[2:], kernel)
        options["ceil_mode"] = call.whether("ceil_mode")
        if kind == "avg":
            options["count_include_pad"] = call.whether("count_include_pad")
        op: Op = getattr(_op.nn, f"{kind}_pool{len(kernel)}d")
        layout = "NC" + "DHW"[3 - len(kernel) :]
        return gradients(call, op(x, kernel, layout=layout, **options), gradient, call.get(2))

    return convert


CONVERTERS: dict[str, Converter] = {
    "AveragePoolGrad": _pool("avg"),
    "BiasFastGeluGrad_dX": _biased(_op.nn.gelu_tanh),
    "BiasGeluGrad_dX": _biased(_op.nn.gelu),
    "ConvGrad": _convolution,
    "ConvTransposeGrad": _transposed_convolution,
    "DivGrad": lambda call: gradients(call, _op.divide(call[1], call[2]), call[0]),
    "FastGeluGrad": _of_operand(_op.nn.gelu_tanh),
    "GatherElementsGrad": _gather_elements,
    "GatherGrad": _gather,
    "GatherNDGrad": _gather_nd,
    "GeluGrad": _of_operand(_op.nn.gelu),
    "LeakyReluGrad": _leaky,
    "LogSoftmaxGrad": _softmax(_op.nn.log_softmax, 1, True),
    "LogSoftmaxGrad_13": _softmax(_op.nn.log_softmax, -1, False),
    "MaxPoolGrad": _pool("max"),
    "QuickGeluGrad": _quick_gelu,
    "ReluGrad": _of_operand(_op.nn.relu),
    "SigmoidGrad": _of_result(_op.sigmoid),
    "SliceGrad": _slice,
    "SoftmaxGrad": _softmax(_op.nn.softmax, 1, True),
    "SoftmaxGrad_13": _softmax(_op.nn.softmax, -1, False),
    "TanhGrad": _of_result(_op.tanh),
}
