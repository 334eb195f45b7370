# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find which dims of a PrimFunc's buffers one loop runs over."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, s_tir, sym, tirx


class _Access(NamedTuple):
    """A load or a store: the buffer and its indices."""

    buffer: Any
    indices: list[Any]


@functools.lru_cache(maxsize=256)
def axis_groups(function: tirx.PrimFunc) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return groups of dims that are sharded alike, or not at all.

    Two dims are in a group if, in a block, the same variable indexes both over their whole extent.
    Buffers that the function allocates connect groups, and do not appear in them.

    Returns
    -------
    tuple of tuple of (int, int)
        Per group the position of each parameter and its dim, in order.
    """
    positions = {param: i for i, param in enumerate(function.params)}
    joined: dict[tuple[Any, int], list[tuple[Any, int]]] = collections.defaultdict(list)
    for first, second in _matches(function):
        joined[first].append(second)
        joined[second].append(first)
    groups, seen = [], set()
    for node in joined:
        if node in seen:
            continue
        seen.add(node)
        group = [node]
        for member in group:
            new = [other for other in joined[member] if other not in seen]
            new = list(dict.fromkeys(new))
            seen.update(new)
            group.extend(new)
        params = sorted((positions[buffer], dim) for buffer, dim in group if buffer in positions)
        if len(params) > 1:
            groups.append(tuple(params))
    return tuple(sorted(groups))


def _matches(function: tirx.PrimFunc) -> Iterator[tuple[tuple[Any, int], tuple[Any, int]]]:
    """Yield pairs of (buffer, dim) that one variable indexes in a block."""
    for block in _blocks(function.body):
        accesses: list[_Access] = []
        _collect(block, accesses)
        ranges = {v.var: v.dom for v in block.iter_vars}
        for access in accesses:
            for other in accesses:
                if access.buffer.same_as(other.buffer):
                    continue
                for i, index in enumerate(access.indices):
                    for j, another in enumerate(other.indices):
                        if _match(index, access, i, another, other, j, ranges):
                            yield (access.buffer, i), (other.buffer, j)


def _blocks(body: Any) -> list[Any]:
    """Return the blocks of a function, without the root block and blocks inside of blocks."""
    matches: list[Any] = []
    tvm_ffi.structural_walk(body, (s_tir.SBlock, matches.append))
    return [block for block in matches if block.name_hint != "root"]


def _collect(block: Any, accesses: list[_Access]) -> None:
    """Collect the loads and stores of a block."""

    def load(node: ir.TensorLoad) -> None:
        accesses.append(_Access(node.source, list(node.indices)))

    def store(node: tirx.BufferStore) -> None:
        accesses.append(_Access(node.buffer, list(node.indices)))

    tvm_ffi.structural_walk(block.body, ((ir.TensorLoad, load), (tirx.BufferStore, store)))


def _match(
    index: Any,
    access: _Access,
    i: int,
    another: Any,
    other: _Access,
    j: int,
    ranges: dict[Any, ir.Range],
) -> bool:
    """Return whether a variable indexes a whole dim, and drives the index of another whole dim."""
    if not isinstance(index, tirx.Var) or index not in ranges:
        return False
    extent, extents = access.buffer.ty.shape[i], other.buffer.ty.shape
    analyzer = sym.Analyzer()
    for var, domain in ranges.items():
        analyzer.bind(var, domain)
    if not analyzer.can_prove_equal(extent, ranges[index].extent):
        return False
    another = analyzer.simplify(another)
    domains = {v: sym.IntervalSet(d.min, d.min + d.extent - 1) for v, d in ranges.items()}
    covered = analyzer.int_set(another, domains)
    if covered.is_nothing() or covered.is_everything():
        return False
    whole = analyzer.can_prove_equal(covered.min_value, 0) and analyzer.can_prove_equal(
        covered.max_value, extents[j] - 1
    )
    return whole and _driver(another, ranges, analyzer) == index


def _driver(index: Any, ranges: dict[Any, ir.Range], analyzer: sym.Analyzer) -> Any:
    """Return the variable whose extent determines the extent of an index, or None.

    This is the most significant variable of the index, if its quotient counts without a modulo.
    """
    if isinstance(index, tirx.Var):
        return index
    total = sym.normalize_to_iter_sum(index, ranges, analyzer)
    if not total.args or not analyzer.can_prove_equal(total.base, 0):
        return None
    split = total.args[0]
    var = split.source.source
    if not isinstance(var, tirx.Var) or var not in ranges:
        return None
    quotient = tirx.floordiv(ranges[var].extent, split.lower_factor)
    return var if analyzer.can_prove(quotient <= split.extent) else None
