# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute losses on the dims of their samples where a plan shards an inner one.

A loss often merges the dims of its samples first. A mesh axis that shards positions cannot shard
the merged dim, as its devices would hold blocks of every sample. Before::

    flat_logits = reshape(logits, (16 * 32, 128))
    flat_targets = reshape(targets, (16 * 32,))
    log_probs = log_softmax(flat_logits)
    loss = nll_loss(log_probs, flat_targets)

After::

    log_probs_rows = log_softmax(logits)
    classes_first = permute_dims(log_probs_rows, [0, 2, 1])
    loss = nll_loss(classes_first, targets)
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.types import relax_functions, static_shape
from tvm_distir.core.ops.dims import Shape, product, same
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.plan.name_patterns import match_name, plain_name
from tvm_distir.core.plan.schema import PlanRule
from tvm_distir.core.rewriting.calls import called_name
from tvm_distir.core.rewriting.functions import with_functions
from tvm_distir.core.rewriting.native.pruning import pruned
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import BlockWriter, with_body

_BY_ROW = frozenset(
    relax_names(
        "astype add divide equal exp log maximum minimum multiply negative nn.log_softmax "
        "nn.softmax not_equal subtract where max mean sum"
    )
)
"""Ops that treat each row by itself, where an axis they have is the last."""
_LOSS, _GRADIENT = "relax.nn.nll_loss", "relax.grad.nll_loss_backward"


def keep_rows(mod: ir.IRModule, rules: Sequence[PlanRule]) -> ir.IRModule:
    """Return a module whose losses keep the dims of samples that rules shard apart.

    Functions are those with a parameter that a rule shards along another dim than the first, and
    that a reshape merges into one with the dims before. A function of which a rule names a value
    of the merged rows stays as it is.
    """
    cut = [r for r in rules if r.kind == "param" and any(label > 0 for label in r.closed_labels)]
    named = [rule.name for rule in rules if rule.kind == "value"]
    changed_functions = {}
    for gv, fn in relax_functions(mod) if cut else ():
        inputs = {p: _inner(p, cut) for p in fn.params if static_shape(p.ty)}
        lead = _merged_dims(fn, {p: d for p, d in inputs.items() if d})
        if lead:
            trial = _Writer(lead)
            trial.function(fn)
            kept = trial.of_losses()
            names = [plain_name(str(var.name)) for var in kept]
            if kept and not any(match_name(plain_name(n), name) for n in named for name in names):
                changed_functions[gv] = _Writer(lead, kept).function(fn)
    return with_functions(mod, {**mod.functions, **changed_functions}) if changed_functions else mod


def _inner(param: relax.Var, rules: Sequence[PlanRule]) -> int:
    """Return the innermost dim along which rules shard a parameter."""
    name = plain_name(str(param.name))
    labels = (r.closed_labels for r in rules if match_name(plain_name(r.name), name))
    return max((max(of_rule) for of_rule in labels), default=0)


def _merged_dims(fn: relax.Function, cut: dict[relax.Var, int]) -> Shape | None:
    """Return the dims that a reshape merges of targets of a loss that are a sharded parameter."""
    merged: dict[ir.Expr, Shape] = {}
    for block in fn.body.blocks if cut else ():
        for binding in block.bindings:
            value = binding.value
            if _is_reshape(value) and value.args[0] in cut:
                source = value.args[0]
                count = _merged(source, value)
                if count > cut[source]:
                    merged[binding.var] = (static_shape(source.ty) or ())[:count]
            elif isinstance(value, ir.Call) and called_name(value) == _LOSS:
                if value.args[1] in merged:
                    return merged[value.args[1]]
    return None


def _is_reshape(value: Any) -> bool:
    return isinstance(value, ir.Call) and called_name(value) == "relax.reshape"


def _merged(source: ir.Expr, value: ir.Expr) -> int:
    """Return how many leading dims a reshape merges into one, while the others stay."""
    before, after = static_shape(source.ty) or (), static_shape(value.ty) or ()
    count = len(before) - len(after) + 1
    if not after or count < 2 or not all(map(same, before[count:], after[1:])):
        return 0
    return count if same(product(before[:count]), after[0]) else 0


