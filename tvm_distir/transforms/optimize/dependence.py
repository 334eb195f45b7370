# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the dependences of a block's bindings and the peak memory of an order of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.relax import Expr

from tvm_distir.core.analysis import last_reads, live_bytes
from tvm_distir.core.ir import flat_types
from tvm_distir.core.ir.operators import COLLECTIVES, DONE, start_name
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import callee_of
from tvm_distir.core.rewriting.native import (
    FUNCTION_CALL,
    IF,
    OP_CALL,
    OTHER_CALL,
    is_pure,
)
from tvm_distir.support import GenericConst

from .binding_costs import BodyCosts
from .function_facts import Scan

_STARTS = frozenset(start_name(kind) for kind in COLLECTIVES)


@dataclass
class BlockNode:
    """Binding of a block, with its dependences and sizes.

    Attributes
    ----------
    deps, readers : list of int
        Bindings of the block that it waits for, and that wait for it; each once.
    size_bytes : int
        Memory that its result takes: none, when it is that of its operands.
    memory_of : tuple of int
        The bindings whose memory its result is.
    reads : list of int
        Bindings whose memory it needs.
    leaves : bool
        Whether its value is read outside of the block.
    starts : bool
        Whether it starts a collective.
    done_of : int or None
        The start whose collective it waits for.
    fixed : bool
        Whether it has effects, or must keep its place among those: such bindings keep their
        order.
    """

    deps: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    size_bytes: int = 0
    memory_of: tuple[int, ...] = ()
    reads: list[int] = field(default_factory=list)
    leaves: bool = False
    starts: bool = False
    done_of: int | None = None
    fixed: bool = False


def block_nodes(
    scan: Scan, costs: BodyCosts, meets_in_order: bool = False
) -> list[list[BlockNode]]:
    """Return the nodes of each block of a function.

    Parameters
    ----------
    scan : Scan
    costs : BodyCosts
        The costs of the bindings that the scan reads.
    meets_in_order : bool
        Whether collectives, and calls of functions that may hold some, keep their order too.
    """
    reading, params = scan.reading, scan.reading.params

    @functools.cache
    def size_of(kind: int) -> int:
        types = flat_types(reading.variables[reading.types.index(kind)].ty)
        return sum(map(local_bytes, types))

    blocks: list[list[BlockNode]] = []
    end = params
    last = last_reads(scan.used, reading.result)
    for rows in scan.blocks:
        first, end = end, end + len(rows)
        nodes: list[BlockNode] = []
        last_fixed: int | None = None
        for i, (_, _, value, kind) in enumerate(rows):
            number = first + i - params
            reads = dict.fromkeys(scan.used[number])
            used = dict.fromkeys(read - first for read in reads if read >= first)
            node = BlockNode(deps=list(used), starts=kind in _STARTS)
            node.leaves = last.get(first + i, -1) >= end - params
            if kind == DONE and used:
                node.done_of = next(iter(used))
            shares = _shares(value, reading.kinds[number], number, costs)
            inside = [m for d in used for m in nodes[d].memory_of]
            node.reads = list(dict.fromkeys(inside))
            if node.done_of is not None:
                node.reads += nodes[node.done_of].reads  # in flight until here
            node.memory_of = tuple(node.reads[: len(inside)]) if shares else (i,)
            node.size_bytes = 0 if shares else size_of(reading.types[first + i])
            if not is_pure(value) or (meets_in_order and _may_meet(value, kind)):
                node.fixed = True
                if last_fixed is not None and last_fixed not in used:
                    node.deps.append(last_fixed)
                last_fixed = i
            nodes.append(node)
            for dep in node.deps:
                nodes[dep].readers.append(i)
        blocks.append(nodes)
    return blocks


def _may_meet(value: Any, kind: str | None) -> bool:
    """Return whether a binding may need other devices to take part."""
    if kind is not None:
        return kind in _STARTS or kind in COLLECTIVES
    return callee_of(value) is not None or isinstance(value, relax.If)


def _shares(value: Expr, kind: int, number: int, costs: BodyCosts) -> bool:
    """Return whether a binding needs no memory for its result."""
    if kind in (OP_CALL, FUNCTION_CALL, OTHER_CALL):
        return costs.is_view(number)
    return kind != IF and type(value) is not GenericConst


def peak_bytes(nodes: Sequence[BlockNode], order: Sequence[int]) -> int:
    """Return the peak of live result bytes when the bindings run in a given order."""
    results = [owner for node in nodes if node.leaves for owner in node.memory_of]
    last = last_reads([(i, *nodes[i].reads) for i in order], results)
    ends, sizes = [last[i] for i in order], [nodes[i].size_bytes for i in order]
    return int(live_bytes(range(len(order)), ends, sizes, len(order)).max(initial=0))
