# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define products of rows with the matrices of their groups, as mixtures of experts compute them.

``R.dist.grouped_matmul(x, w, ids)`` multiplies row ``i`` of ``x (M, K)`` by matrix ``ids[i]`` of
``w (E, K, N)``; the rows need no order. ``R.dist.grouped_outer(x, y, ids)`` is what differentiates
it: matrix ``e`` is the sum of the outer products of the rows with ``ids[i] == e``. An id outside of
``0 .. E - 1`` selects no matrix: its row is zero, or adds to no sum. That is how a device that has
some of the experts leaves the rows of others out.

The attribute ``groups`` is the number of all matrices, of which a device may have a part. Rows are
taken to be spread evenly over them when FLOPs are counted. Like attention, these ops compute and
move nothing between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.support import MeshError

from .ops import PREFIX
from .types import static_shape

GROUPED_MATMUL_OP = f"{PREFIX}grouped_matmul"
GROUPED_OUTER_OP = f"{PREFIX}grouped_outer"
GROUPED_OPS = (GROUPED_MATMUL_OP, GROUPED_OUTER_OP)
"""Ops of this module, which stand at every level."""

_CALL = tvm_ffi.get_global_func("ir.Call")


def _grouped_call(name: str, args: list[ir.Expr], attrs: Mapping[str, int]) -> ir.Call:
    return _CALL(ir.Type.missing(), ir.Op.get(name), args, ir.DictAttrs(dict(attrs)), [], None)


def grouped_matmul(x: ir.Expr, w: ir.Expr, ids: ir.Expr, groups: int) -> ir.Call:
    """Multiply each row of ``x (M, K)`` by the matrix of ``w (E, K, N)`` that ``ids (M,)`` names.

    ``groups`` is the number of all matrices, which is ``E`` unless ``w`` is a part of them.
    """
    return _grouped_call(GROUPED_MATMUL_OP, [x, w, ids], {"groups": int(groups)})


def grouped_outer(x: ir.Expr, y: ir.Expr, ids: ir.Expr, groups: int, held: int) -> ir.Call:
    """Sum the outer products of rows ``x (M, K)`` and ``y (M, N)`` by group: ``(held, K, N)``."""
    attrs = {"groups": int(groups), "held": int(held)}
    return _grouped_call(GROUPED_OUTER_OP, [x, y, ids], attrs)


def _fault(call: ir.Call, what: str, remedy: str) -> MeshError:
    place = f"R.{str(call.op.name).removeprefix('relax.')}"
    return MeshError("DIST0207", what, place=place, remedy=remedy)


def _shapes(call: ir.Call, ranks: tuple[int, int, int]) -> list[tuple[Any, ...]]:
    """Return the shapes of the operands, which have the given ranks."""
    types = [arg.ty for arg in call.args]
    if len(types) != len(ranks) or not all(isinstance(ty, relax.TensorType) for ty in types):
        raise _fault(call, "an operand is no tensor", "Give two tensors and the ids of the groups.")
    shapes = [static_shape(ty) for ty in types]
    if any(s is None or len(s) != n for s, n in zip(shapes, ranks, strict=True)):
        raise _fault(call, "an operand has another number of dims", f"Give {ranks} dims.")
    if "int" not in str(types[2].dtype):
        raise _fault(call, "the ids are no integers", "Cast them to int32 or int64.")
    return [shape for shape in shapes if shape is not None]


def _infer_matmul(call: ir.Call, _: Any) -> Any:
    x, w, ids = _shapes(call, (2, 3, 1))
    if x[0] != ids[0] or x[1] != w[1]:
        what = f"the shapes {x}, {w} and {ids} do not fit"
        raise _fault(call, what, "Use (rows, in), (groups, in, out) and (rows,).")
    ty = call.args[0].ty
    return relax.TensorType([x[0], w[2]], ty.dtype, ty.vdevice)


def _infer_outer(call: ir.Call, _: Any) -> Any:
    x, y, ids = _shapes(call, (2, 2, 1))
    if not x[0] == y[0] == ids[0]:
        what = f"the shapes {x}, {y} and {ids} do not fit"
        raise _fault(call, what, "Use (rows, in), (rows, out) and (rows,).")
    ty = call.args[0].ty
    return relax.TensorType([int(call.attrs["held"]), x[1], y[1]], ty.dtype, ty.vdevice)


_INFER: Mapping[str, Callable[[ir.Call, Any], Any]] = {
    GROUPED_MATMUL_OP: _infer_matmul,
    GROUPED_OUTER_OP: _infer_outer,
}


def register_grouped() -> None:
    """Add the ops to TVM's registry and to the TVMScript parser."""
    import tvm.relax.script.parser.dist as parser_dist

    add = tvm_ffi.get_global_func("ir.RegisterOp")
    known = set(ir.Op.list_op_names())
    for make in (grouped_matmul, grouped_outer):
        name = PREFIX + make.__name__
        setattr(parser_dist, make.__name__, make)
        if name in known:
            continue
        add(name, (make.__doc__ or "").splitlines()[0])
        ir.register_op_attr(name, "FInferType", _INFER[name])
        ir.register_op_attr(name, "FPurity", True)


__all__ = [
    "GROUPED_MATMUL_OP",
    "GROUPED_OPS",
    "GROUPED_OUTER_OP",
    "grouped_matmul",
    "grouped_outer",
    "register_grouped",
]
