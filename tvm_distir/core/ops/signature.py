# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Converts a call to its :class:`CallShape`: flattened tensor operands and results."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.types import flat_types, static_shape, tensor_type
from tvm_distir.core.rewriting.calls import TIR_CALLS, called_name
from tvm_distir.support import PropagationError

from .dims import plain
from .draft import CallShape


def _unknown(name: str, which: str) -> PropagationError:
    return PropagationError(
        "DIST0402",
        f"the shape of {which} is unknown",
        location=name,
        remedy="Give the operands known shapes (td.bind_dims gives symbolic dims their sizes); "
        "compute what depends on data outside of the module.",
    )


def _describe(name: str, which: str, leaves: list[ir.Type]) -> tuple[list[Any], list[str]]:
    shapes, dtypes = [], []
    for number, leaf in enumerate(leaves):
        tensor, shape = tensor_type(leaf), static_shape(leaf)
        if tensor is None or shape is None:
            raise _unknown(name, f"{which} {number}")
        shapes.append(shape)
        dtypes.append(str(tensor.dtype))
    return shapes, dtypes


def _value(arg: ir.Expr) -> Any:
    """Return the plain value of an argument that is no tensor."""
    if isinstance(arg, relax.ShapeExpr):
        return tuple(plain(n) for n in arg.values)
    if isinstance(arg, relax.Tuple):
        return tuple(_value(x) for x in arg.fields)
    if isinstance(arg, ir.Var) and isinstance(arg.ty, relax.ShapeType) and arg.ty.values:
        return tuple(plain(n) for n in arg.ty.values)
    return plain(arg)


def result_type(call: ir.Call, out_type: ir.Type | None = None) -> ir.Type:
    """Return the type of the call's result: the given type, the call's type, or the inferred."""
    if out_type is not None:
        return out_type
    if type(call.ty) is not ir.Type and call.ty is not None:
        return call.ty
    if called_name(call) in TIR_CALLS and len(call.ty_args):
        return call.ty_args[0]
    return relax.BlockBuilder().normalize(call).ty


def call_shape(call: ir.Call, out_type: ir.Type | None = None) -> CallShape:
    """Describe a call (DIST0402 when a tensor's shape is unknown)."""
    name = called_name(call)
    ins: list[Any] = []
    dtypes: list[str] = []
    args: list[Any] = []
    for arg in call.args[1:] if name in TIR_CALLS else call.args:
        leaves = flat_types(arg.ty)
        if name in TIR_CALLS:  # symbols may stand among the operands
            leaves = [t for t in leaves if tensor_type(t) is not None]
        if leaves and all(tensor_type(t) is not None for t in leaves):
            shapes, kinds = _describe(name, "operand", leaves)
            args.append(tuple(range(len(ins), len(ins) + len(shapes))))
            ins.extend(shapes)
            dtypes.extend(kinds)
        else:
            args.append(_value(arg))
    outs, out_dtypes = _describe(name, "result", flat_types(result_type(call, out_type)))
    return CallShape(
        name, call.attrs, tuple(ins), tuple(outs), tuple(dtypes), tuple(out_dtypes), tuple(args)
    )
