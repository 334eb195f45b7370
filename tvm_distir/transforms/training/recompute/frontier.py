# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the values that a function saves to minimize the time of recomputing the rest.

The values that the backward pass reads are saved or recomputed, and recomputed values need their
operands, which are saved or recomputed too. For a given price of a byte, the minimum of time plus
price is a minimum cut: each value is an edge with the cost of its bytes, preceded by an edge from
the source with the cost of its time, and operands follow their readers. Prices from 0 to infinity
give the points of the lower convex hull of bytes and time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import ir
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.rewriting import variables
from tvm_distir.transforms.training.autodiff.saved_values import (
    NO_OPERANDS,
    kept_and_again,
    kept_bytes,
    view_source,
)

from .times import ValueTimes

Kept = tuple[list[Any], list[Any]]
"""Variables that are kept, and bindings that are recomputed, in order."""

DEPTH = 3
"""The number of times that the stretch between two points of the hull is halved: at most 9
points."""


@dataclass(frozen=True)
class Point:
    """Choice of saved values.

    Attributes
    ----------
    size_bytes : int
        The bytes of the saved values.
    time : int
        The time of recomputation.
    kept : list of Var
    recomputed : list of Binding
    """

    size_bytes: int
    time: int
    kept: list[Var]
    recomputed: list[Binding]


class _Values:
    """Values of a function that its backward pass may need."""

    def __init__(self, frontier: Frontier) -> None:
        self.frontier, times, operands = frontier, frontier.times, frontier.operands
        self.read = set(frontier.read)
        needed = dependencies(self.read, frontier.forward)
        self.bindings = [binding for binding in frontier.forward if binding.var in needed]
        self.number = {binding.var: i for i, binding in enumerate(self.bindings)}
        self.bytes = [kept_bytes([b.var]) for b in self.bindings]
        self.times = [0 if b.var in operands else times.of(b.value) for b in self.bindings]
        self.free = [b.var in operands or _is_never_kept(b.value) for b in self.bindings]

    def cut(self, cost: int, scale: int) -> Point:
        """Minimize ``cost`` times bytes plus ``scale`` times time."""
        endless = 1 + cost * sum(self.bytes) + scale * sum(self.times)
        graph = FlowNetwork(2 + 2 * len(self.bindings))
        for i, binding in enumerate(self.bindings):
            before, behind = 2 + 2 * i, 3 + 2 * i
            graph.edge(0, before, scale * self.times[i])
            graph.edge(before, behind, endless if self.free[i] else cost * self.bytes[i])
            for var in variables(binding.value):
                if var in self.number:
                    graph.edge(3 + 2 * self.number[var], before, endless)
            if binding.var in self.read:
                graph.edge(behind, 1, endless)
        side = graph.source_side()
        cut = [side[2 + 2 * i] and not side[3 + 2 * i] for i in range(len(self.bindings))]
        at_hand = {b.var for b, is_cut in zip(self.bindings, cut, strict=True) if is_cut}
        saved, recomputed = self.frontier.through(lambda binding: binding.var not in at_hand)
        time = sum(self.times[self.number[binding.var]] for binding in recomputed)
        return Point(kept_bytes(saved), time, saved, recomputed)


@dataclass(eq=False)
class Frontier:
    """Choices of a function.

    Attributes
    ----------
    forward : sequence of Binding
    read : sequence of Var
        The values that the backward pass reads.
    times : ValueTimes
    operands : mapping of Var to Var
        Values that kernels of the backward pass compute again, with what they read instead. They
        are never saved, and take no time.
    """

    forward: Sequence[Binding]
    read: Sequence[Var]
    times: ValueTimes
    operands: Mapping[Any, Any] = field(default_factory=lambda: NO_OPERANDS)

    def plain(self, params: Sequence[Var]) -> Kept:
        """Return what is saved and recomputed without a policy; ``params`` are at hand."""
        return kept_and_again(self.forward, self.read, params, self.operands)

    def through(self, is_recomputed: Callable[[Binding], bool]) -> Kept:
        """Recompute what is read through some bindings, and save the values where they end."""
        between = [binding for binding in self.forward if is_recomputed(binding)]
        needed = dependencies(self.read, between)
        recomputed = [binding for binding in between if binding.var in needed]
        ends = needed.difference(binding.var for binding in between)
        return [binding.var for binding in self.forward if binding.var in ends], recomputed

    @cached_property
    def _graph(self) -> _Values:
        return _Values(self)

    @cached_property
    def points(self) -> list[Point]:
        """Return the corners of the convex hull, by increasing saved bytes."""
        values = self._graph
        least = values.cut(sum(values.times) + 1, 1)
        return [least, *self._between(least, values.cut(1, sum(values.bytes) + 1), DEPTH)]

    def _between(self, low: Point, high: Point, depth: int) -> list[Point]:
        """Return the corners after ``low`` up to ``high``."""
        if high.size_bytes <= low.size_bytes:
            return []
        cost, scale = low.time - high.time, high.size_bytes - low.size_bytes
        middle = self._graph.cut(cost, scale) if depth else low
        value = cost * middle.size_bytes + scale * middle.time
        if value >= cost * low.size_bytes + scale * low.time:
            return [high]
        below, above = (self._between(*ends, depth - 1) for ends in ((low, middle), (middle, high)))
        return below + above


def _is_never_kept(value: Expr) -> bool:
    """Return whether a value is never saved: a view, or computed without operands."""
    if view_source(value) is not None:
        return True
    return isinstance(value, ir.Call) and not any(True for _ in variables(value))


class FlowNetwork:
    """Directed graph with integer capacities between the nodes 0 (source) and 1 (sink).

    Parameters
    ----------
    nodes : int
    """

    def __init__(self, nodes: int) -> None:
        self.ends: list[int] = []  # of edge e; e ^ 1 is its reverse
        self.left: list[int] = []
        self.edges: list[list[int]] = [[] for _ in range(nodes)]

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge."""
        for source, target, most in ((start, end, capacity), (end, start, 0)):
            self.edges[source].append(len(self.ends))
            self.ends.append(target)
            self.left.append(most)

    def source_side(self) -> list[bool]:
        """Saturate the graph; return, per node, whether the source still reaches it."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return [depth >= 0 for depth in level]
            tried = [0] * len(self.edges)
            while self._augment(level, tried):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self.edges)
        level[0], queue = 0, deque([0])
        while queue:
            node = queue.popleft()
            for e in self.edges[node]:
                if self.left[e] and level[self.ends[e]] < 0:
                    level[self.ends[e]] = level[node] + 1
                    queue.append(self.ends[e])
        return level

    def _augment(self, level: list[int], tried: list[int]) -> bool:
        """Augment along a path of rising levels, skipping exhausted edges."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self.edges[node]
            while tried[node] < len(edges):
                e = edges[tried[node]]
                if self.left[e] and level[self.ends[e]] == level[node] + 1:
                    break
                tried[node] += 1
            if tried[node] < len(edges):
                path.append(edges[tried[node]])
                node = self.ends[path[-1]]
            elif path:
                node = self.ends[path.pop() ^ 1]
                tried[node] += 1
            else:
                return False
        most = min(self.left[e] for e in path)
        for e in path:
            self.left[e] -= most
            self.left[e ^ 1] += most
        return True
