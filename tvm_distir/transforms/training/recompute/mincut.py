# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute a minimum cut of a small graph along shortest augmenting paths (Dinic 1970)."""

from __future__ import annotations

from collections import deque


class Cut:
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
        for here, there, most in ((start, end, capacity), (end, start, 0)):
            self.edges[here].append(len(self.ends))
            self.ends.append(there)
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
        """Augment along one path of rising levels, skipping exhausted edges."""
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
