# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute on the dims of samples what merges them, where a plan shards an inner one.

A loss often merges the dims of its samples first, and so do products in graphs of PyTorch. A mesh
axis that shards positions cannot shard the merged dim, as its devices would hold blocks of every
sample. Before::

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

from collections.abc import Iterable, Sequence, Set
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.ir.types import relax_functions, static_shape
from tvm_distir.core.ops.dims import Shape, product, same
from tvm_distir.core.plan.name_patterns import match_name, plain_name
from tvm_distir.core.plan.roles import data_positions
from tvm_distir.core.plan.schema import PlanRule
from tvm_distir.core.rewriting.calls import called_name
from tvm_distir.core.rewriting.functions import with_functions
from tvm_distir.core.rewriting.native.pruning import pruned
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import BlockWriter, with_body

from .row_calls import RowCalls, Rows, merged_rows, same_dims, transposed_source


def keep_rows(mod: ir.IRModule, rules: Sequence[PlanRule]) -> ir.IRModule:
    """Return a module that keeps the dims of samples that rules shard apart.

    These are the leading dims of data of which a rule shards another than the first. Values of
    them stay merged where an op needs more than single numbers of the merged rows. A function of
    which a rule names a value of merged rows stays as it is, unless a rule names a value that is
    written for it here.
    """
    sharded = [r for r in rules if r.kind == "param" and max(r.closed_labels, default=0) > 0]
    named = [rule.name for rule in rules if rule.kind == "value"]
    new = {}
    for gv, fn in relax_functions(mod) if sharded else ():
        prefixes = _prefixes(fn, str(gv.name_hint), sharded)
        written, writer = _kept(fn, prefixes) if prefixes else (fn, None)
        if writer and (_names(named, writer.new_rows) or not _names(named, writer.flat)):
            new[gv] = written
    return with_functions(mod, {**mod.functions, **new}) if new else mod


def _names(rules: Sequence[str], variables: Iterable[ir.Expr]) -> bool:
    """Return whether a rule names one of some variables."""
    names = [plain_name(str(var.name)) for var in variables]
    return any(match_name(rule, name) for rule in rules for name in names)


def _prefixes(fn: relax.Function, name: str, sharded: Sequence[PlanRule]) -> list[Shape]:
    """Return the dims of data before those that rules shard."""
    prefixes, names = [], param_names(fn)
    for position in data_positions(fn, name):
        dims = [max(r.closed_labels) for r in sharded if match_name(r.name, names[position])]
        shape = static_shape(fn.params[position].ty) or ()
        prefixes += [shape[: max(dims)]] if dims else []
    return [prefix for prefix in prefixes if prefix]


def _kept(fn: relax.Function, prefixes: Sequence[Shape]) -> tuple[relax.Function, Any]:
    """Return a function that keeps the dims of samples and its writer; None where nothing does."""
    merged: set[ir.Expr] = set()
    while True:
        writer = _Writer(prefixes, merged)
        new = writer.function(fn)
        more = [*writer.moved]
        for var in more:  # and what they are computed from
            more += [arg for arg in writer.reads[var] if arg in writer.reads and arg not in more]
        if not more:
            return new, writer if writer.flat else None
        merged.update(more)


