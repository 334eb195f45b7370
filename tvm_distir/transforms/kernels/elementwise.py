# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tell elementwise kernels from others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.relax import Expr

from tvm_distir.support import SBlock, SBlockRealize, TensorLoad

_SIMPLIFIED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Sub, tirx.Div)
"""Operations that TVM simplifies where both sides are equal, although they may be NaN."""


@dataclass(frozen=True, eq=False)
class Elementwise:
    """Kernel that computes each element of its result of the operands' elements at its position.

    Attributes
    ----------
    shape : tuple of int
        The shape of the result, and of all operands that have more than one element.
    params : tuple of Var
        The buffers of the operands, then that of the result.
    stages : tuple of (Var, Expr)
        Buffers, each with the value of its elements, in order; the last one is the result.
    """

    shape: tuple[int, ...]
    params: tuple[ir.Var, ...]
    stages: tuple[tuple[ir.Var, Expr], ...]

    @property
    def computes(self) -> bool:
        """Return whether the kernel does more than to copy an operand."""
        return any(not isinstance(value, TensorLoad) for _, value in self.stages)

    @cached_property
    def separates_operands(self) -> bool:
        """Return whether the operands must be in buffers of their own, even if they are equal.

        TVM takes ``x == x`` to be true and ``x - x`` to be zero where both sides read one buffer,
        which they are not for NaN.
        """
        seen: list[Expr] = []
        for _, value in self.stages:
            tvm_ffi.structural_walk(value, [(kind, seen.append) for kind in _SIMPLIFIED])
        return bool(seen)

    @staticmethod
    def of(fn: tirx.PrimFunc) -> Elementwise | None:
        """Return an elementwise kernel of static sizes above 0, or None for other kernels."""
        shape = static_shape(fn.params[-1])
        stages = None if shape is None or 0 in shape else _stages(fn.body, shape)
        if shape is None or not stages:
            return None
        known = set(fn.params[:-1])
        for buffer, value in stages:
            if static_shape(buffer) != shape or not known.issuperset(_sources(value)):
                return None
            if buffer in known:  # it is written twice
                return None
            known.add(buffer)
        is_last = stages[-1][0].same_as(fn.params[-1])
        return Elementwise(shape, tuple(fn.params), tuple(stages)) if is_last else None


def static_shape(buffer: ir.Var) -> tuple[int, ...] | None:
    """Return the shape of a buffer, or None unless it is static."""
    extents = getattr(buffer.ty, "shape", None)
    if extents is None or not all(isinstance(n, tirx.IntImm) for n in extents):
        return None
    return tuple(int(n) for n in extents)


def _sources(value: Expr) -> list[ir.Var]:
    variables: list[ir.Var] = []
    tvm_ffi.structural_walk(value, [(TensorLoad, lambda load: variables.append(load.source))])
    return variables


def _stages(body: tirx.Stmt, shape: tuple[int, ...]) -> list[tuple[ir.Var, Expr]] | None:
    """Return what the blocks of a kernel store, or None unless each is elementwise."""
    if not isinstance(body, SBlockRealize):
        return None
    root = body.block.body
    if isinstance(root, tirx.BufferStore):  # the only block is the root
        nests: Sequence[tirx.Stmt] = [body]
    else:
        nests = root.seq if isinstance(root, tirx.SeqStmt) else [root]
    stages = [_stage(nest, shape) for nest in nests]
    return None if None in stages else [stage for stage in stages if stage is not None]


def _stage(nest: tirx.Stmt, shape: tuple[int, ...]) -> tuple[ir.Var, Expr] | None:
    loops: list[ir.Var] = []
    while isinstance(nest, tirx.For):
        loops.append(nest.loop_var)
        nest = nest.body
    if not isinstance(nest, SBlockRealize) or len(loops) != len(shape):
        return None
    block: SBlock = nest.block
    store, at = block.body, [iterator.var for iterator in block.iter_vars]
    if block.init is not None or not isinstance(store, tirx.BufferStore) or len(at) != len(loops):
        return None
    in_order = all(map(_is_same, loops, nest.iter_values))
    if not in_order or not _is_position(store.indices, at, shape):
        return None
    loads: list[TensorLoad] = []

    def leave_out(load: TensorLoad) -> Expr:
        loads.append(load)
        return tirx.const(0, str(load.ty.dtype))

    rest = tvm_ffi.structural_map(store.value, (TensorLoad, leave_out))
    if _reads_any(rest, at) or not all(_reads_position(load, at, shape) for load in loads):
        return None
    return store.buffer, store.value


def _is_same(left: Any, right: Any) -> bool:
    return bool(left.same_as(right))


def _reads_position(load: TensorLoad, at: Sequence[ir.Var], shape: tuple[int, ...]) -> bool:
    size = static_shape(load.source)
    if size is not None and math.prod(size) == 1:
        return not any(_reads_any(index, at) for index in load.indices)
    return size == shape and _is_position(load.indices, at, shape)


def _is_position(indices: Sequence[Expr], at: Sequence[ir.Var], shape: tuple[int, ...]) -> bool:
    """Return whether indices are those of the element at the position of the iteration."""
    return len(indices) == len(at) and all(
        size == 1 or _is_same(index, var) for index, var, size in zip(indices, at, shape)
    )


def _reads_any(value: Expr, at: Sequence[ir.Var]) -> bool:
    stop = tvm_ffi.VisitInterrupt(True)
    entry = [(tirx.Var, lambda var: stop if any(_is_same(var, v) for v in at) else None)]
    return tvm_ffi.structural_walk(value, entry) is not None
