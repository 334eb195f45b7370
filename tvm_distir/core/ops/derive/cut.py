# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shrinks a PrimFunc to the shapes of a shard.

The rule derivation (``rules.tir_classes``) says which loops and buffer dims move together. A
device computes the first block of such a class: every loop and dim of it shrinks by the same
count, and all indices, which move by whole blocks, stay as they are. The result has fresh
variables: the full PrimFunc may stay in the module beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import Expr
from tvm.s_tir import renew_defs

from tvm_distir.core.ops.dims import plain, same, symbols
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.support import Analyzer

from .compute_blocks import NotUnderstood, blocks_of, kind_of
from .dim_groups import Buffers, Node, classes_of

Counts = Mapping[tuple[int, int], int]
"""(parameter, dim) to the number of parts it is sharded into."""


def _same(extent: Expr, other: Expr) -> bool:
    return same(plain(extent), plain(other))


class Cutter:
    """Rewriter of a PrimFunc to the shapes of a shard.

    Parameters
    ----------
    func : PrimFunc
    counts : Counts
        The numbers of parts of the dims of its parameters; those of other dims that move with them
        are computed.
    """

    def __init__(self, func: tirx.PrimFunc, counts: Counts) -> None:
        self.func = func
        self.blocks = list(blocks_of(func.body))
        self.numbers = Buffers(func)
        classes = classes_of(self.numbers, self.blocks)
        members = classes.members()
        self.parts: dict[Node, int] = {}
        for (param, dim), count in sorted(counts.items()):
            root = classes.find(("dim", param, dim))
            if root not in members:
                raise NotUnderstood(f"dim {dim} of parameter {param} is not traversed by a loop")
            for node in members[root]:
                if self.parts.setdefault(node, count) != count:
                    raise NotUnderstood("dims that are indexed together are sharded differently")
        self.buffers: dict[Expr, Expr] = {}
        self.loops: dict[Expr, Expr] = {}
        self.at = 0

    def _part(self, node: Node, extent: Expr) -> Expr:
        count = self.parts.get(node, 1)
        if count == 1:
            return extent
        if isinstance(extent, tirx.IntImm):
            return tirx.IntImm(str(extent.ty.dtype), -(-int(extent) // count))
        analyzer = Analyzer()
        rest = analyzer.simplify(tirx.floormod(extent, count))
        if not isinstance(rest, tirx.IntImm) or int(rest):
            raise NotUnderstood(f"the extent {extent} is not divisible by {count}")
        return analyzer.simplify(tirx.floordiv(extent, count))

    def run(self) -> tirx.PrimFunc:
        """Return the PrimFunc of a shard (NotUnderstood when it cannot be sharded)."""
        params = [self._buffer(p) for p in self.func.params]
        body = self._stmt(self.func.body)
        return tirx.PrimFunc(params, body, self.func.ret_type, self.func.attrs)

    def _buffer(self, var: relax.Var) -> Expr:
        if var in self.buffers or not hasattr(var.ty, "shape"):
            return self.buffers.get(var, var)
        number = self.numbers.number(var)
        old = list(var.ty.shape)
        shape = [self._part(("dim", number, d), n) for d, n in enumerate(old)]
        if all(a is b for a, b in zip(shape, old)):
            self.buffers[var] = var
        elif len(var.ty.strides):
            raise NotUnderstood(f'the buffer "{var.name}" has strides')
        else:
            layout = None if var.ty.layout is None else "default"
            scope = str(var.ty.storage_scope)
            self.buffers[var] = tirx.decl_buffer(
                shape, var.ty.dtype, str(var.name), scope=scope, layout=layout
            )
        return self.buffers[var]

    # -- statements

    def _stmt(self, stmt: tirx.Stmt) -> tirx.Stmt:
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            return tirx.SeqStmt([self._stmt(s) for s in stmt.seq])
        if kind == "For":
            body = self._stmt(stmt.body)  # blocks inside say what the loop's extent becomes
            extent = self.loops.get(stmt.loop_var, stmt.extent)
            rest = (stmt.kind, body, stmt.thread_binding, stmt.annotations, stmt.step)
            return tirx.For(stmt.loop_var, stmt.min, extent, *rest)
        if kind == "SBlockRealize":
            block = self._block(stmt)
            return type(stmt)(list(stmt.iter_values), stmt.predicate, block)
        if kind == "BufferStore":
            if not self._inside:
                self.at += 1
            indices = [self._expr(i) for i in stmt.indices]
            return tirx.BufferStore(self._buffer(stmt.buffer), self._expr(stmt.value), indices)
        if kind == "Bind":
            return type(stmt)(stmt.var, self._expr(stmt.value))
        if kind == "IfThenElse":
            other = None if stmt.else_case is None else self._stmt(stmt.else_case)
            return tirx.IfThenElse(self._expr(stmt.condition), self._stmt(stmt.then_case), other)
        raise NotUnderstood(f"a {kind} statement")

    _inside = 0

    def _block(self, realize: tirx.Stmt) -> tirx.Stmt:
        block = realize.block
        iters = list(block.iter_vars)
        if iters:
            number, self.at = self.at, self.at + 1
            walked = [v for v, _ in self.blocks[number].extents]
            iters = [
                self._iteration(number, walked, iterator, value)
                for iterator, value in zip(iters, realize.iter_values)
            ]
            self._inside += 1
        buffers = [self._buffer(b) for b in block.alloc_buffers]
        body = self._stmt(block.body)
        init = None if block.init is None else self._init(block.init)
        if iters:
            self._inside -= 1
        regions = [[self._region(r) for r in each] for each in (block.reads, block.writes)]
        name, notes = str(block.name_hint), block.annotations
        return type(block)(iters, *regions, name, body, init, buffers, None, notes)

    def _init(self, stmt: tirx.Stmt) -> tirx.Stmt:
        self._inside += 1
        new = self._stmt(stmt)
        self._inside -= 1
        return new

    def _iteration(self, number: int, walked: Sequence[Expr], iterator: Expr, value: Expr) -> Expr:
        position = next((k for k, v in enumerate(walked) if v.same_as(iterator.var)), None)
        if position is None:
            return iterator
        extent = self._part(("iter", number, position), iterator.dom.extent)
        changed = extent is not iterator.dom.extent
        if isinstance(value, ir.Var):
            if not _same(self.loops.setdefault(value, extent), extent):
                raise NotUnderstood("a loop traverses a sharded and an unsharded dim")
        elif changed:
            raise NotUnderstood("a sharded dim is traversed by several loops")
        if not changed:
            return iterator
        return tirx.IterVar(
            ir.Range(iterator.dom.min, extent),
            iterator.var,
            iterator.iter_type,
            iterator.thread_tag,
        )

    def _region(self, region: Expr) -> Expr:
        source, old = region.source, region.source.ty.shape
        buffer = self._buffer(source)
        ranges = []
        for r, extent, local in zip(region.region, old, buffer.ty.shape):
            full = _same(r.extent, extent) and not _same(extent, 1)
            ranges.append(ir.Range.from_min_extent(r.min, local if full else r.extent))
        return tirx.BufferRegion(buffer, ranges)

    # -- expressions

    def _expr(self, e: Expr) -> Expr:
        kind = kind_of(e)
        if kind in ("Var", "IntImm", "FloatImm", "StringImm"):
            return e
        if kind == "TensorLoad":
            indices = [self._expr(i) for i in e.indices]
            return tirx.BufferLoad(self._buffer(e.source), indices)
        if kind == "Call":
            args = [self._expr(a) if isinstance(a, ir.Expr) else a for a in e.args]
            return typed(ir.Call(e.op, args, e.attrs, list(e.ty_args)), e.ty)
        if kind == "Select":
            parts = (e.condition, e.true_value, e.false_value)
            return tirx.Select(*(self._expr(x) for x in parts))
        if kind == "Let":
            return type(e)(e.var, self._expr(e.value), self._expr(e.body))
        if kind == "Cast":
            return tirx.Cast(e.ty.dtype, self._expr(e.value))
        if hasattr(e, "a"):
            return type(e)(*(self._expr(x) for x in ((e.a, e.b) if hasattr(e, "b") else (e.a,))))
        raise NotUnderstood(f"a {kind} expression")


def cut_prim_func(func: tirx.PrimFunc, counts: Counts) -> tirx.PrimFunc:
    """Return the PrimFunc of a shard, with fresh variables.

    Parameters
    ----------
    func : PrimFunc
        A PrimFunc, as LegalizeOps makes it. Symbolic extents are those of shards then.
    counts : Counts
        The numbers of shards of the dims of its parameters.

    Raises
    ------
    NotUnderstood
        With the reason, when it cannot be sharded.
    """
    return renew_defs(Cutter(_with_divisible_extents(func, counts), counts).run())


def _with_divisible_extents(func: tirx.PrimFunc, counts: Counts) -> tirx.PrimFunc:
    """Return the PrimFunc with symbolic extents of sharded dims as multiples of their parts.

    A variable then is the extent of a shard, and ``n * 2`` that of the whole dim, where the
    PrimFunc still has it.
    """
    parts: dict[Any, int] = {}
    for (param, dim), count in counts.items():
        extent = [p for p in func.params if hasattr(p.ty, "shape")][param].ty.shape[dim]
        for variable in symbols(extent) if not isinstance(extent, tirx.IntImm) else ():
            parts[variable] = math.lcm(parts.get(variable, 1), count)
    if not parts:
        return func
    parameters = [p for p in func.params if any(p.same_as(variable) for variable in parts)]
    if parameters:
        raise NotUnderstood(f"the extent {parameters[0].name} is an argument")
    opened = tirx.PrimFunc([*func.params, *parts], func.body, func.ret_type, func.attrs)
    full_variables = {v: tirx.Var(str(v.name), v.ty.dtype) * count for v, count in parts.items()}
    return opened.specialize(full_variables)
