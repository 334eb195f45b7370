# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Route collectives through a graph on shortest paths, and find their most loaded links.

Messages take the paths of fewest links; where several links lead on, a message is split among them
in equal parts. All groups of a mesh axis communicate at once, so that the loads of a link add up. A
group runs at the pace of the link on its paths with the largest load for its bandwidth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    rates, latencies : mapping of (int, int) to float
        Bytes per second and microseconds of each link, by its ends, in both directions.

    Attributes
    ----------
    hops : int64 array (vertices, devices)
        Links on the path to each device; -1 where there is none.
    latency_us : float64 array (vertices, devices)
        The most on any of the shortest paths.
    injection : float64 array (devices,)
        Bytes per second of all links of a device.
    """

    def __init__(
        self,
        vertices: int,
        devices: int,
        rates: Mapping[tuple[int, int], float],
        latencies: Mapping[tuple[int, int], float],
    ) -> None:
        links = sorted(rates)
        self._tail, self._head = np.array(links, np.int64).reshape(-1, 2).T
        self._rate = np.array([rates[link] for link in links], np.float64)
        latency_us = np.array([latencies[link] for link in links], np.float64)
        self.injection = np.bincount(self._tail, self._rate, vertices)[:devices]
        tails, begins = np.unique(self._tail, return_index=True)
        self.hops = np.full((vertices, devices), -1, np.int64)
        self.latency_us = np.zeros((vertices, devices))
        np.fill_diagonal(self.hops, 0)
        for far in itertools.count(1):
            leads = self.hops[self._head] == far - 1
            new = np.logical_or.reduceat(leads, begins) & (self.hops[tails] < 0)
            if not new.any():
                break
            via = np.where(leads, latency_us[:, None] + self.latency_us[self._head], 0.0)
            at, column = np.nonzero(new)
            self.hops[tails[at], column] = far
            self.latency_us[tails[at], column] = np.maximum.reduceat(via, begins)[new]

    def routes(self, groups: Sequence[Sequence[int]], per_node: int) -> list[Routes | None]:
        """Return the paths of groups that run a collective at once; None of those in a node.

        Nodes have ``per_node`` devices in sequence. The members of a node share what enters and
        leaves it: the first sends to the first of the next node, and so on.
        """
        nodes = [_by_node(group, per_node) for group in groups]
        ring, latency_us = self._slowest([[*_ring(each)] for each in nodes])
        tree, _ = self._slowest([[*_tree(each)] for each in nodes])
        exchange, _ = self._slowest([[*_exchange(each)] for each in nodes])
        return [
            Routes(1.0 / ring[k], 1.0 / tree[k], exchange[k], latency_us[k])
            if len(each) > 1
            else None
            for k, each in enumerate(nodes)
        ]

    def _slowest(self, demands: Sequence[Sequence[Demand]]) -> tuple[list[float], list[float]]:
        """Return the seconds per byte of each group, and the largest latency of its paths."""
        rows: Any = [(k, *demand) for k, group in enumerate(demands) for demand in group]
        group, source, target, weight = np.array(rows, np.float64).reshape(-1, 4).T
        numbers = [each.astype(np.int64) for each in (group, source, target)]
        latency_us = np.zeros(len(demands))
        np.maximum.at(latency_us, numbers[0], self.latency_us[numbers[1], numbers[2]])
        columns, column = np.unique(numbers[0] * len(self.hops) + numbers[2], return_inverse=True)
        flow = np.zeros((len(self.hops), len(columns)))
        np.add.at(flow, (numbers[1], column), weight)
        link, of_column, load = self._loads(flow, columns % len(self.hops))
        busy_s = np.bincount(link, load, len(self._rate)) / self._rate
        slowest_s = np.zeros(len(demands))
        np.maximum.at(slowest_s, columns[of_column] // len(self.hops), busy_s[link])
        return slowest_s.tolist(), latency_us.tolist()

    def _loads(self, flow: Floats, target: Ints) -> tuple[Ints, Ints, Floats]:
        """Return links, columns and loads of what flows to the target of each column.

        ``flow`` (vertices, columns) are the bytes that vertices send.
        """
        hops = self.hops[:, target]
        link, column = np.nonzero(hops[self._tail] == hops[self._head] + 1)
        far = hops[self._tail[link], column]
        order = np.argsort(-far, kind="stable")
        link, column, far = link[order], column[order], far[order]
        tail, head = self._tail[link], self._head[link]
        onward = np.zeros(flow.shape)
        np.add.at(onward, (tail, column), 1.0)
        load = np.zeros(len(link))
        for _, run in itertools.groupby(range(len(link)), key=far.__getitem__):
            numbers = [*run]
            at = slice(numbers[0], numbers[-1] + 1)
            load[at] = flow[tail[at], column[at]] / onward[tail[at], column[at]]
            np.add.at(flow, (head[at], column[at]), load[at])
        used = load > 0
        return link[used], column[used], load[used]


def _by_node(group: Sequence[int], per_node: int) -> Nodes:
    nodes: dict[int, list[int]] = {}
    for device in group:
        nodes.setdefault(device // per_node, []).append(device)
    return [*nodes.values()]


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
    for one, other in itertools.permutations(nodes, 2):
        yield from ((a, b, share) for a in one for b in other)
