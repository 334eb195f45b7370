# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Annotate the values of a function with the placements of its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.ir import Expr
from tvm.relax import Binding, Function
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.attributes.readers import open_axes_of, param_names, with_annotated
from tvm_distir.core.ir.operators.names import new_name
from tvm_distir.core.ir.placement import placement_of
from tvm_distir.core.plan.matching import FunctionTargets
from tvm_distir.core.plan.name_patterns import plain_name
from tvm_distir.core.plan.schema import PlanRule
from tvm_distir.core.rewriting.calls import rebuild, typed
from tvm_distir.core.rewriting.nodes import make_var
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import rebound, substitute
from tvm_distir.core.rewriting.writer import BlockWriter, merged_blocks
from tvm_distir.support import Steps, unrolled

SUFFIX = "_placed"


class Annotator:
    """An annotator of a function."""

    def __init__(self, targets: FunctionTargets, device_meshes: dict[str, DeviceMesh]) -> None:
        self.targets = targets
        self.device_meshes = device_meshes
        self.pending: list[tuple[Any, str, PlanRule]] = []
        self.escaping: set[Expr] = set()
        self.used_names: set[str] = set()
        self.stationary: list[str] = []
        self.open_axes: dict[str, list[int]] = {}
        self.writer = BlockWriter(relax.BlockBuilder(), False)
        self.env: dict[Expr, Expr] = {}  # what is annotated, by what it was
        self.annotations: dict[Any, Any] = {}  # annotations, by mesh and labels

    def annotate(self, fn: Function) -> Function:
        """Return the annotated function; the original is not modified."""
        bound = [b.var for b in all_bindings(fn.body)]
        self.used_names = {plain_name(str(v.name)) for v in [*fn.params[:], *bound]}
        names, params = param_names(fn), fn.params[:]
        self.pending = [
            (params[i], names[i], self.targets.params[i]) for i in sorted(self.targets.params)
        ]
        blocks = list(fn.body.blocks)
        if not blocks:
            blocks = [relax.BindingBlock([])]
        self.escaping = set(relax.analysis.all_vars(relax.SeqExpr(blocks[1:], fn.body.body)))
        body = unrolled(self._sequence(blocks, fn.body.body))
        stated = {i: rule.orders for i, rule in self.targets.params.items() if rule.orders}
        orders = {str(params[i].name): stated[i] for i in sorted(stated)}
        return with_annotated(fn, body, self.stationary, self.open_axes, orders)

    def _sequence(self, blocks: Sequence[relax.BindingBlock], result: Expr) -> Steps[relax.SeqExpr]:
        """Annotate a body; the parameters first, where this is the first block of all."""
        around, new_blocks = self.writer, []
        for block in blocks:
            self.writer = BlockWriter(around.builder, isinstance(block, relax.DataflowBlock))
            self._annotate_params()
            for binding in block.bindings[:]:
                yield from self._binding(binding)
            new_blocks.append(self.writer.block())
        self.writer = around
        result = substitute(result, self.env)
        return typed(relax.SeqExpr(merged_blocks(new_blocks), result), result.ty)

    def _binding(self, binding: Binding) -> Steps[None]:
        """Annotate the arguments of a call, and the value after it is bound."""
        var, value = binding.var, binding.value
        rules = self.targets.args.get(var)
        new = yield from self._value(value)
        if type(binding) is relax.MatchCast:
            self.writer.bindings.append(rebound(binding, new))
            return
        if rules is not None:
            args = new.args[:]
            for i in sorted(rules):
                name = str(getattr(args[i], "name", "constant")).removesuffix(SUFFIX)
                args[i] = self._placed(args[i], name, rules[i], self.writer.dataflow)
            new = rebuild(new, new.op, args, new.ty)
        self.writer.bindings.append(rebound(binding, new))
        rule = self.targets.values.get(var)
        if rule is not None:
            local = type(var) is relax.DataflowVar
            self.env[var] = self._placed(var, str(var.name), rule, local)

    def _value(self, value: Expr) -> Steps[Any]:
        """Return the bound value with annotated operands."""
        kind = type(value)
        if kind is relax.If:
            sides = (yield self._inner(value.true_branch)), (yield self._inner(value.false_branch))
            return typed(relax.If(substitute(value.cond, self.env), *sides), value.ty)
        if kind is relax.Function:
            body = yield self._inner(value.body)
            return relax.Function(value.params, body, value.ret_ty, value.is_pure, value.attrs)
        return substitute(value, self.env)

    def _inner(self, body: relax.SeqExpr) -> Steps[relax.SeqExpr]:
        return self._sequence(body.blocks[:], body.body)

    def _annotate_params(self) -> None:
        pending, self.pending = self.pending, []
        for param, name, rule in pending:
            local = self.writer.dataflow and param not in self.escaping
            self.env[param] = self._placed(param, name, rule, local)

    def _placed(self, value: Expr, name: str, rule: PlanRule, local: bool) -> Expr:
        """Annotate ``value``, twice where it is stationary along some axes only."""
        if not (rule.stationary and rule.moving):
            return self._emit(value, name, rule, local)
        stored = self._emit(value, name, replace(rule, stationary=False), local)
        fixed = [None if axis in rule.moving else x for axis, x in enumerate(rule.placement)]
        return self._emit(stored, name, replace(rule, placement=tuple(fixed)), local)

    def _emit(self, value: Expr, name: str, rule: PlanRule, local: bool) -> Expr:
        """Bind the annotation of ``value`` and give back its variable."""
        unique = new_name(plain_name(name) + SUFFIX, self.used_names)
        key = (rule.mesh, rule.closed_labels)
        if key not in self.annotations:
            mesh, placement = self.device_meshes[rule.mesh], placement_of(rule.closed_labels)
            self.annotations[key] = relax.op.distributed.annotate_sharding(value, mesh, placement)
        annotation = rebuild(self.annotations[key], self.annotations[key].op, [value], value.ty)
        var = make_var(unique, value.ty, local)
        self.writer.bind(var, annotation)
        if rule.stationary:
            self.stationary.append(unique)
        open_axes = open_axes_of(rule.placement)
        if open_axes:
            self.open_axes[unique] = open_axes
        return var