class _Writer:
    """A writer of a function that keeps leading dims of samples.

    Parameters
    ----------
    prefixes : sequence of tuple of int
        The dims with which values begin whose rows are kept.
    merged : set of Var
        The values whose rows stay merged.

    Attributes
    ----------
    flat, new_rows : list of Var
        Values of merged rows that the function no longer has, and those instead of them.
    reads : dict
        What is read by each value of merged rows that holds more than a number per row.
    moved : list of Var
        Those of these that the function reads.
    """

    def __init__(self, prefixes: Sequence[Shape], merged: Set[ir.Expr]) -> None:
        self.prefixes, self.merged = prefixes, merged
        self.flat: list[ir.Expr] = []
        self.new_rows: list[ir.Expr] = []
        self.moved: list[ir.Expr] = []
        self.reads: dict[ir.Expr, list[ir.Expr]] = {}
        self.env: dict[ir.Expr, ir.Expr] = {}
        self.writer = BlockWriter(relax.BlockBuilder(), False)
        self.calls = RowCalls(self.writer)

    def function(self, fn: relax.Function) -> relax.Function:
        """Return the function."""
        blocks = []
        for block in fn.body.blocks:
            self.writer = BlockWriter(self.writer.builder, isinstance(block, relax.DataflowBlock))
            self.calls = RowCalls(self.writer)  # values of a dataflow block end with it
            for binding in block.bindings:
                self._binding(binding.var, substitute(binding.value, self.env), binding)
            blocks.append(self.writer.block())
        result = substitute(fn.body.body, self.env)
        blocks, pure = pruned(blocks, result)
        read = {binding.var for block in blocks for binding in block.bindings}
        self.moved = [var for var in self.reads if var in read]
        self.new_rows = [var for var in self.new_rows if var in read]
        self.flat = [var for var in self.flat if var not in read]
        return with_body(fn, fn.params, blocks, result, pure)

    def _binding(self, var: relax.Var, value: ir.Expr, binding: relax.Binding) -> None:
        if isinstance(binding, relax.MatchCast):
            self.writer.bindings.append(relax.MatchCast(var, value, var.ty))
            return
        self.calls.values[var] = value
        name = called_name(value) if isinstance(value, ir.Call) else ""
        if name == "relax.reshape":
            self._reshape(var, value)
            return
        new = self.calls.of(var, value) if name and var not in self.merged else None
        if new is None:
            self.writer.bind(var, value)
        else:
            self._bind(var, value, self.writer.builder.normalize(new))

    def _reshape(self, var: relax.Var, value: ir.Call) -> None:
        """Write a reshape: of rows, to rows, or another."""
        source, shape, calls = value.args[0], static_shape(var.ty) or (), self.calls
        before = static_shape(source.ty) or ()
        if source in calls.rows:
            rows, lead = calls.rows[source]
            if shape and same(shape[0], product(lead)) and var not in self.merged:
                new = relax.op.reshape(rows, [*lead, *shape[1:]])
                self._bind(var, value, self.writer.builder.normalize(new))
                return
            if same_dims(lead, shape[: len(lead)]):
                value = self.writer.builder.normalize(relax.op.reshape(rows, shape))
                if same_dims(static_shape(rows.ty) or (), shape) and self._ends_here(var):
                    self.env[var] = rows
                    return
        elif count := merged_rows(before, shape):
            lead = before[:count]
            if any(len(p) < count and same_dims(p, lead[: len(p)]) for p in self.prefixes):
                self.flat.append(var)
                rows = source
                if not same_dims(before[count:], shape[1:]):
                    rows = self.writer.emit(relax.op.reshape(source, [*lead, *shape[1:]]), "rows")
                calls.rows[var] = Rows(rows, lead)
        elif transposed := transposed_source(value, calls.values):
            if any(same_dims(p, transposed.lead[: len(p)]) for p in self.prefixes):
                calls.transposed[var] = transposed
        self.writer.bind(var, value)

    def _ends_here(self, var: relax.Var) -> bool:
        """Return whether a variable is not read outside of its block."""
        return isinstance(var, relax.DataflowVar) or not self.writer.dataflow

    def _bind(self, var: relax.Var, old: ir.Call, new: ir.Expr) -> None:
        """Bind a variable to its value, which is computed on rows."""
        shape, lead = static_shape(var.ty) or (), self.calls.lead(old)
        of_new = static_shape(new.ty) or ()
        if same_dims(of_new, shape):
            self.writer.bind(var, new)
            return
        new_rows = self.writer.add(new, f"{var.name}_rows")
        if same_dims(of_new, [*lead, *shape[1:]]):
            self.flat.append(var)
            self.new_rows.append(new_rows)
            self.calls.rows[var] = Rows(new_rows, lead)
            if any(not same(n, 1) for n in shape[1:]):
                self.reads[var] = [*old.args]
        self.writer.bind(var, self.writer.builder.normalize(relax.op.reshape(new_rows, shape)))
