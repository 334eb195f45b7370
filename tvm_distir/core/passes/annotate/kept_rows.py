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

from collections.abc import Iterable, Sequence
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
_RESHAPE = "relax.reshape"


def keep_rows(mod: ir.IRModule, rules: Sequence[PlanRule]) -> ir.IRModule:
    """Return a module whose losses keep the dims of samples that rules shard apart.

    These are losses whose targets are a parameter that a rule shards along another dim than the
    first, and that a reshape merges. A function of which a rule names a value of the merged rows
    stays as it is, unless a rule names a value that is written for it here.
    """
    sharded = [r for r in rules if r.kind == "param" and max(r.closed_labels, default=0) > 0]
    named = [rule.name for rule in rules if rule.kind == "value"]
    new = {}
    for gv, fn in relax_functions(mod) if sharded else ():
        lead, classes = _merged_targets(fn, sharded)
        writer = _Writer(lead, classes)
        written = writer.function(fn) if lead else fn
        if written is not fn and (_names(named, writer.made) or not _names(named, writer.rows)):
            new[gv] = written
    return with_functions(mod, {**mod.functions, **new}) if new else mod


def _names(rules: Sequence[str], variables: Iterable[ir.Expr]) -> bool:
    """Return whether a rule names one of some variables."""
    names = [plain_name(str(var.name)) for var in variables]
    return any(match_name(rule, name) for rule in rules for name in names)


def _merged_targets(fn: relax.Function, sharded: Sequence[PlanRule]) -> tuple[Shape, Any]:
    """Return the dims that the targets of a loss merge, one of them sharded, and its classes."""
    merged: dict[ir.Expr, Shape] = {}
    inner: dict[ir.Expr, int] = {}
    for param in fn.params:
        if "int" in str(getattr(param.ty, "dtype", "")):  # as targets are
            name = plain_name(str(param.name))
            dims = [max(r.closed_labels) for r in sharded if match_name(r.name, name)]
            inner |= {param: max(dims)} if dims else {}
    for binding in (b for block in (fn.body.blocks if inner else ()) for b in block.bindings):
        value = binding.value
        if _calls(value, _RESHAPE) and value.args[0] in inner:
            count = _merged(value)
            if inner[value.args[0]] < count:
                merged[binding.var] = (static_shape(value.args[0].ty) or ())[:count]
        elif _calls(value, _LOSS) and value.args[1] in merged:
            return merged[value.args[1]], (static_shape(value.args[0].ty) or (0, 0))[1]
    return (), 0


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, ir.Call) and called_name(value) == name


def _merged(call: ir.Call) -> int:
    """Return how many leading dims a reshape merges into one, while the others stay."""
    before, after = static_shape(call.args[0].ty) or (), static_shape(call.ty) or ()
    count = len(before) - len(after) + 1
    stay = bool(after) and count > 1 and all(map(same, before[count:], after[1:]))
    return count if stay and same(product(before[:count]), after[0]) else 0


class _Writer:
    """A writer of a function whose losses keep the leading dims ``lead`` of samples."""

    def __init__(self, lead: Shape, classes: Any) -> None:
        self.lead, self.classes, self.losses, self.made = lead, classes, 0, list[ir.Expr]()
        self.rows: dict[ir.Expr, ir.Expr] = {}
        self.env: dict[ir.Expr, ir.Expr] = {}
        self.writer = BlockWriter(relax.BlockBuilder(), False)

    def function(self, fn: relax.Function) -> relax.Function:
        """Return the function; itself where it has no such loss."""
        blocks = []
        for block in fn.body.blocks:
            self.writer = BlockWriter(self.writer.builder, isinstance(block, relax.DataflowBlock))
            for binding in block.bindings:
                self._binding(binding.var, substitute(binding.value, self.env), binding)
            blocks.append(self.writer.block())
        if not self.losses:
            return fn
        result = substitute(fn.body.body, self.env)
        blocks, pure = pruned(blocks, result)
        return with_body(fn, fn.params, blocks, result, pure)

    def _binding(self, var: relax.Var, value: ir.Expr, binding: relax.Binding) -> None:
        if isinstance(binding, relax.MatchCast):
            self.writer.bindings.append(relax.MatchCast(var, value, var.ty))
            return
        new = None
        if _calls(value, _RESHAPE):
            known, shape = self.rows.get(value.args[0]), static_shape(var.ty) or ()
            if known is not None and _same_shape(known, shape):
                self.env[var] = known
                return
            lead = (static_shape(value.args[0].ty) or ())[: len(self.lead)]
            tail = all(same(n, self.classes) for n in shape[1:]) and len(shape) < 3
            if tail and _merged(value) == len(self.lead) and all(map(same, lead, self.lead)):
                self.rows[var] = value.args[0]
        elif isinstance(value, ir.Call) and any(arg in self.rows for arg in value.args):
            new = self._call(value)
        if new is None or _same_shape(new, static_shape(var.ty) or ()):
            self.writer.bind(var, value if new is None else new)
            return
        self.rows[var] = self.writer.add(new, f"{var.name}_rows")
        self.made.append(self.rows[var])
        flat = relax.op.reshape(self.rows[var], static_shape(var.ty) or ())
        self.writer.bind(var, self.writer.builder.normalize(flat))

    def _call(self, call: ir.Call) -> ir.Expr | None:
        """Return a call on rows; None where its op, an operand or its axis does not allow it."""
        name, attrs = called_name(call), call.attrs
        args = [self.rows.get(arg, arg) for arg in call.args]
        if name in (_LOSS, _GRADIENT):
            first = int(name == _GRADIENT)
            of_rows = [arg for arg in call.args[: first + 2] if arg.ty.ndim]
            return self._loss(call, args, first) if self.rows.keys() >= {*of_rows} else None
        rank = max(arg.ty.ndim for arg in call.args if arg in self.rows)
        others = [arg for arg in call.args if arg not in self.rows]
        if name not in _BY_ROW or any(getattr(arg.ty, "ndim", 0) >= rank for arg in others):
            return None
        if hasattr(attrs, "axis"):
            is_number = isinstance(attrs.axis, int)
            axes = [attrs.axis] if is_number else [*(attrs.axis or ())]
            is_last = [int(axis) % rank for axis in axes] == [rank - 1]
            if not is_last or not getattr(attrs, "keepdims", True):
                return None
            attrs = changed(attrs, axis=-1 if is_number else [-1])
        return self.writer.builder.normalize(ir.Call(call.op, args, attrs))

    def _loss(self, call: ir.Call, args: list[ir.Expr], first: int) -> ir.Expr:
        """Return a loss, or its gradient, whose class dim TVM has second."""
        self.losses, count = self.losses + 1, len(self.lead)
        order = [0, count, *range(1, count)]
        args[first] = self.writer.emit(relax.op.permute_dims(args[first], order), "classes_first")
        new = self.writer.builder.normalize(ir.Call(call.op, args, call.attrs))
        if not first:
            return new
        gradient = self.writer.add(new, "classes_first_grad")
        back = relax.op.permute_dims(gradient, [0, *range(2, count + 1), 1])
        return self.writer.builder.normalize(back)


def _same_shape(value: ir.Expr, shape: Shape) -> bool:
    have = static_shape(value.ty) or ()
    return len(have) == len(shape) and all(map(same, have, shape))
