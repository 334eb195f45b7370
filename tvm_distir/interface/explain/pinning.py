# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Change the annotation of a value in a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm import ir, relax

from tvm_distir.core.ir import P, R, labels_of, meshes, placement_of
from tvm_distir.core.ir.attributes import OPEN_AXES_ATTR, open_axes_of, opened_labels
from tvm_distir.core.ir.operators import free_name
from tvm_distir.core.plan import OpenLabels
from tvm_distir.core.propagation import is_annotation

if TYPE_CHECKING:
    from tvm.relax.distributed import DeviceMesh

NAME = "explained"


def annotation_of(fn: relax.Function, var: relax.Var) -> relax.VarBinding | None:
    """Return the binding that annotates or binds a variable; None without one.

    A parameter with several annotations has no unique binding.
    """
    result = []
    for block in fn.body.blocks:
        for binding in block.bindings:
            value: relax.Expr = getattr(binding, "value", None)
            if is_annotation(value) and (binding.var.same_as(var) or value.args[0].same_as(var)):
                result.append(binding)
    return result[0] if len(result) == 1 else None


def annotated_labels(fn: relax.Function, binding: relax.VarBinding) -> OpenLabels:
    """Return the labels an annotation asks for, None or P along the axes it leaves open."""
    opened = _open_axes(fn).get(str(binding.var.name), [])
    return opened_labels(labels_of(binding.value.attrs.placement), opened)


def annotate_otherwise(
    mod: ir.IRModule, function: str, var: relax.Var, mesh: int, labels: OpenLabels
) -> ir.IRModule:
    """Return the module in which one value has another annotation; the given one is unchanged.

    Parameters
    ----------
    mod : IRModule
        Level 2.
    function : str
    var : Var
        A parameter or bound variable that holds one tensor. Its annotation is replaced; where it
        has none, an annotation is added right after its binding.
    mesh : int
        Number among the module's meshes.
    labels : tuple of int or None
        Per axis of the mesh; None leaves the axis open.
    """
    pinner = _Pinner(mod[function], var, meshes(mod)[mesh], labels)
    changed = {
        gv: pinner.run() if str(gv.name_hint) == function else old
        for gv, old in mod.functions.items()
    }
    return ir.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)


@relax.expr_functor.mutator
class _Pinner(relax.PyExprMutator):  # type: ignore[misc]
    """Mutator that annotates one value of a function."""

    def __init__(
        self, fn: relax.Function, var: relax.Var, mesh: DeviceMesh, labels: OpenLabels
    ) -> None:
        super().__init__()
        self.fn, self.var, self.mesh, self.labels = fn, var, mesh, labels
        self.old = annotation_of(fn, var)
        self.name = str(self.old.var.name) if self.old is not None else free_name(NAME, _names(fn))

    def run(self) -> relax.Function:
        """Return the function with the annotation."""
        front = []
        self.builder_.begin_scope(self.fn.params)
        if self.old is None and any(p.same_as(self.var) for p in self.fn.params):
            front.append(self._annotation(self.var, relax.Var))
            self.set_var_remap(self.var, front[0].var)
        body = self.visit_expr(self.fn.body)
        self.builder_.end_scope()
        if front:
            body = relax.SeqExpr([relax.BindingBlock(front), *body.blocks], body.body)
        attrs = dict(self.fn.attrs or {})
        opened = {k: v for k, v in _open_axes(self.fn).items() if k != self.name}
        axes = open_axes_of(self.labels)
        if axes:
            opened[self.name] = axes
        if opened or OPEN_AXES_ATTR in attrs:
            attrs[OPEN_AXES_ATTR] = opened
        attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
        return relax.Function(self.fn.params, body, self.fn.ret_ty, self.fn.is_pure, attributes)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace the old annotation, or add one after the variable is bound."""
        if self.old is not None and binding.var.same_as(self.old.var):
            call = self._call(self.visit_expr(binding.value.args[0]))
            self.builder_.emit_normalized(relax.VarBinding(binding.var, call))
            return
        super().visit_var_binding_(binding)
        self._after(binding.var)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Add an annotation after a cast."""
        super().visit_match_cast_(binding)
        self._after(binding.var)

    def _after(self, var: relax.Var) -> None:
        if self.old is None and var.same_as(self.var):
            kind = relax.DataflowVar if isinstance(var, relax.DataflowVar) else relax.Var
            call = self._annotation(self.visit_expr(var), kind)
            self.builder_.emit_normalized(call)
            self.set_var_remap(var, call.var)

    def _call(self, value: relax.Expr) -> relax.Expr:
        closed = [R if x is None or x == P else x for x in self.labels]
        return self.builder_.normalize(
            relax.op.distributed.annotate_sharding(value, self.mesh, placement_of(closed))
        )

    def _annotation(self, value: relax.Expr, kind: type[relax.Var]) -> relax.VarBinding:
        call = self._call(value)
        return relax.VarBinding(kind(self.name, call.ty), call)


def _open_axes(fn: relax.Function) -> dict[str, Sequence[int]]:
    attrs = fn.attrs[OPEN_AXES_ATTR] if fn.attrs and OPEN_AXES_ATTR in fn.attrs else {}
    return {str(name): [int(a) for a in axes] for name, axes in attrs.items()}


def _names(fn: relax.Function) -> set[str]:
    """Return the names of parameters and variables."""
    bound = (str(b.var.name) for block in fn.body.blocks for b in block.bindings)
    return {*bound, *(str(p.name) for p in fn.params)}
