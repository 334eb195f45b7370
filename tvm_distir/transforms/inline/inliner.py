# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a function whose calls of private functions are replaced by their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax import Binding, Expr

from tvm_distir.core.ir.attributes import OPEN_AXES_ATTR, STATIONARY_ATTR, with_annotated
from tvm_distir.core.rewriting import all_bindings, callee_of
from tvm_distir.support import begin_block, end_block
from tvm_distir.transforms.outline.name_allocator import NameAllocator


def _callee_of(binding: Binding, callees: dict[str, relax.Function]) -> str | None:
    """Return the name of the function to inline that a binding calls."""
    callee = callee_of(binding.value)
    return str(callee.name_hint) if callee is not None and callee.name_hint in callees else None


@relax.expr_functor.mutator
class Inliner(relax.PyExprMutator):  # type: ignore[misc]
    """Inliner of calls in a single function, whose callees have been inlined already."""

    def __init__(self, callees: dict[str, relax.Function]) -> None:
        super().__init__()
        self.callees = callees
        self.names = NameAllocator()
        self.renaming = False
        self.in_dataflow = False
        self.dissolving = False
        self.stationary: list[str] = []
        self.open_axes: dict[str, list[int]] = {}

    def run(self, fn: relax.Function) -> relax.Function:
        """Return the function with its calls inlined; the given function is unchanged."""
        if not any(_callee_of(binding, self.callees) for binding in all_bindings(fn.body)):
            return fn
        bound = [binding.var for binding in all_bindings(fn.body)]
        self.names = NameAllocator(str(var.name) for var in [*fn.params, *bound])
        self.builder_.begin_scope(fn.params)
        body = self.visit_expr(fn.body)
        self.builder_.end_scope()
        return with_annotated(fn, body, self.stationary, self.open_axes)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Visit a dataflow block; it becomes a plain block if control flow is inlined."""
        names = [_callee_of(binding, self.callees) for binding in block.bindings]
        plain = any(name and _has_branches(self.callees[name]) for name in names)
        return self._visit_block(block, dataflow=not plain, dissolving=plain)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """Visit a plain block."""
        return self._visit_block(block, dataflow=False, dissolving=False)

    def _visit_block(
        self, block: relax.BindingBlock, dataflow: bool, dissolving: bool
    ) -> relax.BindingBlock:
        outer = self.in_dataflow, self.dissolving
        self.in_dataflow, self.dissolving = dataflow, dissolving
        begin_block(self.builder_, dataflow)
        for binding in block.bindings:
            self.visit_binding(binding)
        self.in_dataflow, self.dissolving = outer
        return end_block(self.builder_)

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        """Rename a variable of a callee's branches."""
        return self._defined(var, relax.Var) if self.renaming else var

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        """Rename a variable of a callee's branches; give it the class its block needs."""
        if not self.renaming and not self.dissolving:
            return var
        return self._defined(var, relax.Var if self.dissolving else relax.DataflowVar)

    def _defined(self, var: relax.Var, kind: Any) -> relax.Var:
        name = self.names.fresh(str(var.name)) if self.renaming else str(var.name)
        new = kind(name, var.ty)
        self.set_var_remap(var, new)
        return new

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> Expr:
        """Take the field directly if an argument is a tuple literal, as TVMScript does."""
        value = self.visit_expr(item.tuple_value)
        if isinstance(value, relax.Tuple):
            return value.fields[item.index]
        return relax.TupleGetItem(value, item.index)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace a call by the body of its callee."""
        name = _callee_of(binding, self.callees)
        if name is None:
            super().visit_var_binding_(binding)
            return
        args = [self.visit_expr(arg) for arg in binding.value.args]
        target = self.visit_var_def(binding.var)
        body = self._opened(self.callees[name], args)
        attrs: Any = self.callees[name].attrs or {}
        stationary = {str(n) for n in attrs.get(STATIONARY_ATTR, [])}
        opened = {str(n): list(axes) for n, axes in attrs.get(OPEN_AXES_ATTR, {}).items()}
        self.renaming = True
        inner = [b for block in body.blocks for b in block.bindings]
        last = inner[-1] if inner and _gives_result(inner[-1], body) else None
        if last is not None and str(last.var.name) in {*stationary, *opened}:
            last = None
        for inner_binding in inner if last is None else inner[:-1]:
            new = self._emit(inner_binding)
            self._note(str(inner_binding.var.name), new, stationary, opened)
        result = self.visit_expr(body.body if last is None else last.value)
        result = self.builder_.normalize(result)
        self.renaming = False
        self._bind(binding.var, target, result)

    def _bind(self, original: relax.Var, target: relax.Var, value: Expr) -> None:
        """Bind the variable of the call, with the type of the value where that is more precise."""
        if not tvm_ffi.structural_equal(target.ty, value.ty):
            target = type(target)(str(target.name), value.ty)
            self.set_var_remap(original, target)
        self.builder_.emit_normalized(relax.VarBinding(target, value))

    def _note(
        self, name: str, var: relax.Var, stationary: set[str], opened: dict[str, list[int]]
    ) -> None:
        """Copy the annotations of a callee's variable to this function."""
        if name in stationary:
            self.stationary.append(str(var.name))
        if name in opened:
            self.open_axes[str(var.name)] = opened[name]

    def _emit(self, binding: Binding) -> relax.Var:
        """Copy a binding of a callee under a free name."""
        value = self.builder_.normalize(self.visit_expr(binding.value))
        kind = relax.DataflowVar if self.in_dataflow else relax.Var
        cast = isinstance(binding, relax.MatchCast)
        new = kind(self.names.fresh(str(binding.var.name)), binding.ty if cast else value.ty)
        self.set_var_remap(binding.var, new)
        new_binding = relax.MatchCast(new, value, new.ty) if cast else relax.VarBinding(new, value)
        self.builder_.emit_normalized(new_binding)
        return new

    def _opened(self, callee: relax.Function, args: Sequence[Expr]) -> relax.SeqExpr:
        """Return a fresh copy of a callee's body with its parameters replaced by arguments."""
        fresh = relax.utils.copy_with_new_vars(callee)
        sizes: dict[tirx.Var, Expr] = {}
        for param, arg in zip(fresh.params, args, strict=True):
            _match_sizes(param.ty, arg.ty, sizes)
        if sizes:
            fresh = fresh.bind_symbolic_vars(sizes)
        bound = {}
        for param, arg in zip(fresh.params, args, strict=True):
            bound[param] = arg if _is_at_least(arg.ty, param.ty) else self._cast(param, arg)
        return fresh.bind_params(bound).body

    def _cast(self, param: relax.Var, arg: Any) -> relax.Var:
        """Bind an argument whose type is less precise than that of the parameter."""
        kind = relax.DataflowVar if self.in_dataflow else relax.Var
        new = kind(self.names.fresh(str(param.name)), param.ty)
        self.builder_.emit_normalized(relax.MatchCast(new, arg, param.ty))
        return new


