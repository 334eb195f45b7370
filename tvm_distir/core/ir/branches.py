# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lift branches of an ``If`` into private functions of their free variables.

Before::

    if c:
        a = R.matmul(x, w)
        y = R.nn.relu(a)
    else:
        y = R.negative(x)

:func:`lift_branches`, for what cannot represent control flow (propagation, DTensors)::

    y_then = cls.main_y_then(x, w)
    y_else = cls.main_y_else(x)
    y = R.where(c, y_then, y_else)

:func:`outline_branches`, for TVM's memory planner, which reuses the storage of a branch for
bindings that run without it (the other branch, or those after the ``If``)::

    if c:
        y = cls.main_y_then(x, w)
    else:
        y = cls.main_y_else(x)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.ir import Call, Expr, Type
from tvm.relax import Binding, Function, Var

from tvm_distir.core.ir.attributes.keys import BRANCH_ATTR, OPEN_AXES_ATTR, STATIONARY_ATTR
from tvm_distir.support import PropagationError, Steps, unrolled, update_type

from .types import flat_types, relax_functions

SIDES = ("then", "else")


def holds_branch(fn: Function) -> bool:
    """Return whether a function holds an ``If`` (which cannot stand in a dataflow block)."""
    return isinstance(fn.body, relax.SeqExpr) and any(
        isinstance(block, relax.BindingBlock)
        and not isinstance(block, relax.DataflowBlock)
        and any(isinstance(b.value, relax.If) for b in block.bindings)
        for block in fn.body.blocks
    )


def branch_of(fn: Expr) -> tuple[str, str] | None:
    """Return the ``If`` that a function is a branch of, and its side; None for other functions."""
    if not isinstance(fn, relax.Function) or not fn.attrs or BRANCH_ATTR not in fn.attrs:
        return None
    name, _, side = str(fn.attrs[BRANCH_ATTR]).rpartition(":")
    return name, side


def lift_branches(mod: ir.IRModule, *, masked: bool = False) -> ir.IRModule:
    """Replace every ``If`` by calls of its branches and an ``R.where`` per result tensor.

    Functions of branches are private and marked by the attribute ``dist.branch``. Both are pure
    and total by construction of Relax, so the module computes the same.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2; it is not changed (and returned when it holds no ``If``).
    masked : bool
        Whether the branch that is not taken gets zeros for floats, so that no gradient is NaN.

    Raises
    ------
    PropagationError
        DIST0413 naming the ``If``: an impure branch, a result that is no tensor, branches of
        different shapes, a condition that is no scalar tensor.
    """
    return _Lifter(mod, select=True, masked=masked).run()


def outline_branches(mod: ir.IRModule) -> ir.IRModule:
    """Replace the branches of every ``If`` by calls of private functions; the ``If`` stays.

    Parameters
    ----------
    mod : IRModule
        A module of plain tensors; it is not changed (and returned when it holds no ``If``).
    """
    return _Lifter(mod, select=False).run()