class _Writer:
    """A writer of a function whose losses keep the leading dims of samples.

    Parameters
    ----------
    lead : tuple of int
        These dims.
    kept : set of Var, optional
        The merged values that are to keep them; all that can where it is None.
    """

    def __init__(self, lead: Shape, kept: Set[ir.Expr] | None = None) -> None:
        self.lead, self.kept = lead, kept
        self.rows: dict[ir.Expr, ir.Expr] = {}
        self.env: dict[ir.Expr, ir.Expr] = {}
        self.linked: list[tuple[ir.Expr, ...]] = []
        self.losses: set[ir.Expr] = set()
        self.writer = BlockWriter(relax.BlockBuilder(), False)

    def function(self, fn: relax.Function) -> relax.Function:
        """Return the function."""
        blocks = []
        for block in fn.body.blocks:
            dataflow = isinstance(block, relax.DataflowBlock)
            self.writer = BlockWriter(self.writer.builder, dataflow)
            for binding in block.bindings:
                self._binding(binding)
            blocks.append(self.writer.block())
        result = substitute(fn.body.body, self.env)
        blocks, pure = pruned(blocks, result)
        return with_body(fn, fn.params, blocks, result, pure)

    def of_losses(self) -> set[ir.Expr]:
        """Return the merged values that are computed with those of losses, row by row."""
        found, before = set(self.losses), 0
        while before < len(found):
            before = len(found)
            found.update(var for some in self.linked if found.intersection(some) for var in some)
        return found

    def _can_keep(self, var: relax.Var) -> bool:
        return self.kept is None or var in self.kept

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, substitute(binding.value, self.env)
        if isinstance(binding, relax.MatchCast):
            self.writer.bindings.append(relax.MatchCast(var, value, var.ty))
        elif not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            self.writer.bind(var, value)
        elif _is_reshape(value):
            self._reshape(var, value)
        else:
            self._call(var, value)

    def _reshape(self, var: relax.Var, value: ir.Call) -> None:
        source, shape = value.args[0], static_shape(var.ty) or ()
        known = self.rows.get(source)
        if known is not None and len(shape) == known.ty.ndim and all(
            map(same, shape, static_shape(known.ty) or ())
        ):  # fmt: skip
            self.env[var] = known
            return
        lead = (static_shape(source.ty) or ())[: len(self.lead)]
        fits = _merged(source, value) == len(self.lead) and all(map(same, lead, self.lead))
        if fits and self._can_keep(var):
            self.rows[var] = source
        self.writer.bind(var, value)

    def _call(self, var: relax.Var, call: ir.Call) -> None:
        name, new, read = str(call.op.name), None, [arg for arg in call.args if arg in self.rows]
        if name == _LOSS and self._has_rows(call.args[:2]):
            new = self._loss(call, 0)
            self.losses.update(read)
        elif name == _GRADIENT and self._has_rows(call.args[1:3]):
            new = self._loss(call, 1)
            self.losses.update((*read, var))
        elif name in _BY_ROW and read and self._can_keep(var):
            new = self._by_row(call, read)
        if new is None:
            self.writer.bind(var, call)
        elif len(static_shape(new.ty) or ()) == len(static_shape(var.ty) or ()):
            self.writer.bind(var, new)
        else:
            self.linked.append((*read, var))
            self.rows[var] = self.writer.add(new, f"{var.name}_rows")
            flat = relax.op.reshape(self.rows[var], static_shape(var.ty) or ())
            self.writer.bind(var, self.writer.builder.normalize(flat))

    def _has_rows(self, args: Sequence[ir.Expr]) -> bool:
        return all(arg in self.rows for arg in args)

    def _loss(self, call: ir.Call, first: int) -> ir.Expr:
        """Return a loss, or its gradient, whose class dim TVM has second."""
        args, count = [self.rows.get(arg, arg) for arg in call.args], len(self.lead)
        order = [0, count, *range(1, count)]
        args[first] = self.writer.emit(relax.op.permute_dims(args[first], order), "classes_first")
        new = self.writer.builder.normalize(ir.Call(call.op, args, call.attrs))
        if first == 0:
            return new
        gradient = self.writer.add(new, "classes_first_grad")
        back = relax.op.permute_dims(gradient, [0, *range(2, count + 1), 1])
        return self.writer.builder.normalize(back)

    def _by_row(self, call: ir.Call, read: Sequence[ir.Expr]) -> ir.Expr | None:
        """Return a call on rows; None where an operand or the axis does not allow it."""
        rank = max(arg.ty.ndim for arg in read)
        others = [arg for arg in call.args if arg not in self.rows and hasattr(arg.ty, "ndim")]
        if any(arg.ty.ndim >= rank for arg in others):
            return None
        attrs = call.attrs
        if hasattr(attrs, "axis"):
            axis = attrs.axis
            of_call = [axis] if isinstance(axis, int) else [*(axis or ())]
            if [int(a) % rank for a in of_call] != [rank - 1] or not getattr(
                attrs, "keepdims", True
            ):
                return None
            attrs = changed(attrs, axis=-1 if isinstance(axis, int) else [-1])
        args = [self.rows.get(arg, arg) for arg in call.args]
        return self.writer.builder.normalize(ir.Call(call.op, args, attrs))
