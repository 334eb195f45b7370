# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of convolutions, transposed ones too, and of padding.

TVM has that of ``conv2d`` alone. Its weight gradient computes more positions than the kernel has
where strides leave rows over, and moves groups into the batch, which then cannot be cut. Here the
samples of a grouped one are one more spatial dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.op import expand_dims, reshape, strided_slice

from .registry import refuse, register_gradient, shape_of

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Spatial dims of the plain layouts, by their number."""
SAMPLES = {1: "H", 2: "D"}
"""What the samples are called where they are a spatial dim in front of these."""


def _spatial(call: ir.Call, kernel: str) -> str:
    """Spatial dims of a call in plain layouts, the only ones whose gradient is known."""
    a = call.attrs
    names = SPATIAL[len(shape_of(call.args[0])) - 2]
    known = (f"NC{names}", f"{kernel}{names}", f"NC{names}")
    given = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout))
    if given != known:
        raise refuse(call, f"the gradient for the layouts {', '.join(given)} is not known")
    return names


def _numbers(values: Any) -> list[int]:
    return [int(n) for n in values]


def _op(name: str, count: int) -> Any:
    return getattr(relax.op.nn, f"conv{count}d{name}")


def _weight_gradient(
    call: ir.Call, long: Any, short: Any, names: str, builder: relax.BlockBuilder
) -> Any:
    """``dw[i, o, k] = sum of short[n, i, p] long[n, o, p stride + k dilation - before]``.

    Over all samples n and places p of the windows. The first operand of that convolution has the
    samples as its channels, so has the kernel.

    Parameters
    ----------
    call : Call
        The convolution.
    long, short : Var
        What its windows read or write, and what there is one of per window:
        (samples, channels, ...).
    names : str
        Spatial dims.
    """
    a, weight = call.attrs, shape_of(call.args[1])
    strides, dilation, groups = _numbers(a.strides), _numbers(a.dilation), int(a.groups)
    rows, places = _numbers(shape_of(long)[2:]), _numbers(shape_of(short)[2:])
    before = _numbers(a.padding)[: len(names)]
    after = [
        max(0, (p - 1) * s + (int(k) - 1) * d + 1 - n - b)
        for p, s, k, d, n, b in zip(
            places, strides, weight[2:], dilation, rows, before, strict=True
        )
    ]
    data, taps = f"CN{names}", f"IO{names}"
    if groups > 1:
        if len(names) not in SAMPLES:
            raise refuse(call, "the gradient of a grouped conv3d is not known")
        lead, (samples, channels) = SAMPLES[len(names)], shape_of(long)[:2]
        long = builder.emit(reshape(long, [samples, groups, channels // groups, *rows]))
        short = builder.emit(expand_dims(short, 2))
        data, taps = f"{lead}CN{names}", f"{lead}OI{names}"
        strides, dilation, before, after = [1, *strides], [1, *dilation], [0, *before], [0, *after]
    found = _op("", len(strides))(
        long,
        short,
        strides=dilation,
        padding=[*before, *after],
        dilation=strides,
        groups=groups,
        data_layout=data,
        kernel_layout=taps,
        out_layout=data,
        out_dtype=str(call.args[1].ty.dtype),
    )
    found = builder.normalize(found)
    if groups > 1:
        found = reshape(builder.emit(found), shape_of(found)[1:])
    return _first(builder.normalize(found), weight, builder)


def _first(value: Any, shape: Sequence[Any], builder: relax.BlockBuilder) -> Any:
    """Leave the positions out that windows have beyond the kernel."""
    axes = [d for d, (n, m) in enumerate(zip(shape_of(value), shape, strict=True)) if n != m]
    if not axes:
        return value
    return strided_slice(builder.emit(value), axes, [0] * len(axes), [shape[d] for d in axes])


@register_gradient("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The data's is a transposed convolution, the weight's a convolution of data and gradient."""
    a, (data, weight) = call.attrs, call.args
    names = _spatial(call, "OI")
    count = len(names)
    strides, pads = _numbers(a.strides), _numbers(a.padding)
    rows, taps = _numbers(shape_of(data)[2:]), _numbers(shape_of(weight)[2:])
    places, dilation = _numbers(shape_of(grad)[2:]), _numbers(a.dilation)
    more = [
        n - ((p - 1) * s - b - e + (k - 1) * d + 1)
        for n, p, s, b, e, k, d in zip(
            rows, places, strides, pads, pads[count:], taps, dilation, strict=False
        )
    ]
    through = _op("_transpose", count)(
        grad,
        weight,
        strides=strides,
        padding=pads,
        output_padding=more,
        dilation=dilation,
        groups=int(a.groups),
        data_layout=f"NC{names}",
        kernel_layout=f"IO{names}",
        out_layout=f"NC{names}",
        out_dtype=str(data.ty.dtype),
    )
    return [through, _weight_gradient(call, data, grad, names, builder)]


@register_gradient("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _transposed(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The data's is the convolution with the same weight; in the weight's the two change roles."""
    a, (data, weight) = call.attrs, call.args
    names = _spatial(call, "IO")
    through = _op("", len(names))(
        grad,
        weight,
        strides=_numbers(a.strides),
        padding=_numbers(a.padding),
        dilation=_numbers(a.dilation),
        groups=int(a.groups),
        data_layout=f"NC{names}",
        kernel_layout=f"OI{names}",
        out_layout=f"NC{names}",
        out_dtype=str(data.ty.dtype),
    )
    return [through, _weight_gradient(call, grad, data, names, builder)]


@register_gradient("nn.pad")
def _pad(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The padding is left out again."""
    if str(call.attrs.pad_mode) != "constant":
        raise refuse(
            call, f'the gradient of a padding of mode "{call.attrs.pad_mode}" is not known'
        )
    widths = [-int(n) for n in call.attrs.pad_width]
    return [relax.op.nn.pad(grad, widths, pad_value=0.0)]
