# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of convolutions, including transposed ones.

TVM has the gradient of ``conv2d`` only. Its weight gradient computes more positions than the kernel
has where strides leave rows over, and moves groups into the batch, which then cannot be sharded.
Here the samples of a grouped convolution are a further spatial dim; of a grouped ``conv3d``, which
has no dim left, each plane of the kernel is a grouped ``conv2d``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import concat, expand_dims, permute_dims, reshape, strided_slice

from .registry import Gradients, padded, refuse, register_gradient, shape_of

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Spatial dims of the plain layouts, by their number."""
SAMPLES = {1: "H", 2: "D"}
"""The letter of the samples where they are a spatial dim in front of these."""


def _numbers(values: Any) -> list[int]:
    return [int(n) for n in values]


def _op(name: str, count: int) -> Any:
    return getattr(relax.op.nn, f"conv{count}d{name}")


@dataclass(frozen=True)
class _Weight:
    """Parameters of the gradient of a weight.

    Attributes
    ----------
    taps : list of int
        Spatial extents of the kernel.
    strides, dilation, before : list of int
        The parameters of the convolution, by spatial dim.
    groups : int
    dtype : str
    """

    taps: list[int]
    strides: list[int]
    dilation: list[int]
    before: list[int]
    groups: int
    dtype: str

    @property
    def names(self) -> str:
        """Return the names of the spatial dims."""
        return SPATIAL[len(self.taps)]


def _weight_gradient(w: _Weight, long: Var, short: Var, builder: BlockBuilder) -> Expr:
    """Compute ``dw[i, o, k] = sum of short[n, i, p] long[n, o, p stride + k dilation - before]``.

    Over all samples n and places p of the windows. The first operand of that convolution has the
    samples as its channels, so has the kernel.

    Parameters
    ----------
    w : _Weight
    long, short : Var
        The tensor that the windows read or write, and the tensor with an element per window:
        (samples, channels, ...).
    """
    names, groups = w.names, w.groups
    if groups > 1 and len(names) not in SAMPLES:
        return _by_planes(w, long, short, builder)
    rows, windows = _numbers(shape_of(long)[2:]), _numbers(shape_of(short)[2:])
    before, strides, dilation = w.before, w.strides, w.dilation
    after = [
        max(0, (p - 1) * s + (k - 1) * d + 1 - n - b)
        for p, s, k, d, n, b in zip(windows, strides, w.taps, dilation, rows, before, strict=True)
    ]
    data, taps = f"CN{names}", f"IO{names}"
    if groups > 1:
        lead, (samples, channels) = SAMPLES[len(names)], shape_of(long)[:2]
        long = builder.emit(reshape(long, [samples, groups, channels // groups, *rows]))
        short = builder.emit(expand_dims(short, 2))
        data, taps = f"{lead}CN{names}", f"{lead}OI{names}"
        strides, dilation, before, after = [1, *strides], [1, *dilation], [0, *before], [0, *after]
    result = _op("", len(strides))(
        long,
        short,
        strides=dilation,
        padding=[*before, *after],
        dilation=strides,
        groups=groups,
        data_layout=data,
        kernel_layout=taps,
        out_layout=data,
        out_dtype=w.dtype,
    )
    result = builder.normalize(result)
    if groups > 1:
        result = builder.normalize(reshape(builder.emit(result), shape_of(result)[1:]))
    return _first(result, [*shape_of(result)[:2], *w.taps], builder)


def _by_planes(w: _Weight, long: Var, short: Var, builder: BlockBuilder) -> Expr:
    """Compute the gradient of each plane of the kernel, with the planes read as samples."""
    depth, windows = int(shape_of(long)[2]), int(shape_of(short)[2])
    step, dilation, before = w.strides[0], w.dilation[0], w.before[0]
    reach = (windows - 1) * step
    after = max(0, reach + (w.taps[0] - 1) * dilation + 1 - depth - before)
    wide = builder.emit(padded(long, {2: (before, after)})) if before or after else long

    def as_samples(value: Expr) -> Var:
        n, c, p, *rest = shape_of(value)
        turned = builder.emit(permute_dims(value, [0, 2, 1, 3, 4]))
        return builder.emit(reshape(turned, [n * p, c, *rest]))

    plane = replace(
        w, taps=w.taps[1:], strides=w.strides[1:], dilation=w.dilation[1:], before=w.before[1:]
    )
    windows, planes = as_samples(short), []
    for k in range(w.taps[0]):
        low = k * dilation
        read = builder.emit(strided_slice(wide, [2], [low], [low + reach + 1], [step]))
        part = builder.emit(_weight_gradient(plane, as_samples(read), windows, builder))
        planes.append(builder.emit(expand_dims(part, 2)))
    return builder.normalize(concat(planes, 2)) if len(planes) > 1 else planes[0]


def _first(value: Expr, shape: Sequence[Any], builder: BlockBuilder) -> Expr:
    """Slice off the window positions beyond the kernel."""
    axes = [d for d, (n, m) in enumerate(zip(shape_of(value), shape, strict=True)) if n != m]
    if not axes:
        return value
    return strided_slice(builder.emit(value), axes, [0] * len(axes), [shape[d] for d in axes])


def _turned(value: Expr, layout: str, target: str, builder: BlockBuilder) -> Var:
    """Convert a value from a layout to another."""
    if layout == target:
        return value
    return builder.emit(permute_dims(value, [layout.index(c) for c in target]))


def _plain(
    call: ir.Call, grad: Expr, kernel: str, builder: BlockBuilder
) -> tuple[Var, Var, Var, tuple[str, str]]:
    """Return data, weight and gradient in plain layouts, with the original layouts."""
    a, (data, weight) = call.attrs, call.args
    names = SPATIAL[len(shape_of(data)) - 2]
    plain_layouts = (f"NC{names}", f"{kernel}{names}", f"NC{names}")
    layouts = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout))
    if any(sorted(g) != sorted(w) for g, w in zip(layouts, plain_layouts, strict=True)):
        raise refuse(call, f"the gradient for the layouts {', '.join(layouts)} is not known")
    values = (data, weight, grad)
    if str(grad.ty.dtype) != str(data.ty.dtype):
        values = (data, weight, builder.emit(relax.op.astype(grad, str(data.ty.dtype))))
    plain = [
        _turned(v, g, w, builder) for v, g, w in zip(values, layouts, plain_layouts, strict=True)
    ]
    return plain[0], plain[1], plain[2], (layouts[0], layouts[1])


def _back(
    gradients: Sequence[Expr], kernel: str, layouts: tuple[str, str], builder: BlockBuilder
) -> list[Expr]:
    """Convert the gradients of data and weight back to their layouts."""
    names = SPATIAL[len(layouts[0]) - 2]
    plain = (f"NC{names}", f"{kernel}{names}")
    if layouts == plain:
        return list(gradients)
    return [
        _turned(builder.emit(v), w, g, builder)
        for v, w, g in zip(gradients, plain, layouts, strict=True)
    ]


def _convolved(
    kind: str, w: _Weight, grad: Expr, weight: Any, kernel: str, options: dict[str, Any]
) -> Any:
    """Convolve a gradient with a weight, whose channels are in the order ``kernel``."""
    layouts = {"data_layout": "NC", "kernel_layout": kernel, "out_layout": "NC"}
    options |= {name: channels + w.names for name, channels in layouts.items()}
    options |= {"strides": w.strides, "dilation": w.dilation, "groups": w.groups}
    return _op(kind, len(w.taps))(grad, weight, **options)


def _weight_of(call: ir.Call, weight: Var) -> _Weight:
    a, taps = call.attrs, _numbers(shape_of(weight)[2:])
    strides, dilation, before = map(_numbers, (a.strides, a.dilation, a.padding))
    dtype = str(weight.ty.dtype)
    return _Weight(taps, strides, dilation, before[: len(taps)], int(a.groups), dtype)


@register_gradient("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate a convolution: the data by a transposed, the weight by a plain convolution."""
    a = call.attrs
    data, weight, grad, layouts = _plain(call, grad, "OI", builder)
    w, pads = _weight_of(call, weight), _numbers(a.padding)
    count = len(w.taps)
    rows, windows = _numbers(shape_of(data)[2:]), _numbers(shape_of(grad)[2:])
    more = [
        n - ((p - 1) * s - b - e + (k - 1) * d + 1)
        for n, p, s, b, e, k, d in zip(
            rows, windows, w.strides, pads, pads[count:], w.taps, w.dilation, strict=False
        )
    ]
    options = {"padding": pads, "output_padding": more, "out_dtype": str(data.ty.dtype)}
    through = _convolved("_transpose", w, grad, weight, "IO", options)
    return _back([through, _weight_gradient(w, data, grad, builder)], "OI", layouts, builder)


@register_gradient("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _transposed(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate a transposed convolution: a convolution for the data and for the weight."""
    data, weight, grad, layouts = _plain(call, grad, "IO", builder)
    w = _weight_of(call, weight)
    options = {"padding": _numbers(call.attrs.padding), "out_dtype": str(data.ty.dtype)}
    through = _convolved("", w, grad, weight, "OI", options)
    return _back([through, _weight_gradient(w, grad, data, builder)], "IO", layouts, builder)
