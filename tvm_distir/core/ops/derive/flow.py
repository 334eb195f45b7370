# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Follows the blocks of a PrimFunc and reports which buffers hold partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import DataType, ir

from tvm_distir.core.ops.dims import plain

from .compute_blocks import Block, Store, children, kind_of, loads

#: Buffer number to the kind of reduction its contents are terms of ("" when complete).
PartialKinds = dict[int, str]

_ZERO = -1


def _widens(source: str, target: str) -> bool:
    if "float" not in source or "float" not in target:
        return False
    return int(DataType(target).bits) >= int(DataType(source).bits)


def degree(e: ir.Expr, partial: Callable[[Any], bool]) -> int | None:
    """Return the degree of a value in the loads of partial buffers.

    0: free of them. 1: homogeneous linear (its terms may be summed before or after). -1: the
    constant zero, which is both. None: neither.
    """
    kind = kind_of(e)
    if kind == "TensorLoad":
        if any(partial(x.source) for i in e.indices for x in loads(i)):
            return None
        return int(partial(e.source))
    if kind in ("IntImm", "FloatImm"):
        return _ZERO if plain(e) == 0 else 0
    if kind == "Select" or (kind == "Call" and str(e.op.name).endswith("if_then_else")):
        condition, yes, no = (degree(x, partial) for x in children(e))
        return _agree(yes, no) if condition in (0, _ZERO) else None
    parts = [degree(x, partial) for x in children(e)]
    if all(p in (0, _ZERO) for p in parts):
        return 0
    if None in parts:
        return None
    if kind in ("Add", "Sub"):
        return _agree(parts[0], parts[1])
    if kind == "Mul":
        return 1 if sorted(p or 0 for p in parts)[0] <= 0 else None
    if kind == "Div":
        return 1 if parts[1] == 0 and "float" in str(e.ty.dtype) else None
    if kind == "Cast":
        return 1 if _widens(str(e.value.ty.dtype), str(e.ty.dtype)) else None
    return None


def _agree(x: int | None, y: int | None) -> int | None:
    if x is None or y is None:
        return None
    if x == _ZERO:
        return y
    return x if y in (_ZERO, x) else None


def _passes(block: Block, store: Store, kind: str, is_partial: Callable[[Any], bool]) -> bool:
    """Return whether a block maps partial operands to a partial result of the same reduction."""
    aside = (*store.read()[1:], *store.indices)  # conditions and bound values are not followed
    if any(is_partial(x.source) for e in aside for x in loads(e)):
        return False
    if any(block.reduced):
        if kind != "sum" or block.combiner != "sum":
            return False
        return degree(block.term, is_partial) == 1
    if kind_of(store.value) == "TensorLoad":
        return degree(store.value, is_partial) == 1
    return kind == "sum" and degree(store.value, is_partial) == 1


def _has_scale(e: ir.Expr) -> bool:
    """Return whether a value holds a number other than 0 and 1 outside of indices."""
    if kind_of(e) == "TensorLoad":
        return False
    if kind_of(e) in ("IntImm", "FloatImm"):
        return plain(e) not in (0, 1)
    return any(_has_scale(child) for child in children(e))


def _refusal(
    block: Block,
    store: Store,
    walked: Sequence[int],
    kinds: set[str],
    is_sliced: bool,
    strict: bool,
    is_partial: Callable[[Any], bool],
) -> str:
    """Return why a store cannot be split, empty where it can.

    ``walked`` are the sharded loops of its block, ``kinds`` the reductions of what it reads, and
    ``is_sliced`` is whether its buffer is sharded; otherwise as for :func:`flow`.
    """
    reduces = bool(walked) and block.reduced[walked[0]]
    if len(kinds) > 1:
        return "partial sums of different reductions are combined"
    if walked and (kinds or (reduces and is_sliced)):
        return "it is reduced, and the result is used in the kernel"
    if reduces:
        scaled = strict and _has_scale(block.term)
        why = "the reduced value is scaled by a number that may depend on the extent"
        return why if scaled else ""
    if walked:
        return "" if is_sliced else "a loop over it writes the same elements several times"
    if kinds:
        copies = kind_of(store.value) == "TensorLoad" and not any(block.reduced)
        if strict and not copies:
            return "the reduced value is processed further"
        passes = _passes(block, store, next(iter(kinds)), is_partial)
        return "" if passes else "a reduced value is used in a way that is not linear"
    return "it is written by a single statement" if is_sliced else ""


def flow(
    blocks: list[Block],
    number: Callable[[Any], int],
    cut: set[tuple[str, int, int]],
    start: PartialKinds,
    strict: bool,
) -> PartialKinds | str:
    """Return the state of every buffer after the last block, or why the split is not possible.

    Parameters
    ----------
    blocks : list of Block
        The blocks, in program order.
    number : callable
        Number of a buffer.
    cut : set of nodes
        The class that is sharded (empty: none).
    start : PartialKinds
        Partial operands.
    strict : bool
        Refuse to process terms further than copying them, and to scale them.
    """
    states: PartialKinds = dict(start)
    sliced = {b for kind, b, _ in cut if kind == "dim"}
    buffers_written: set[int] = set()

    def is_partial(buffer: ir.Expr) -> bool:
        return bool(states.get(number(buffer)))

    for index, block in enumerate(blocks):
        walked = [k for k in range(len(block.extents)) if ("iter", index, k) in cut]
        if len(walked) > 1:
            return "two loops of a kernel step would have to traverse it together"
        for store in block.stores:
            target = number(store.buffer)
            values = store.read() if block.term is None else [block.term]
            sources = {number(x.source) for e in (*values, *store.indices) for x in loads(e)}
            kinds = {states[b] for b in sources if states.get(b)}
            refusal = _refusal(
                block, store, walked, kinds, target in sliced, strict and bool(cut), is_partial
            )
            if refusal:
                return refusal
            state = (block.combiner if block.reduced[walked[0]] else "") if walked else ""
            state = kinds.pop() if kinds else state
            if target in buffers_written and states.get(target, "") != state:
                return "a buffer would hold both reduced values and partial sums"
            buffers_written.add(target)
            states[target] = state
    return states
