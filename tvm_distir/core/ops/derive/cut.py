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
from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr
from tvm.s_tir import renew_defs

from tvm_distir.core.ops.dims import plain, same, symbols
from tvm_distir.support import Analyzer, SBlock, SBlockRealize

from .compute_blocks import NotUnderstood, blocks_of
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
        self.walked = {
            var: ("iter", number, k)
            for number, block in enumerate(self.blocks)
            for k, (var, _) in enumerate(block.extents)
        }
        self.buffers: dict[Expr, Expr] = {}
        self.originals: dict[Expr, Expr] = {}  # buffers by what they become
        self.loops: dict[Expr, Expr] = {}
        self.extents: dict[Expr, Expr] = {}  # of iteration variables

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
        body, variables, realized = self.func.body, list[Any](), list[Any]()
        entries = [(tirx.Var, variables.append), (SBlockRealize, realized.append)]
        tvm_ffi.structural_walk(body, entries)
        params = [self._buffer(p) for p in self.func.params]
        for var in variables:
            self._buffer(var)
        for realize in realized:
            for iterator, value in zip(realize.block.iter_vars, realize.iter_values):
                self._iterate(iterator, value)
        entries = [
            (tirx.Var, lambda var: self.buffers.get(var, var)),
            (tirx.IterVar, self._iteration),
            (tirx.For, self._loop),
            (SBlock, self._block),
        ]
        new = tvm_ffi.structural_map(body, entries)
        return tirx.PrimFunc(params, new, self.func.ret_type, self.func.attrs)

    def _buffer(self, var: ir.Var) -> Expr:
        """Return what a variable becomes: a buffer of a shard, or itself."""
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
        self.originals[self.buffers[var]] = var
        return self.buffers[var]

    def _iterate(self, iterator: tirx.IterVar, value: Expr) -> None:
        """Note what the extents of an iteration variable and of its loop become."""
        old = iterator.dom.extent
        if iterator.var not in self.walked:
            return
        extent = self.extents[iterator.var] = self._part(self.walked[iterator.var], old)
        if isinstance(value, ir.Var):
            if not _same(self.loops.setdefault(value, extent), extent):
                raise NotUnderstood("a loop traverses a sharded and an unsharded dim")
        elif extent is not old:
            raise NotUnderstood("a sharded dim is traversed by several loops")

    def _iteration(self, iterator: tirx.IterVar) -> tirx.IterVar:
        extent = self.extents.get(iterator.var)
        if extent is None:
            return iterator
        domain = ir.Range(iterator.dom.min, extent)
        return tirx.IterVar(domain, iterator.var, iterator.iter_type, iterator.thread_tag)

    def _loop(self, loop: tirx.For) -> tirx.For:
        extent = self.loops.get(loop.loop_var, loop.extent)
        rest = (loop.kind, loop.body, loop.thread_binding, loop.annotations, loop.step)
        return tirx.For(loop.loop_var, loop.min, extent, *rest)

    def _block(self, block: SBlock) -> SBlock:
        regions = [[self._region(r) for r in each] for each in (block.reads, block.writes)]
        rest = (block.body, block.init, block.alloc_buffers, None, block.annotations)
        return SBlock(block.iter_vars, *regions, str(block.name_hint), *rest)

    def _region(self, region: Expr) -> Expr:
        """Return a region of a new buffer: what covered a dim of the old one covers the new dim."""
        buffer, ranges = region.source, []
        old = self.originals[buffer].ty.shape
        for r, extent, local in zip(region.region, old, buffer.ty.shape):
            full = _same(r.extent, extent) and not _same(extent, 1)
            ranges.append(ir.Range.from_min_extent(r.min, local if full else r.extent))
        return tirx.BufferRegion(buffer, ranges)


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
