# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Folds separate padding ops into the window op that reads the padded value.

``conv2d(nn.pad(x))`` without padding is ``conv2d(x)`` with it. Sharded along a
padded dim, the first moves rows twice (the longer result has other shard boundaries), the second
moves only the windows' neighbour rows. The same holds for its gradient: a transposed convolution
whose result is cropped leaves the rows out by its padding.
"""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax import Var
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_key, mesh_shape
from tvm_distir.core.ir.operators.names import AVERAGES, CONVOLUTIONS, TRANSPOSED
from tvm_distir.core.ir.placement import labels_of, shard_counts
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.ops.partial import call_sharding
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.support import PropagationError

from .attrs import changed


def _layout(call: ir.Call) -> str | None:
    """Return the layout of the operand (or transposed convolution's result) that may be padded."""
    name = str(call.op.name)
    if name in CONVOLUTIONS or name in TRANSPOSED:
        layout = str(call.attrs.data_layout)
    elif name in AVERAGES and call.attrs.count_include_pad and not call.attrs.ceil_mode:
        layout = str(call.attrs.layout)
    else:
        return None
    return layout if layout.isalpha() and layout.isupper() else None


def _is_op(value: ir.Expr, *names: str) -> bool:
    return type(value) is ir.Call and type(value.op) is ir.Op and str(value.op.name) in names


def is_zero_padding(value: ir.Expr) -> bool:
    """Return whether a value is an ``nn.pad`` that appends zeros."""
    return (
        _is_op(value, "relax.nn.pad")
        and str(value.attrs.pad_mode) == "constant"
        and float(value.attrs.pad_value) == 0
        and min(int(n) for n in value.attrs.pad_width) >= 0
    )


def is_foldable(value: ir.Expr) -> bool:
    """Return whether the reader of a value may be merged with it."""
    return is_zero_padding(value) or _is_op(value, *TRANSPOSED)


def _is_crop(value: Any) -> bool:
    """Return whether a value is an ``nn.pad`` that only leaves rows out."""
    return _is_op(value, "relax.nn.pad") and max(int(n) for n in value.attrs.pad_width) <= 0


def _widths(layout: str, pad: ir.Call, narrow: Any, wide: Any) -> list[int] | None:
    """Return the padding before, then behind, spatial dims; None where folding gains nothing.

    ``narrow`` and ``wide`` are the types without and with the padding.
    """
    if not isinstance(narrow, DTensorType) or not isinstance(wide, DTensorType):
        return None
    labels = labels_of(narrow.placement)
    if labels != labels_of(wide.placement):
        return None
    if mesh_key(narrow.device_mesh) != mesh_key(wide.device_mesh):
        return None
    widths = [abs(int(n)) for n in pad.attrs.pad_width]
    spatial = [d for d, c in enumerate(layout) if c not in "NC"]
    padded = [d for d in range(len(layout)) if widths[2 * d] or widths[2 * d + 1]]
    counts = shard_counts(labels, mesh_shape(narrow.device_mesh), len(layout))
    if not set(padded) <= set(spatial) or all(counts[d] == 1 for d in padded):
        return None
    return [widths[2 * d + side] for side in (0, 1) for d in spatial]


def folded(call: ir.Call, source: ir.Call, mod: ir.IRModule, function: str, var: Var) -> ir.Call:
    """Merge two ops, either of which is a padding.

    Parameters
    ----------
    call : Call
        A call of level 4; ``source`` computes its first operand.
    source : Call
        See :func:`is_foldable`.
    mod, function, var
        The place of ``call``.

    Returns
    -------
    call : Call
        The call itself where the padding is no matter: no padded dim is sharded, a dim that no
        window walks is padded, or the op cannot take it over.
    """
    if _is_op(source, *TRANSPOSED):
        pad, taker, args = call, source, source.args
        if not _is_crop(call):
            return call
        narrow, wide = call.ty, call.args[0].ty
    else:
        pad, taker, args = source, call, [source.args[0], *call.args[1:]]
        if _is_op(call, *TRANSPOSED) or not isinstance(source.args[0], ir.Var):
            return call
        narrow, wide = source.args[0].ty, call.args[0].ty
    layout = _layout(taker)
    widths = None if layout is None else _widths(layout, pad, narrow, wide)
    if widths is None:
        return call
    pads = [int(n) + more for n, more in zip(taker.attrs.padding, widths, strict=True)]
    attrs = changed(taker.attrs, padding=pads)
    new = typed(ir.Call(taker.op, args, attrs, taker.ty_args), call.ty)
    try:
        call_sharding(new, flat_types(var.ty), mod, function, var)
    except PropagationError:
        return call
    return new
