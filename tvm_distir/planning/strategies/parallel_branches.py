# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find independent branches of a graph, without their common past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_distir.core.propagation import Graph, PlacedModule


@dataclass(frozen=True)
class ParallelBranch:
    """Branch: nodes that lead to a single operand of a join.

    Attributes
    ----------
    nodes : int
        A bit per node of the graph.
    last : int
        The node that gives the operand.
    flops : int
    ends : bool
        Whether it meets others in the results of the function only.
    """

    nodes: int
    last: int
    flops: int
    ends: bool


@dataclass(frozen=True)
class Branches:
    """Branches of a function.

    Attributes
    ----------
    groups : list of list of ParallelBranch
        Branches of a group do not depend on each other; two or more, the heaviest first.
    counted : int
        A bit per node that the results need.
    """

    groups: list[list[ParallelBranch]]
    counted: int


def branches_of(module: PlacedModule, g: Graph, results: Sequence[int], percent: int) -> Branches:
    """Find the branches of a function: of joins that share nodes those with most to do.

    Parameters
    ----------
    module : PlacedModule
    g : Graph
        The graph of the function.
    results : sequence of int
        The results that count, by number; together they are a join as well.
    percent : int
        The minimum share of a branch in the work of all nodes that count; branches with less are
        ignored.
    """
    work = _work(module, g)
    past = _past(g)
    values = [g.result_values[i] for i in results]
    producers = sorted({g.producer[v][0] for v in values if v >= 0})
    counted = 0
    for k in producers:
        counted |= past[k]
    least = max(sum(work[n] for n in _members(counted)) * percent // 100, 1)
    joins = []
    for operands, ends in (*((row, False) for row in _joins(g, counted)), (producers, True)):
        branches = []
        for k in operands:
            nodes = past[k]
            for other in operands:
                nodes &= nodes if other == k else ~past[other]
            flops = sum(work[n] for n in _members(nodes))
            if flops >= least:
                branches.append(ParallelBranch(nodes, k, flops, ends))
        if len(branches) > 1:
            joins.append(sorted(branches, key=_heaviest))
    joins.sort(key=lambda row: (-row[1].flops, row[0].last))
    groups: list[list[ParallelBranch]] = []
    for row in joins:
        _take(groups, row, least)
    return Branches([sorted(group, key=_heaviest) for group in groups], counted)


def _take(groups: list[list[ParallelBranch]], row: list[ParallelBranch], least: int) -> None:
    """Add the branches of a join to the groups: as a new group, or as parts of a group.

    A branch that holds a join, and hardly anything else, falls apart into the branches of that;
    so all towers of a chain of sums form a group.
    """
    nodes = _together(row)
    for group in groups:
        for i, branch in enumerate(group):
            if nodes & ~branch.nodes == 0:
                if branch.flops - sum(b.flops for b in row) < least:
                    group[i : i + 1] = row
                return
        inside = [b for b in row if _together(group) & ~b.nodes == 0]
        others = [b for b in row if b not in inside]
        if inside and not any(_together(group) & _together(others) for group in groups):
            group += others
            return
    if not any(_together(group) & nodes for group in groups):
        groups.append(list(row))


def _together(row: Sequence[ParallelBranch]) -> int:
    nodes = 0
    for branch in row:
        nodes |= branch.nodes
    return nodes


def _heaviest(branch: ParallelBranch) -> tuple[int, int]:
    return -branch.flops, branch.last


def members(branch: ParallelBranch) -> list[int]:
    """Return the nodes of a branch, in order."""
    return list(_members(branch.nodes))


def _members(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _joins(g: Graph, counted: int) -> Iterator[list[int]]:
    """Yield, per op or call that counts, the nodes of its operands, where there are several."""
    for k, node in enumerate(g.nodes):
        if node.kind in ("op", "call") and counted >> k & 1:
            makers = {g.producer[v][0] for v in node.operands if v >= 0}
            nodes = sorted(n for n in makers if g.nodes[n].kind in ("op", "call"))
            if len(nodes) > 1:
                yield nodes


def _past(g: Graph) -> list[int]:
    """Return, per node, its ancestor ops and calls, itself included, as bits."""
    past: list[int] = []
    for k, node in enumerate(g.nodes):
        ancestors = 1 << k if node.kind in ("op", "call") else 0
        for v in node.operands:
            if v >= 0:
                ancestors |= past[g.producer[v][0]]
        past.append(ancestors)
    return past


def _work(module: PlacedModule, g: Graph) -> list[int]:
    """Return the FLOPs of each node, those of functions called included."""
    total: dict[str, int] = {}

    def of(graph: Graph) -> list[int]:
        return [
            n.rule.flops if n.rule is not None else total[n.callee] if n.kind == "call" else 0
            for n in graph.nodes
        ]

    for key in module.order:
        if key == g.key:
            break
        total[key] = sum(of(module.graphs[key]))
    return of(g)


def balanced(branches: Sequence[ParallelBranch], bins: int, last: bool) -> list[int]:
    """Put branches into bins of about equal work: each, the heaviest first, where least is.

    Bin 0 gets the branch that begins first, or ``last``.
    """
    loads, bins_of = [0] * bins, []
    for branch in branches:
        chosen = min(range(bins), key=lambda b: (loads[b], b))
        bins_of.append(chosen)
        loads[chosen] += branch.flops
    order = sorted(range(len(branches)), key=lambda i: members(branches[i])[0])
    home = bins_of[order[-1 if last else 0]]
    swapped = {0: home, home: 0}
    return [swapped.get(b, b) for b in bins_of]