class _Lifter:
    """A pass over a module that lifts the branches of its functions."""

    def __init__(self, mod: ir.IRModule, *, select: bool, masked: bool = False) -> None:
        self.mod, self.select, self.masked = mod, select, masked
        self.builder = relax.BlockBuilder()
        self.functions: dict[ir.GlobalVar, Expr] = dict(mod.functions.items())
        self.used_names = {str(gv.name_hint) for gv in mod.functions}
        self.function = ""
        self.notes: Any = {}

    def run(self) -> ir.IRModule:
        """Return the new module, or the old module when nothing is to be done."""
        branching = [(gv, fn) for gv, fn in relax_functions(self.mod) if holds_branch(fn)]
        if not branching:
            return self.mod
        for gv, fn in branching:
            self.function, self.notes = str(gv.name_hint), fn.attrs or {}
            body = unrolled(self._sequence(fn.body))
            self.functions[gv] = relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, fn.attrs)
        return ir.IRModule(self.functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    def _sequence(self, seq: relax.SeqExpr) -> Steps[relax.SeqExpr]:
        blocks = []
        for block in seq.blocks:
            if isinstance(block, relax.DataflowBlock):
                blocks.append(block)
                continue
            bindings: list[Binding] = []
            for b in block.bindings:
                is_branch = isinstance(b.value, relax.If)
                bindings += (yield from self._branches(b)) if is_branch else [b]
            blocks.append(relax.BindingBlock(bindings))
        return _typed(relax.SeqExpr(blocks, seq.body), seq.body.ty)

    def _branches(self, binding: Binding) -> Steps[list[Any]]:
        value, var = binding.value, binding.var
        if self.select:
            self._check_condition(var, value.cond)
        name = self._fresh(f"{self.function}_{re.sub(r'[^0-9A-Za-z_]', '_', str(var.name))}")
        branches = []
        for side, seq in zip(SIDES, (value.true_branch, value.false_branch), strict=True):
            if self.select:
                self._check_branch(var, side, seq)
            if self.select or not _only_calls(seq):
                seq = yield from self._outlined(var, name, side, seq)
            branches.append(seq)
        if self.select:
            calls = [seq.blocks[0].bindings[0].value for seq in branches]
            return self._selection(var, value.cond, calls)
        return [relax.VarBinding(var, _typed(relax.If(value.cond, *branches), value.ty))]

    def _outlined(self, var: Var, name: str, side: str, seq: relax.SeqExpr) -> Steps[relax.SeqExpr]:
        """Return a branch that is a call of the function made of it."""
        call = self._lifted(name, side, (yield self._sequence(seq)))
        inner = relax.Var(f"{var.name}_{side}", call.ty)
        block = relax.BindingBlock([relax.VarBinding(inner, call)])
        return _typed(relax.SeqExpr([block], inner), inner.ty)

    def _fresh(self, wish: str) -> str:
        name, number = wish, 0
        while any(f"{name}_{side}" in self.used_names for side in SIDES):
            number += 1
            name = f"{wish}_{number}"
        self.used_names.update(f"{name}_{side}" for side in SIDES)
        return name

    def _lifted(self, name: str, side: str, seq: relax.SeqExpr) -> Call:
        """Make a branch a function of its free variables; return the call of it."""
        free = [v for v in relax.analysis.free_vars(seq) if not isinstance(v.ty, ir.PrimType)]
        attrs = {BRANCH_ATTR: f"{name}:{side}", **self._notes_inside(seq)}
        pure = not relax.analysis.contains_impure_call(seq)
        args: list[Any] = list(free)
        fn = relax.Function(free, seq, seq.body.ty, pure)
        sizes = list(relax.analysis.free_symbolic_vars(fn))
        if sizes:  # a parameter that gives the symbolic sizes that no tensor gives
            args.append(relax.ShapeExpr(sizes))
            free.append(relax.Var("sizes", args[-1].ty))
            fn = relax.Function(free, seq, seq.body.ty, pure)
        fn = relax.utils.copy_with_new_vars(fn)
        attributes = ir.make_node("ir.DictAttrs", **attrs)
        fn = relax.Function(fn.params, fn.body, fn.ret_ty, pure, attributes)
        gv = _typed(ir.GlobalVar(f"{name}_{side}"), fn.ty)
        self.functions[gv] = fn
        return self.builder.normalize(ir.Call(gv, args))

    def _notes_inside(self, seq: relax.SeqExpr) -> dict[str, Any]:
        """Record the annotated variables that the branch binds."""
        bound = [str(b.var.name) for block in seq.blocks for b in block.bindings]
        stationary = {str(n) for n in self.notes.get(STATIONARY_ATTR, [])}
        opened = {str(n): list(axes) for n, axes in self.notes.get(OPEN_AXES_ATTR, {}).items()}
        attrs: dict[str, Any] = {}
        if stationary & set(bound):
            attrs[STATIONARY_ATTR] = [n for n in bound if n in stationary]
        if set(opened) & set(bound):
            attrs[OPEN_AXES_ATTR] = {n: opened[n] for n in bound if n in opened}
        return attrs

    def _selection(self, var: Var, cond: Any, calls: list[Call]) -> list[Any]:
        bindings: list[Any] = []
        sides = []
        for side, call in zip(SIDES, calls, strict=True):
            if self.masked:
                call = self._masked(cond, side, call, bindings)
            sides.append(relax.Var(f"{var.name}_{side}", call.ty))
            bindings.append(relax.VarBinding(sides[-1], call))
        chosen = self._chosen(str(var.name), cond, sides[0], sides[1], bindings)
        if not tvm_ffi.structural_equal(var.ty, chosen.ty):
            remedy = "Make both return tensors of the same known shapes."
            raise self._error(var, f"its branches return {sides[0].ty} and {sides[1].ty}", remedy)
        bindings.append(relax.VarBinding(var, chosen))
        return bindings

    def _masked(self, cond: Any, side: str, call: Call, bindings: list[Any]) -> Call:
        """Return the call with zeros for float tensors where the other side is taken."""
        args = list(call.args)
        for i, arg in enumerate(args):
            if isinstance(arg.ty, relax.TensorType) and "float" in str(arg.ty.dtype):
                pair = [arg, relax.const(0, arg.ty.dtype)]
                value = relax.op.where(cond, *(pair if side == SIDES[0] else pair[::-1]))
                var = relax.Var(f"{arg.name}_{side}", arg.ty)
                bindings.append(relax.VarBinding(var, self.builder.normalize(value)))
                args[i] = var
        return self.builder.normalize(ir.Call(call.op, args))

    def _chosen(self, name: str, cond: Any, first: Any, other: Any, bindings: list[Binding]) -> Any:
        """Choose leaf by leaf, and bind all values but the outermost."""
        if not isinstance(first.ty, relax.TupleType):
            return self.builder.normalize(relax.op.where(cond, first, other))
        fields = []
        for i in range(len(first.ty.fields)):
            items = []
            for side, full in zip(SIDES, (first, other), strict=True):
                item = relax.TupleGetItem(full, i)
                items.append(relax.Var(f"{name}_{side}_{i}", full.ty.fields[i]))
                bindings.append(relax.VarBinding(items[-1], item))
            value = self._chosen(f"{name}_{i}", cond, items[0], items[1], bindings)
            fields.append(relax.Var(f"{name}_{i}", value.ty))
            bindings.append(relax.VarBinding(fields[-1], value))
        return self.builder.normalize(relax.Tuple(fields))

    def _error(self, var: Var, problem: str, remedy: str) -> PropagationError:
        return PropagationError(
            "DIST0413", problem, location=f"{self.function}/{var.name} (If)", remedy=remedy
        )

    def _check_condition(self, var: Var, cond: Any) -> None:
        ty = cond.ty
        scalar = isinstance(ty, relax.TensorType) and int(ty.ndim) == 0
        if not scalar or str(ty.dtype) != "bool":
            problem = f"its condition is {ty}, and only a tensor can be the same on all devices"
            raise self._error(var, problem, 'Compute it as R.Tensor((), "bool").')

    def _check_branch(self, var: Var, side: str, seq: relax.SeqExpr) -> None:
        if relax.analysis.contains_impure_call(seq):
            raise self._error(
                var,
                f'its branch "{side}" contains an impure call: effects cannot be lifted out of '
                "an If",
                "Move the call out of the If, or make it pure (call_pure_packed).",
            )
        leaves = flat_types(seq.body.ty)
        wrong = [ty for ty in leaves if not isinstance(ty, relax.TensorType)]
        if wrong or not leaves:
            raise self._error(
                var,
                f'its branch "{side}" returns {wrong[0] if wrong else "nothing"}, which is not a '
                "tensor",
                "Make it return tensors, or tuples of tensors.",
            )
        if any(ty.shape is None for ty in leaves) or not tvm_ffi.structural_equal(
            seq.body.ty, var.ty
        ):
            problem = f'its branch "{side}" returns {seq.body.ty}, the If {var.ty}'
            remedy = "Make both branches return tensors of the same known shapes."
            raise self._error(var, problem, remedy)


def _only_calls(seq: relax.SeqExpr) -> bool:
    """Return whether a branch calls functions of the module and does nothing else."""
    return all(
        isinstance(b.value, ir.Call) and isinstance(b.value.op, ir.GlobalVar)
        for block in seq.blocks
        for b in block.bindings
    )


def branch_calls(mod: ir.IRModule, fn: Function) -> Iterator[tuple[Any, str, str]]:
    """Return the bindings that call lifted branches: binding, name of the ``If``, side."""
    for block in fn.body.blocks:
        for b in block.bindings:
            if isinstance(b.value, ir.Call) and isinstance(b.value.op, ir.GlobalVar):
                branch = branch_of(mod[b.value.op])
                if branch is not None:
                    yield b, *branch


def _typed(expr: Expr, ty: Type) -> Any:
    """Give a fresh expression its type."""
    update_type(expr, ty)
    return expr