def _gives_result(binding: Binding, body: relax.SeqExpr) -> bool:
    """Return whether a plain binding defines the variable that is the result."""
    is_var = isinstance(body.body, relax.Var) and isinstance(binding, relax.VarBinding)
    return is_var and bool(binding.var.same_as(body.body))


def _has_branches(fn: relax.Function) -> bool:
    return any(isinstance(binding.value, relax.If) for binding in all_bindings(fn.body))


def _is_at_least(actual: ir.Type, required: ir.Type) -> bool:
    """Return whether a type is at least as precise as another."""
    return bool(
        relax.analysis.type_base_check(required, actual) == relax.analysis.BaseCheckResult.PASS
    )


def _match_sizes(param: ir.Type, arg: ir.Type, sizes: dict[tirx.Var, Expr]) -> None:
    """Bind the symbolic sizes in a parameter's type to those of the argument's type."""
    if isinstance(param, relax.TupleType) and isinstance(arg, relax.TupleType):
        for field, other in zip(param.fields, arg.fields):
            _match_sizes(field, other, sizes)
        return
    declared, actual = _dims(param), _dims(arg)
    if len(declared) == len(actual):
        for field, other in zip(declared, actual):
            if isinstance(field, tirx.Var) and field not in sizes:
                sizes[field] = other


def _dims(ty: ir.Type) -> list[Expr]:
    if isinstance(ty, relax.ShapeType):
        return list(ty.values or [])
    shape = getattr(ty, "shape", None)
    return list(shape) if isinstance(shape, relax.ShapeExpr) else []
