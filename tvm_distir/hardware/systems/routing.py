# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Route collectives through a graph on shortest paths, and find their most loaded links.

Messages take the paths of fewest links; where several links lead on, a message is split among them
in equal parts. All groups of a mesh axis communicate at once, so that the loads of a link add up. A
group runs at the pace of the link on its paths with the largest load for its bandwidth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.support import lists_by_key

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Nodes = Sequence[Sequence[int]]
"""The members of a group on each node."""
Demand = tuple[int, int, float]
"""A device that sends to another one, and the bytes that it sends per byte of the collective."""


class Routes(NamedTuple):
    """The paths of a group over several nodes.

    Attributes
    ----------
    ring, tree : float
        Bytes per second that leave a node on a ring in the order of devices, half of them in each
        direction, and on two binary trees, each with half of the bytes.
    exchange : float
        Seconds per byte of a device's result in an all-to-all.
    latency_us : float
        The largest sum of the latencies of links on a path between neighbours of the ring.
    """

    ring: float
    tree: float
    exchange: float
    latency_us: float


class Routing:
    """Shortest paths in a graph.

    Parameters
    ----------
    vertices, devices : int
        Vertices are numbers, devices first.
    links : sequence of (int, int, float, float)
        Both ends, bytes per second and microseconds of each link, in both directions.

    Attributes
    ----------
    hops : int64 array (vertices, devices)
        Links on the path to each device; -1 where there is none.
    latency_us : float64 array (vertices, devices)
        The most on any of the shortest paths.
    injection : float
        Bytes per second of all links of a device, the most of all.
    """

    def __init__(
        self, vertices: int, devices: int, links: Sequence[tuple[int, int, float, float]]
    ) -> None:
        table = np.array(links, np.float64).reshape(-1, 4)
        keys, link = np.unique(table[:, 0] * vertices + table[:, 1], return_inverse=True)
        self._tail, self._head = np.divmod(keys.astype(np.int64), vertices)
        self._rate, latency_us = np.bincount(link, table[:, 2]), np.zeros(len(keys))
        np.maximum.at(latency_us, link, table[:, 3])
        self.injection = float(np.bincount(self._tail, self._rate, vertices)[:devices].max())
        tails, begins = np.unique(self._tail, return_index=True)
        self.hops = np.full((vertices, devices), -1, np.int64)
        self.latency_us = np.zeros((vertices, devices))
        np.fill_diagonal(self.hops, 0)
        for far in range(1, vertices):
            leads = self.hops[self._head] == far - 1
            new = np.logical_or.reduceat(leads, begins) & (self.hops[tails] < 0)
            via = np.where(leads, latency_us[:, None] + self.latency_us[self._head], 0.0)
            at, column = np.nonzero(new)
            if not at.size:
                break
            self.hops[tails[at], column] = far
            self.latency_us[tails[at], column] = np.maximum.reduceat(via, begins)[new]

    def routes(self, groups: Sequence[Sequence[int]], per_node: int) -> list[Routes | None]:
        """Return the paths of groups that run a collective at once; None of those in a node.

        Nodes have ``per_node`` devices in sequence. The members of a node share what enters and
        leaves it: the first sends to the first of the next node, and so on.
        """
        nodes = [_by_node(group, per_node) for group in groups]
        ring_s, tree_s, exchange_s = (
            self._slowest_s([[*demands(each)] for each in nodes])
            for demands in (_ring, _tree, _exchange)
        )
        return [
            Routes(1.0 / ring_s[k], 1.0 / tree_s[k], exchange_s[k], self._latency_us(each))
            if len(each) > 1
            else None
            for k, each in enumerate(nodes)
        ]

    def _latency_us(self, nodes: Nodes) -> float:
        """Return the latency between neighbours of a ring."""
        return float(max(self.latency_us[source, target] for source, target, _ in _ring(nodes)))

    def _slowest_s(self, demands: Sequence[Sequence[Demand]]) -> list[float]:
        """Return the seconds per byte of each group, by the most loaded link on its paths."""
        rows = [(k, *demand) for k, group in enumerate(demands) for demand in group]
        table, size = np.array(rows, np.float64).reshape(-1, 4), len(self.hops)
        group, source, target = table[:, :3].astype(np.int64).T
        columns, column = np.unique(group * size + target, return_inverse=True)
        flow = np.zeros((size, len(columns)))
        np.add.at(flow, (source, column), table[:, 3])
        link, of_column, load = self._loads(flow, columns % size)
        busy_s = np.bincount(link, load, len(self._rate)) / self._rate
        slowest_s = np.zeros(len(demands))
        np.maximum.at(slowest_s, columns[of_column] // size, busy_s[link])
        return list(slowest_s.tolist())

    def _loads(self, flow: Floats, target: Ints) -> tuple[Ints, Ints, Floats]:
        """Return links, columns and loads of what flows to the target of each column.

        ``flow`` (vertices, columns) are the bytes that vertices send.
        """
        hops = self.hops[:, target]
        link, column = np.nonzero(hops[self._tail] == hops[self._head] + 1)
        tail, head = self._tail[link], self._head[link]
        onward, load, far = np.zeros(flow.shape), np.zeros(len(link)), hops[tail, column]
        np.add.at(onward, (tail, column), 1.0)
        for level in range(int(far.max(initial=0)), 0, -1):
            at = np.flatnonzero(far == level)
            load[at] = flow[tail[at], column[at]] / onward[tail[at], column[at]]
            np.add.at(flow, (head[at], column[at]), load[at])
        used = load > 0
        return link[used], column[used], load[used]


def _by_node(group: Sequence[int], per_node: int) -> Nodes:
    return [*lists_by_key((device // per_node, device) for device in group).values()]


def _between(first: Sequence[int], last: Sequence[int], weight: float) -> Iterator[Demand]:
    """Yield what the members of a node send to those of another."""
    count = max(len(first), len(last))
    for k in range(count):
        yield first[k % len(first)], last[k % len(last)], weight / count


def _ring(nodes: Nodes) -> Iterator[Demand]:
    for first, last in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        if first is not last:
            yield from _between(first, last, 0.5)
            yield from _between(last, first, 0.5)


def _tree(nodes: Nodes) -> Iterator[Demand]:
    """Yield what goes up two trees; who is inside the first is a leaf of the second."""
    count = len(nodes)
    for shift in (0, 1):
        for child in range(1, count):
            low = child & -child
            parent = (child ^ low) | (low << 1)
            parent = parent if parent < count else child ^ low
            first, last = (nodes[(k + shift) % count] for k in (child, parent))
            yield from _between(first, last, 0.5 if count > 2 else 1.0)


def _exchange(nodes: Nodes) -> Iterator[Demand]:
    share = 1.0 / sum(map(len, nodes))
    for node, other in itertools.permutations(nodes, 2):
        yield from ((a, b, share) for a in node for b in other)
