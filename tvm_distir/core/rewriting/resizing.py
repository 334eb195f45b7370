# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the symbolic dims of a function; placements and calls stay as they are.

TVM's own rewriters infer types again, which loses placements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from tvm_distir.support import GenericConst

from .calls import rebuild, tuple_of, typed
from .substitute import VARIABLES
from .writer import with_body

Resize = Callable[[Any], Any]
"""Returns the new form of an extent, which is an expression."""


def resized_type(ty: ir.Type, resize: Resize) -> Any:
    """Return a type with new extents, itself where it has none."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([resized_type(field, resize) for field in ty.fields])
    if isinstance(ty, DTensorType):
        tensor = resized_type(ty.tensor_ty, resize)
        return ty if tensor is ty.tensor_ty else DTensorType(tensor, ty.device_mesh, ty.placement)
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        if all(isinstance(n, tirx.IntImm) for n in ty.shape.values):
            return ty
        return relax.TensorType(list(map(resize, ty.shape.values)), ty.dtype, ty.vdevice)
    if isinstance(ty, relax.ShapeType) and ty.values is not None:
        return relax.ShapeType(list(map(resize, ty.values)))
    return ty


class _FunctionResizing:
    """A rewriting of a function, with its new variables."""

    def __init__(self, resize: Resize) -> None:
        self.resize = resize
        self.env: dict[ir.Expr, ir.Expr] = {}

    def variable(self, var: relax.Var) -> Any:
        new = type(var)(var.name, resized_type(var.ty, self.resize))
        self.env[var] = new
        return new

    def expression(self, expr: ir.Expr) -> Any:
        if type(expr) in VARIABLES and expr in self.env:
            return self.env[expr]
        if isinstance(expr, ir.GlobalVar | relax.ExternFunc | ir.Op | GenericConst):
            return expr
        if isinstance(expr, relax.ShapeExpr):
            return relax.ShapeExpr(list(map(self.resize, expr.values)))
        if isinstance(expr, relax.Tuple):
            return tuple_of([self.expression(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            item = relax.TupleGetItem(self.expression(expr.tuple_value), expr.index)
            return typed(item, resized_type(expr.ty, self.resize))
        if isinstance(expr, ir.Call) and not isinstance(expr.ty, ir.PrimType):
            args = [self.expression(arg) for arg in expr.args]
            call = rebuild(expr, expr.op, args, resized_type(expr.ty, self.resize))
            types = [resized_type(ty, self.resize) for ty in expr.ty_args]
            if all(new is old for new, old in zip(types, expr.ty_args, strict=True)):
                return call
            return typed(ir.Call(call.op, args, call.attrs, types), call.ty)
        return self.resize(expr) if isinstance(expr.ty, ir.PrimType) else expr

    def run(self, fn: relax.Function) -> relax.Function:
        params = [self.variable(param) for param in fn.params]
        blocks = []
        for block in fn.body.blocks:
            bindings = []
            for binding in block.bindings:
                value = self.expression(binding.value)
                bindings.append(relax.VarBinding(self.variable(binding.var), value))
            blocks.append(type(block)(bindings))
        return with_body(fn, params, blocks, self.expression(fn.body.body), bool(fn.is_pure))


def with_extents(fn: relax.Function, resize: Resize) -> relax.Function:
    """Return a function without branches with new extents in its types and expressions.

    Parameters
    ----------
    fn : relax.Function
    resize : callable
        Returns the new form of an extent.
    """
    return _FunctionResizing(resize).run(fn)
