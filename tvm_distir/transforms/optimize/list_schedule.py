# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Order the bindings of a block by list scheduling, with collectives as a stream of their own."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from .dependence import BlockNode


def due_ranks(
    nodes: Sequence[BlockNode], spent_ps: Sequence[int], blocking: Collection[int] = ()
) -> list[int]:
    """Return the rank of each binding: its position, or earlier if it only prepares a start.

    A start is due once the last of what it needs is made that others need too; so are the
    bindings between, not before, so that their results do not wait. What leaves less than
    a quarter of what it reads keeps its place: put off, it would hold that. A gather, which takes
    more memory than its operand, is not due before it must be begun to be there when it is needed.
    A ``blocking`` start keeps its place.
    """
    feeds = [False] * len(nodes)
    for i in reversed(range(len(nodes))):
        node = nodes[i]
        feeds[i] = (node.starts and i not in blocking) or (
            bool(node.readers) and not node.leaves and all(feeds[r] for r in node.readers)
        )
        read_bytes = sum(nodes[owner].size_bytes for owner in node.reads)
        shrinks = not node.starts and 0 < 4 * node.size_bytes < read_bytes
        feeds[i] = feeds[i] and bool(node.deps) and not node.fixed and not shrinks
    due = list(range(len(nodes)))
    first = [False] * len(nodes)
    for i, node in enumerate(nodes):
        if feeds[i]:
            due[i] = max(due[d] for d in node.deps)
            if node.starts and node.size_bytes > sum(nodes[o].size_bytes for o in node.reads):
                position = _in_time(nodes, spent_ps, i, blocking)
                first[i] = position > due[i]
                due[i] = max(due[i], position)
    for i in reversed(range(len(nodes))):
        if feeds[i] and not nodes[i].starts:
            due[i] = min(due[r] for r in nodes[i].readers)
    rank = [0] * len(nodes)
    for number, i in enumerate(sorted(range(len(nodes)), key=lambda i: (due[i], not first[i], i))):
        rank[i] = number
    return rank


def _in_time(
    nodes: Sequence[BlockNode], spent_ps: Sequence[int], start: int, blocking: Collection[int]
) -> int:
    """Return the last position before which a start is early enough, with others in flight.

    Nothing overlaps with a blocking start, which takes as much time of the network as it gives.
    """
    position = min((r for done in nodes[start].readers for r in nodes[done].readers), default=start)
    left_ps = spent_ps[start]
    while left_ps > 0 and position > 0:
        position -= 1
        if nodes[position].done_of is None and position != start and position not in blocking:
            left_ps += spent_ps[position] if nodes[position].starts else -spent_ps[position]
    return position


class ListSchedule:
    """List scheduling with a stream for compute and a stream for collectives.

    Parameters
    ----------
    nodes : sequence of BlockNode
    spent_ps : sequence of int
        The time of each binding on its stream.
    due : sequence of int
        The rank of each binding, see :func:`due_ranks`.
    window : int, optional
        The distance ahead of the first due binding at which another may run; None: any.
    blocking : mapping of int to int
        The done of each start behind which it follows at once.
    """

    def __init__(
        self,
        nodes: Sequence[BlockNode],
        spent_ps: Sequence[int],
        due: Sequence[int],
        window: int | None,
        blocking: Mapping[int, int],
    ) -> None:
        self._nodes, self._spent_ps, self._due = nodes, spent_ps, due
        self._window, self._blocking = window, blocking
        self._missing = [len(node.deps) for node in nodes]
        self._at_rank = sorted(range(len(nodes)), key=due.__getitem__)
        self._ready: list[int] = []  # ranks of what can run
        self._flying: list[tuple[int, int]] = []  # (end, rank of the done)
        self._order: list[int] = []
        self._is_scheduled = [False] * len(nodes)
        self._now_ps = self._network_free_ps = 0
        self._ends_ps = [0] * len(nodes)

    def run(self) -> list[int]:
        """Return the numbers of the bindings in their new order."""
        for i, count in enumerate(self._missing):
            if not count:
                self._release(i)
        first = 0  # rank of the first binding that is not scheduled
        while len(self._order) < len(self._nodes):
            while self._is_scheduled[self._at_rank[first]]:
                first += 1
            self._schedule(self._at_rank[self._next(first)])
        return self._order

    def _next(self, first: int) -> int:
        """Return the rank of what runs next; time passes where nothing else can run."""
        flying, ready = self._flying, self._ready
        if flying and flying[0][0] <= self._now_ps:
            return heapq.heappop(flying)[1]
        if ready and (not flying or self._window is None or ready[0] <= first + self._window):
            return heapq.heappop(ready)
        end_ps, rank = heapq.heappop(flying)
        self._now_ps = max(self._now_ps, end_ps)
        return rank

    def _release(self, i: int) -> None:
        """Let a binding run of which all dependences have run."""
        done_of = self._nodes[i].done_of
        if done_of is None:
            heapq.heappush(self._ready, self._due[i])
        elif done_of not in self._blocking:  # otherwise its start schedules it
            heapq.heappush(self._flying, (self._ends_ps[done_of], self._due[i]))

    def _schedule(self, i: int) -> None:
        node = self._nodes[i]
        self._order.append(i)
        self._is_scheduled[i] = True
        if node.starts:
            self._network_free_ps = max(self._network_free_ps, self._now_ps) + self._spent_ps[i]
            self._ends_ps[i] = self._network_free_ps
        elif node.done_of is None:
            self._now_ps += self._spent_ps[i]
        for reader in node.readers:
            self._missing[reader] -= 1
            if not self._missing[reader]:
                self._release(reader)
        if i in self._blocking:
            self._now_ps = max(self._now_ps, self._ends_ps[i])
            self._schedule(self._blocking[i])
