# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Padding written as an op of its own, folded into the window that reads it.

``conv2d(nn.pad(x))`` without padding of its own is ``conv2d(x)`` with it. Cut along a padded dim,
the first moves rows twice (the longer result is cut elsewhere), the second only the windows' own
neighbour rows.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import PropagationError
from ...ir import flat_types, labels_of, mesh_key, mesh_shape, shard_counts
from ..legalize.terms import call_form

CONVOLUTIONS = tuple(f"relax.nn.conv{n}d" for n in (1, 2, 3))
AVERAGES = tuple(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3))


def changed(attrs: Any, **values: Any) -> Any:
    """Copy of a call's attributes with some of them replaced."""
    info = type(attrs).__tvm_ffi_type_info__
    fields = {f.name: getattr(attrs, f.name) for f in info.fields}
    return ir.make_node(str(info.type_key), **{**fields, **values})


def _layout(call: ir.Call) -> str | None:
    """Layout of the operand of an op that may take over padding by zeros."""
    name = str(call.op.name)
    if name in CONVOLUTIONS:
        layout = str(call.attrs.data_layout)
    elif name in AVERAGES and call.attrs.count_include_pad and not call.attrs.ceil_mode:
        layout = str(call.attrs.layout)
    else:
        return None
    return layout if layout.isalpha() and layout.isupper() else None


def is_zero_padding(value: Any) -> bool:
    """Whether a value is an ``nn.pad`` that appends zeros."""
    return (
        isinstance(value, ir.Call)
        and isinstance(value.op, ir.Op)
        and str(value.op.name) == "relax.nn.pad"
        and str(value.attrs.pad_mode) == "constant"
        and float(value.attrs.pad_value) == 0
        and min(int(n) for n in value.attrs.pad_width) >= 0
    )


def folded(call: ir.Call, pad: ir.Call, mod: ir.IRModule, function: str, var: Any) -> ir.Call:
    """Take the padding over from what computes the first operand.

    Parameters
    ----------
    call : Call
        Of level 4; ``pad`` computes its first operand.
    pad : Call
        See :func:`is_zero_padding`.
    mod, function, var
        Where ``call`` stands.

    Returns
    -------
    call : Call
        The call itself where the padding is no matter: no padded dim is cut, a dim that no
        window walks is padded, or the op cannot take it over.
    """
    layout, source = _layout(call), pad.args[0]
    if layout is None or not isinstance(source, ir.Var):
        return call
    before, after = source.ty, call.args[0].ty
    if not isinstance(before, DTensorType) or not isinstance(after, DTensorType):
        return call
    labels = labels_of(before.placement)
    if labels != labels_of(after.placement):
        return call
    if mesh_key(before.device_mesh) != mesh_key(after.device_mesh):
        return call
    widths = [int(n) for n in pad.attrs.pad_width]
    spatial = [d for d, c in enumerate(layout) if c not in "NC"]
    padded = [d for d in range(len(layout)) if widths[2 * d] or widths[2 * d + 1]]
    counts = shard_counts(labels, mesh_shape(before.device_mesh), len(layout))
    if not set(padded) <= set(spatial) or all(counts[d] == 1 for d in padded):
        return call
    pads = [int(n) for n in call.attrs.padding]
    for k, d in enumerate(spatial):
        pads[k] += widths[2 * d]
        pads[k + len(spatial)] += widths[2 * d + 1]
    new = ir.Call(
        call.op, [source, *call.args[1:]], changed(call.attrs, padding=pads), call.ty_args
    )
    relax.expr._update_type(new, call.ty)
    try:
        call_form(new, flat_types(var.ty), mod, function, var)
    except PropagationError:
        return call
    return new
