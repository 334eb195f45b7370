# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent a function as a list of bindings, to return some of them or inline calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, relax

from tvm_distir.core.ir import flat_types
from tvm_distir.core.rewriting import entry_of, substitute
from tvm_distir.support import update_type


@dataclass(frozen=True)
class TracedBinding:
    """A binding, and the function it comes from."""

    var: relax.Var
    value: relax.Expr
    function: str


def leaf_paths(ty: ir.Type) -> list[tuple[int, ...]]:
    """Return the tensor positions of a (nested) tuple type, in order; ``()`` for a tensor."""
    if not isinstance(ty, relax.TupleType):
        return [()]
    return [(i, *rest) for i, field in enumerate(ty.fields) for rest in leaf_paths(field)]


def callee_name(value: relax.Expr) -> str:
    """Return the name of the function a value calls, empty where it calls none."""
    called = isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar)
    return str(value.op.name_hint) if called else ""


def _item(value: relax.Expr) -> relax.Expr:
    if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
        return value.tuple_value.fields[int(value.index)]
    return value


@dataclass(frozen=True)
class TracedProgram:
    """A module's entry as steps, without dataflow blocks.

    Attributes
    ----------
    mod : IRModule
    steps : tuple of TracedBinding
    entry : str
        Name of the function.
    """

    mod: ir.IRModule
    steps: tuple[TracedBinding, ...]
    entry: str

    @staticmethod
    def of(mod: ir.IRModule) -> TracedProgram:
        """Trace a module's entry; the module is not changed."""
        plain, name = relax.transform.ToNonDataflow()(mod), entry_of(mod)
        return TracedProgram(plain, tuple(_steps(plain[name], name)), name)

    def can_open(self, number: int) -> bool:
        """Return whether a step calls a private function that is straight-line code."""
        name = callee_name(self.steps[number].value)
        if not name or not isinstance(self.mod[name], relax.Function):
            return False
        return not any(
            isinstance(s.value, relax.If | relax.Function) for s in _steps(self.mod[name], name)
        )

    def opened(self, number: int) -> TracedProgram:
        """Replace a call by the body of the called function."""
        call = self.steps[number]
        name = callee_name(call.value)
        callee = self.mod[name]
        env: dict[relax.Var, relax.Expr] = dict(zip(callee.params, call.value.args))
        body = []
        for step in _steps(callee, name):
            value = _item(substitute(step.value, env))
            env[step.var] = relax.Var(step.var.name, step.var.ty)
            body.append(TracedBinding(env[step.var], value, name))
        result = replace(call, value=_item(substitute(callee.body.body, env)))
        steps = (*self.steps[:number], *body, result, *self.steps[number + 1 :])
        return replace(self, steps=steps)

    def returning(self, leaves: Sequence[tuple[int, tuple[int, ...]]]) -> ir.IRModule:
        """Return the module whose entry returns only the given steps and ends after the last.

        Parameters
        ----------
        leaves : sequence of (step, path)
            Path of a tensor in the step's value, see :func:`leaf_paths`.
        """
        entry = self.mod[self.entry]
        last = max(number for number, _ in leaves)
        bindings = [relax.VarBinding(s.var, s.value) for s in self.steps[: last + 1]]
        returned = []
        for number, path in leaves:
            value = self.steps[number].var
            for index in path:
                item = relax.TupleGetItem(value, index)
                var = relax.Var(f"{self.steps[number].var.name}_item", value.ty.fields[index])
                bindings.append(relax.VarBinding(var, item))
                value = var
            returned.append(value)
        result = relax.Tuple(returned)
        body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
        update_type(body, result.ty)
        fn = relax.Function(list(entry.params), body, result.ty, bool(entry.is_pure), entry.attrs)
        functions = {gv: f for gv, f in self.mod.functions.items() if gv.name_hint != self.entry}
        gv = ir.GlobalVar(self.entry)
        update_type(
            gv, relax.FuncType([p.ty for p in entry.params], result.ty, bool(entry.is_pure))
        )
        return ir.IRModule(
            {**functions, gv: fn}, attrs=self.mod.attrs, global_infos=self.mod.global_infos
        )


def _steps(fn: relax.Function, name: str) -> list[TracedBinding]:
    return [TracedBinding(b.var, b.value, name) for block in fn.body.blocks for b in block.bindings]


def type_key(ty: ir.Type) -> tuple[object, ...]:
    """Return the global shapes and element types of a value, without placements."""
    keys = []
    for leaf in flat_types(ty):
        tensor = getattr(leaf, "tensor_ty", leaf)
        shape = getattr(tensor, "shape", None)
        sizes = None if shape is None else tuple(str(n) for n in shape)
        keys.append((sizes, str(getattr(tensor, "dtype", ""))))
    return tuple(keys)
