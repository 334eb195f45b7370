# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derive the layouts of results from those of operands, by sharding rules, for all sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir

from tvm_distir.core.ops import SAME_OP, Factor, Rule, registration_of
from tvm_distir.core.rewriting import called_name

from .alignment import MAX, REPLICATED, SHARDED, SUM, Layout
from .value_terms import Multiple, Uniform, Value

Layouts = tuple[Layout, ...]
COPIES = Layout(REPLICATED)
_SHAPES_ALONE = ("take", "strided_slice", "broadcast_to", "mean", "variance")
"""Ops that compute on shards what they compute on the whole where a factor is no reduction."""


def local_shape(shape: Sequence[int], layouts: Layouts, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of what a rank holds; empty parts of dims that do not divide."""
    result = list(shape)
    for layout, size in zip(layouts, sizes):
        if layout.kind == SHARDED:
            parts = size * layout.blocks
            result[layout.dim] = result[layout.dim] // size if shape[layout.dim] % parts == 0 else 0
    return tuple(result)


def reshaped(
    layouts: Layouts, before: Sequence[int], after: Sequence[int], sizes: Sequence[int]
) -> Layouts | None:
    """Return the layouts of a reshape, None where a shard would not be part of a single dim.

    A shard is a digit of the row-major position: that many blocks are before it, whatever the dims.
    """
    moved = []
    for layout, size in zip(layouts, sizes):
        if layout.kind == SHARDED:
            outer = math.prod(before[: layout.dim]) * layout.blocks
            for dim, extent in enumerate(after):
                above = math.prod(after[:dim])
                blocks = outer // above
                if outer % above == 0 and extent % (blocks * size) == 0 and extent >= blocks * size:
                    layout = Layout(SHARDED, dim, blocks)
                    break
            else:
                return None
        moved.append(layout)
    return tuple(moved)


def results_of(
    call: ir.Call,
    rule: Rule,
    operands: Sequence[Value],
    shapes: Sequence[Sequence[int]],
    sizes: Sequence[int],
) -> tuple[list[Layouts], list[Layouts]] | None:
    """Return layouts of operands and results of a call.

    Parameters
    ----------
    call : Call
        The call of the reference.
    rule : Rule
    operands : sequence of Value
    shapes : sequence of shape
        Those of the operands in the reference.
    sizes : sequence of int
        Those of the mesh axes.

    Returns
    -------
    operands, results : list of tuple of Layout
        One for each mesh axis; those of uniform operands are as the rule wants them.

    None where the rule says nothing of these layouts.
    """
    ins: list[list[Layout]] = [[] for _ in operands]
    outs: list[list[Layout]] = [[] for _ in rule.out_bytes]
    for axis, size in enumerate(sizes):
        known = _along(operands, axis)
        carried = _carried(rule, known, operands)
        factor = None if carried else _factor(call, rule, operands, axis, shapes, size)
        if carried is None and factor is None:
            return None
        for number, layout in enumerate(known):
            dim = None if factor is None else factor.ins[number]
            blocks = next((x.blocks for x in known if x and x.kind == SHARDED), 1)
            expected = COPIES if dim is None else Layout(SHARDED, dim, blocks)
            ins[number].append(layout or expected)
        for number, row in enumerate(outs):
            if factor is None:
                row.append(carried or COPIES)
            elif factor.leaves_terms(number):
                row.append(Layout(SUM if factor.kind == "sum" else MAX))
            else:
                dim = factor.outs[number]
                blocks = next(x.blocks for x in known if x and x.kind == SHARDED)
                row.append(COPIES if dim is None else Layout(SHARDED, dim, blocks))
    return [tuple(x) for x in ins], [tuple(x) for x in outs]


def as_sums(operands: Sequence[Value], rule: Rule, sizes: Sequence[int]) -> list[Value]:
    """Return operands, where copies that are added to partial sums are such sums: of n copies."""
    result = list(operands)
    for axis, size in enumerate(sizes):
        for group in rule.linear:
            kinds = {x.kind for x in _along([result[i] for i in group], axis) if x is not None}
            for i in group if kinds == {SUM, REPLICATED} else ():
                value = result[i]
                if isinstance(value, Multiple) and value.layouts[axis] == COPIES:
                    layouts = (*value.layouts[:axis], Layout(SUM), *value.layouts[axis + 1 :])
                    result[i] = Multiple(value.term, value.scale * size, layouts)
    return result


def _along(operands: Sequence[Value], axis: int) -> list[Layout | None]:
    return [v.layouts[axis] if isinstance(v, Multiple) else None for v in operands]


def _carried(
    rule: Rule, known: Sequence[Layout | None], operands: Sequence[Value]
) -> Layout | None:
    """Return the layout of the results where nothing is sharded along an axis: copies or sums."""
    if all(x is None or x == COPIES for x in known):
        return COPIES
    if any(x is not None and x.kind not in (REPLICATED, SUM) for x in known):
        return None
    partial = {i for i, x in enumerate(known) if x is not None and x.kind == SUM}
    zeros = {i for i, v in enumerate(operands) if v == Uniform(0.0)}
    fits = any(partial <= set(group) <= partial | zeros for group in rule.linear)
    return Layout(SUM) if fits else None


def _factor(
    call: ir.Call,
    rule: Rule,
    operands: Sequence[Value],
    axis: int,
    shapes: Sequence[Sequence[int]],
    size: int,
) -> Factor | None:
    """Return the factor of a rule whose shards the operands are along an axis, if any."""
    known = _along(operands, axis)
    blocks = {x.blocks for x in known if x is not None and x.kind == SHARDED}
    if len(blocks) != 1 or any(x is not None and x.kind in (SUM, MAX) for x in known):
        return None
    count = blocks.pop()
    for factor in (*rule.factors, *_summed_updates(call, operands)):
        dims = [None if x is None or x == COPIES else x.dim for x in known]
        fits = all(
            x is None or dim == want for x, dim, want in zip(known, dims, factor.ins, strict=True)
        )
        if not fits or not _is_plain(call, factor) or not isinstance(factor.size, int):
            continue
        extents = {shapes[i][d] for i, d in enumerate(factor.ins) if d is not None}
        if extents == {factor.size} and factor.size % (count * size) == 0:
            return factor
        if count == 1 and factor.size % size == 0:
            return factor
    return None


def _is_plain(call: ir.Call, factor: Factor) -> bool:
    """Return whether a rank computes its part by the op itself."""
    name = called_name(call)
    entry = registration_of(name)
    if factor.kind not in ("map", "sum", "max") or entry is None:
        return False
    if entry.local is SAME_OP:
        return True
    op = name.removeprefix("relax.")
    return op in _SHAPES_ALONE and (factor.kind == "map" or op == "mean")


def _summed_updates(call: ir.Call, operands: Sequence[Value]) -> list[Factor]:
    """Return the factors of updates that are added to zeros along the axis that is scattered."""
    if called_name(call) != "relax.scatter_elements" or operands[0] != Uniform(0.0):
        return []
    if str(call.attrs["reduction"]) != "add":
        return []
    axis = int(call.attrs["axis"])
    return [Factor(int(call.args[2].ty.shape[axis]), (None, axis, axis), (None,), "sum")]
