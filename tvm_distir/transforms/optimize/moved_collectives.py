# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Move gathers and slices across ops to where their tensors are smaller."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.ir import labels_of
from tvm_distir.core.ir.operators import dist_op_name, ops
from tvm_distir.core.ops import rule_of
from tvm_distir.core.passes import Rewrite, is_choice, module_pass
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import rebuild, substitute
from tvm_distir.support import GenericConst

from .binding_rewriter import (
    Editor,
    FunctionStep,
    axes_dim,
    is_plain_op,
    operands_of,
    rewrite_of,
)
from .sharded_calls import ShardedCall, cut_at, fits, on_shards


@module_pass("legalized")
def MoveGathers(*, above: bool = False) -> Rewrite:
    """Gather after an op instead of before it where that moves no more bytes.

    An ``all_gather`` that one op reads moves below it when the op maps the dim to one of its
    result's and the result is no larger: below casts to narrower types, sums over other dims,
    element-wise ops (the devices then share their work). Operands that are whole are sliced. An
    op that reduces the gathered dim leaves a term on each device instead, and an
    ``all_reduce``, where that moves fewer bytes; this changes the order of a sum. Everything
    else changes no number.

    Parameters
    ----------
    above : bool
        Also gather before an element-wise op whose operands are smaller than its result: a
        cast to a wider type, a broadcast. The devices then repeat that op's work, and hold its
        whole operands for a while.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([gathers_step(above)])


@module_pass("legalized")
def MoveSlices() -> Rewrite:
    """Slice the operands of an op instead of its result.

    A ``local_slice`` of what nothing else reads moves above the ops that map its dim: the devices
    share their work, and the slice meets the ``all_reduce`` or ``all_gather`` it makes cheaper.
    No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([SLICES])


class _Gathers(Editor):
    def prepare(self, above: bool) -> None:
        """Take whether to gather before ops too."""
        self.above = above

    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Move the gathers of an op's operands below it, or that of its result above it."""
        new = None
        if kind is None:
            new = self._below(var, value)
        elif kind == "all_gather" and self.above:
            new = self._above(value)
        if kind == "all_gather" or dist_op_name(new) == "all_gather":
            if len(set(self.scan.readers.get(var, ()))) == 1:
                self.watch_reader(var)
        return value if new is None else new

    def _gather(self, expr: Expr) -> Any:
        value = self.known.get(expr) if isinstance(expr, ir.Var) else None
        return value if dist_op_name(value) == "all_gather" else None

    def _below(self, var: Var, value: Expr) -> Any:
        if not is_plain_op(value, var):
            return None
        gathers = {i: self._gather(e) for i, e in enumerate(operands_of(value))}
        gathers = {i: g for i, g in gathers.items() if g is not None}
        for position, gather in gathers.items():
            axes, dim = axes_dim(gather)
            cut = cut_at(self, value, axes, position, dim)
            if cut is None or cut.factor.kind in ("halo", "stat") or not fits(cut, var.ty):
                continue
            if is_choice(value) and any(e in self.branch_results for e in cut.operands):
                continue  # that branch gathers nothing: the device that takes it would have to
            same = {
                cut.operands[i]: g
                for i, g in gathers.items()
                if axes_dim(g) == (axes, cut.factor.ins[i])
            }
            saved = sum(local_bytes(g.ty) for e, g in same.items() if self._dies(cut, e))
            size = local_bytes(var.ty)
            if 2 * size >= saved if cut.factor.reduces else size > saved:
                continue
            shard = on_shards(self, var, value, cut, {e: g.args[0] for e, g in same.items()})
            if shard is None:
                continue
            mesh, shard = var.ty.device_mesh, self.emit(shard, f"{var.name}_shard")
            if cut.factor.reduces:
                return self.normalize(ops.all_reduce(shard, mesh, axes, cut.factor.kind))
            return self.normalize(ops.all_gather(shard, mesh, axes, cut.label))
        return None

    def _dies(self, cut: ShardedCall, expr: Expr) -> bool:
        """Return whether the call is the only reader of an operand."""
        return self.readers[expr] == sum(bool(e.same_as(expr)) for e in cut.operands)

    def _above(self, gather: ir.Call) -> Any:
        """Compute an op on gathered operands if those are smaller than the gathered result."""
        shard = gather.args[0]
        value = self.single(shard)
        if value is None or not is_plain_op(value, shard):
            return None
        axes, dim = axes_dim(gather)
        cut = cut_at(self, value, axes, None, dim)
        if cut is None or cut.factor.kind != "map":
            return None
        if rule_of(value, self.mod).work.kernel_class not in ("memory", "view"):
            return None  # the devices would repeat its work
        tied = {
            e: d
            for e, d in zip(cut.operands, cut.factor.ins)
            if d is not None and not isinstance(e, GenericConst)
        }
        if any(labels_of(e.ty.placement)[a] != d for e, d in tied.items() for a in axes):
            return None
        mesh = gather.attrs["device_mesh"]
        gathered = {
            e: self.builder.normalize(ops.all_gather(e, mesh, axes, d)) for e, d in tied.items()
        }
        if sum(local_bytes(g.ty) for g in gathered.values()) >= local_bytes(gather.ty):
            return None
        env = {e: self.emit(g, f"{e.name}_whole") for e, g in gathered.items()}
        new = rebuild(value, value.op, [substitute(a, env) for a in value.args], gather.ty)
        return self.normalize(new)


class _Slices(Editor):
    def prepare(self) -> None:
        """Find what only slices read."""
        self.slices = self._wanted()
        self.watched.update(self.slices)
        self.shards: dict[Var, Var] = {}

    def _wanted(self) -> dict[Any, tuple[tuple[int, ...], int]]:
        """Find values read only by a slice, directly or through ops, with its mesh axes and dim."""
        result: dict[Var, tuple[tuple[int, ...], int]] = {}
        rows = [row for rows in self.scan.blocks for row in rows]
        for _, var, value, kind in reversed(rows):
            if kind == "local_slice":
                if self.readers[value.args[0]] == 1:
                    result[value.args[0]] = axes_dim(value)
            elif var in result:
                cut = self._cut(var, value, *result[var])
                if cut is None:
                    del result[var]
                    continue
                for expr, dim in zip(cut.operands, cut.factor.ins):
                    if dim is not None and isinstance(expr, ir.Var) and self.readers[expr] == 1:
                        result[expr] = (cut.axes, dim)
        return result

    def _cut(self, var: Var, value: Expr, axes: tuple[int, ...], dim: int) -> ShardedCall | None:
        cut = cut_at(self, value, axes, None, dim) if is_plain_op(value, var) else None
        return cut if cut and cut.factor.kind == "map" and fits(cut, var.ty) else None

    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Compute an op read only by a slice on shards, so that the full value has no reader."""
        if kind == "local_slice":
            return self.shards.get(value.args[0], value)
        cut = self._cut(var, value, *self.slices[var]) if var in self.slices else None
        if cut is not None:
            shards = {e: self.shards[e] for e in cut.operands if e in self.shards}
            shard = on_shards(self, var, value, cut, shards)
            if shard is not None:
                self.shards[var] = self.emit(shard, f"{var.name}_shard")
        return value


SLICES = FunctionStep(_Slices, ("local_slice",))


def gathers_step(above: bool) -> FunctionStep:
    """Return the step of :func:`MoveGathers`."""
    return FunctionStep(_Gathers, ("all_gather",), above=above)
