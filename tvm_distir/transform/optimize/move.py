# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gathers and slices moved over ops to where they are smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import PropagationError
from ...ir import (
    R,
    as_dtensor,
    blocks_fault,
    dist_op_name,
    labels_of,
    mesh_key,
    mesh_shape,
    ops,
    shard_counts,
)
from ...ir.rewrite import rebuild, substitute
from ...ops import Factor, call_form, rule_of
from ...redistribution import local_bytes
from ..branches import is_choice
from ..declaration import Rewrite, module_pass
from .editing import Editor, FunctionStep, axes_dim, is_plain_op, operands_of, rewrite_of
from .scan import Scan


@module_pass("legalized")
def MoveGathers(*, above: bool = False) -> Rewrite:
    """Gather after an op instead of before where that is no more.

    An ``all_gather`` that one op reads moves below it when the op maps the dim to one of its
    result's and the result is no larger: below casts to narrower types, sums over other dims,
    element-wise ops (the devices then share their work). Operands that are whole are sliced. An
    op that reduces the gathered dim leaves a term on each device instead, and an
    ``all_reduce``, where that moves fewer bytes; this changes the order of a sum. Everything
    else changes no number.

    Parameters
    ----------
    above : bool
        Also gather before an element-wise op where its operands are smaller than its result: a
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

    A ``local_slice`` of what nobody else reads moves above the ops that map its dim: the devices
    share their work, and the slice meets the ``all_reduce`` or ``all_gather`` it makes cheaper.
    No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([SLICES])


@dataclass(frozen=True)
class Cut:
    """A way to run a call on shards along mesh axes.

    Attributes
    ----------
    axes : tuple of int
    factor : Factor
        What the call follows along them.
    operands : list of expression
        Flattened.
    """

    axes: tuple[int, ...]
    factor: Factor
    operands: list[Any]

    @property
    def label(self) -> int:
        """How the result lies along the axes: by a dim of it, or ``R`` of terms."""
        dim = self.factor.outs[0]
        return R if dim is None or self.factor.reduces else dim


def cut_at(
    edit: Editor, call: ir.Call, axes: Sequence[int], position: int | None, dim: int
) -> Cut | None:
    """How a call can be cut along mesh axes through a dim of an operand (None: of the result)."""
    operands = operands_of(call)
    if not all(isinstance(e, ir.GenericConst) or isinstance(e.ty, DTensorType) for e in operands):
        return None
    try:
        rule = rule_of(call, edit.mod)
    except PropagationError:
        return None
    for factor in rule.factors:
        if (factor.outs[0] if position is None else factor.ins[position]) == dim:
            break
    else:
        return None
    return Cut(tuple(axes), factor, operands) if isinstance(factor.size, int) else None


def fits(cut: Cut, ty: Any) -> bool:
    """Whether the devices along the axes can share the factor, which gives a result of a type."""
    sizes = mesh_shape(ty.device_mesh)
    own = math.prod(sizes[axis] for axis in cut.axes)
    tied = [(e.ty, d) for e, d in zip(cut.operands, cut.factor.ins) if d is not None]
    most = own
    for own_ty, dim in [*tied, *([(ty, cut.label)] if cut.label != R else [])]:
        if not isinstance(own_ty, DTensorType):
            continue
        labels = [R if a in cut.axes else x for a, x in enumerate(labels_of(own_ty.placement))]
        if blocks_fault(labels, cut.axes, dim):
            return False
        labels = [dim if a in cut.axes else x for a, x in enumerate(labels)]
        most = max(most, shard_counts(labels, sizes, int(own_ty.tensor_ty.ndim))[dim])
    alone = len(cut.axes) == 1 and most == own
    uneven = cut.factor.uneven and (alone or not cut.factor.adjacent)
    return uneven or int(cut.factor.size) % most == 0


def on_shards(edit: Editor, var: Any, call: ir.Call, cut: Cut, given: dict[Any, Any]) -> Any:
    """Write a call on shards; ``given`` are operands that are sliced. None where it cannot be."""
    mesh, labels = var.ty.device_mesh, list(labels_of(var.ty.placement))
    dims: dict[Any, int] = {}
    for expr, dim in zip(cut.operands, cut.factor.ins):
        if isinstance(expr, ir.GenericConst):
            if dim is not None and isinstance(expr.ty, DTensorType):
                return None  # placed whole
            continue
        whole = all(labels_of(expr.ty.placement)[a] == R for a in cut.axes)
        if mesh_key(expr.ty.device_mesh) != mesh_key(mesh) or not whole:
            return None
        if edit.unfinished(expr) & set(cut.axes):
            return None
        if dim is not None and dims.setdefault(expr, dim) != dim:
            return None  # one value, cut in two ways
    if any(labels[a] != R for a in cut.axes):
        return None
    for axis in cut.axes:
        labels[axis] = cut.label
    ty = as_dtensor(var.ty, mesh, labels)

    def write(env: dict[Any, Any]) -> ir.Call:
        return rebuild(call, call.op, [substitute(a, env) for a in call.args], ty)

    shards = {e: relax.Var("shard", _cut_type(e.ty, cut.axes, d)) for e, d in dims.items()}
    if not _follows(edit, var, write(shards)):
        return None
    for expr, dim in dims.items():
        if expr in given:
            shards[expr] = given[expr]
        else:
            slice_ = ops.local_slice(expr, mesh, cut.axes, dim)
            shards[expr] = edit.emit(slice_, f"{expr.name}_shard")
    return write(shards)


def _cut_type(ty: Any, axes: Sequence[int], dim: int) -> Any:
    labels = [dim if a in axes else x for a, x in enumerate(labels_of(ty.placement))]
    return as_dtensor(ty, ty.device_mesh, labels)


def _follows(edit: Editor, var: Any, call: ir.Call) -> bool:
    try:
        call_form(call, [call.ty], edit.mod, edit.name, var)
    except PropagationError:
        return False
    return True


class _Gathers(Editor):
    def __init__(
        self, mod: ir.IRModule, name: str, fn: relax.Function, scan: Scan, above: bool
    ) -> None:
        super().__init__(mod, name, fn, scan)
        self.above = above

    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
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

    def _gather(self, expr: Any) -> Any:
        value = self.known.get(expr) if isinstance(expr, ir.Var) else None
        return value if dist_op_name(value) == "all_gather" else None

    def _below(self, var: Any, value: Any) -> Any:
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

    def _dies(self, cut: Cut, expr: Any) -> bool:
        """Whether nobody but the call reads an operand."""
        return self.readers[expr] == sum(bool(e.same_as(expr)) for e in cut.operands)

    def _above(self, gather: ir.Call) -> Any:
        """Write an op on gathered operands, when those are smaller than the gathered result."""
        shard = gather.args[0]
        value = self.single(shard)
        if value is None or not is_plain_op(value, shard):
            return None
        axes, dim = axes_dim(gather)
        cut = cut_at(self, value, axes, None, dim)
        if cut is None or cut.factor.kind != "map" or self._heavy(value):
            return None
        tied = {
            e: d
            for e, d in zip(cut.operands, cut.factor.ins)
            if d is not None and not isinstance(e, ir.GenericConst)
        }
        if any(labels_of(e.ty.placement)[a] != d for e, d in tied.items() for a in axes):
            return None
        mesh = gather.attrs["device_mesh"]
        whole = {
            e: self.builder.normalize(ops.all_gather(e, mesh, axes, d)) for e, d in tied.items()
        }
        if sum(local_bytes(g.ty) for g in whole.values()) >= local_bytes(gather.ty):
            return None
        env = {e: self.emit(g, f"{e.name}_whole") for e, g in whole.items()}
        new = rebuild(value, value.op, [substitute(a, env) for a in value.args], gather.ty)
        return self.normalize(new)

    def _heavy(self, value: ir.Call) -> bool:
        return rule_of(value, self.mod).work.kernel_class not in ("memory", "view")


class _Slices(Editor):
    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function, scan: Scan) -> None:
        super().__init__(mod, name, fn, scan)
        self.wanted = self._wanted()
        self.watched.update(self.wanted)
        self.shards: dict[Any, Any] = {}

    def _wanted(self) -> dict[Any, tuple[tuple[int, ...], int]]:
        """Values that only a slice reads, it and the ops between: mesh axes and dim."""
        found: dict[Any, tuple[tuple[int, ...], int]] = {}
        rows = [row for rows in self.scan.blocks for row in rows]
        for _, var, value, kind in reversed(rows):
            if kind == "local_slice":
                if self.readers[value.args[0]] == 1:
                    found[value.args[0]] = axes_dim(value)
            elif var in found:
                cut = self._cut(var, value, *found[var])
                if cut is None:
                    del found[var]
                    continue
                for expr, dim in zip(cut.operands, cut.factor.ins):
                    if dim is not None and isinstance(expr, ir.Var) and self.readers[expr] == 1:
                        found[expr] = (cut.axes, dim)
        return found

    def _cut(self, var: Any, value: Any, axes: tuple[int, ...], dim: int) -> Cut | None:
        cut = cut_at(self, value, axes, None, dim) if is_plain_op(value, var) else None
        return cut if cut and cut.factor.kind == "map" and fits(cut, var.ty) else None

    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
        """Write an op that only a slice reads on shards too; the whole then has no reader."""
        if kind == "local_slice":
            return self.shards.get(value.args[0], value)
        cut = self._cut(var, value, *self.wanted[var]) if var in self.wanted else None
        if cut is not None:
            given = {e: self.shards[e] for e in cut.operands if e in self.shards}
            shard = on_shards(self, var, value, cut, given)
            if shard is not None:
                self.shards[var] = self.emit(shard, f"{var.name}_shard")
        return value


SLICES = FunctionStep(_Slices, ("local_slice",))


def gathers_step(above: bool) -> FunctionStep:
    """Make the step of :func:`MoveGathers`."""
    return FunctionStep(_Gathers, ("all_gather",), above=above)
