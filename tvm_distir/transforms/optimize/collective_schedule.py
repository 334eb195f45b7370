# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split collectives into a start and a done, and schedule other work between them (level 5)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    DONE,
    TRANSFERS,
    collective_done,
    start,
    start_name,
)
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import with_body
from tvm_distir.hardware import System

from .binding_costs import BindingCosts
from .binding_rewriter import Editor, FunctionStep, rewrite_of, stepped
from .dependence import BlockNode, block_nodes, peak_bytes
from .function_facts import Scan
from .overlap_choice import OverlapChoice


@module_pass("local")
def SplitCollectives() -> Rewrite:
    """Split every collective into a start followed by its done.

    ``y = R.dist.all_reduce(x, ...)`` becomes ``t = R.dist.all_reduce_start(x, ...)`` and
    ``y = R.dist.collective_done(t)``. By itself this changes nothing: :func:`ScheduleCollectives`
    moves the two apart.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([FunctionStep(_Split, COLLECTIVES)], level=5)


class _Split(Editor):
    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
        """Split a collective."""
        if kind not in COLLECTIVES:
            return value
        flying = self.emit(start(value), f"{var.name}_start")
        return self.normalize(collective_done(flying))


NONE_BLOCKS: Mapping[int, int] = MappingProxyType({})
WINDOWS = (None, 512, 128, 32, 8, 2, 0)
"""The distances ahead of the first due binding at which another may run, tried in order."""


@module_pass("local")
def ScheduleCollectives(
    system: System | str = "a100",
    *,
    memory_limit_bytes: int | None = None,
    ahead_bytes: int | None = None,
    activations: bool = True,
) -> Rewrite:
    """Schedule other work while collectives are in flight.

    Orders the bindings of every block by a simulated clock: a start is issued as soon as its
    operand is there, a done when its collective has ended, or when nothing else can run; between
    them goes what is due next. What only prepares the operand of a start is due as soon as its
    own operands are there. Effects keep their order; where entries share a mesh, collectives do
    too, as all of its devices must meet in one order. Collectives of called functions stay in
    them.

    Parameters
    ----------
    system : System or str
        System whose times determine the simulated clock.
    memory_limit_bytes : int, optional
        Maximum bytes of the live values of a block on a device. None: see
        ``ahead_bytes``. Where running ahead takes more, it is narrowed step by step; a block
        that takes more in any case keeps its order.
    ahead_bytes : int, optional
        Maximum additional bytes over the original order. None: a sixteenth of its bytes.
    activations : bool
        Whether collectives of activations overlap with other work. Otherwise each is waited for at
        once, as those of tensor parallelism are in most frameworks; gathers of weights, reductions
        of gradients and rings overlap.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    resolved = System.resolve(system)
    kinds = tuple(start_name(kind) for kind in COLLECTIVES)

    def schedule(mod: ir.IRModule) -> ir.IRModule:
        step = FunctionStep(
            _Schedule, kinds, system=resolved, limit_bytes=memory_limit_bytes,
            more_bytes=ahead_bytes,
            choice=None if activations else OverlapChoice(mod),
        )  # fmt: skip
        return stepped(mod, [step], 5)

    return schedule


class _Schedule(Editor):
    def __init__(
        self,
        mod: ir.IRModule,
        name: str,
        fn: relax.Function,
        scan: Scan,
        system: System,
        limit_bytes: int | None,
        more_bytes: int | None,
        choice: OverlapChoice | None,
    ) -> None:
        super().__init__(mod, name, fn, scan)
        self.overlapped = (
            None
            if choice is None
            else choice.of(name, fn.params, [row for rows in scan.blocks for row in rows])
        )
        self.limit_bytes, self.more_bytes = limit_bytes, more_bytes
        io: Any = fn.attrs.get(IO_ATTR, {}) if fn.attrs else {}
        self.devices = tuple(int(d) for d in io.get("devices", ()))
        self.costs = BindingCosts(mod, system).of(scan.reading, self.devices)

    def run(self) -> relax.Function:
        """Return the function with the bindings of its blocks reordered."""
        blocks, first = [], 0
        nodes_of_blocks = block_nodes(self.scan, self.costs, bool(self.devices))
        for block, rows, nodes in zip(
            self.fn.body.blocks, self.scan.blocks, nodes_of_blocks, strict=True
        ):
            order = self._best(nodes, rows, first)
            first += len(rows)
            kind = (
                relax.DataflowBlock
                if isinstance(block, relax.DataflowBlock)
                else relax.BindingBlock
            )
            blocks.append(kind([rows[i][0] for i in order]))
        fn = self.fn
        return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))

    def _best(self, nodes: Sequence[BlockNode], rows: Sequence[Any], first: int) -> Sequence[int]:
        """Return the best order within the memory limit, or the original order.

        ``first`` is the number of the block's first binding.
        """
        original = range(len(nodes))
        if not any(row[3] == DONE for row in rows):
            return original
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            original_bytes = peak_bytes(nodes, original)
            more_bytes = original_bytes // 16 if self.more_bytes is None else self.more_bytes
            limit_bytes = original_bytes + more_bytes
        spent_ps = [self._spent_ps(row[3], n) for n, row in enumerate(rows, first)]
        blocking = self._blocking(nodes, rows)
        due = _due(nodes, spent_ps, blocking)
        for window in WINDOWS:
            order = _order(nodes, spent_ps, due, window, blocking)
            if peak_bytes(nodes, order) <= limit_bytes:
                return order
        return original

    def _blocking(self, nodes: Sequence[BlockNode], rows: Sequence[Any]) -> dict[int, int]:
        """Return the done of each start that is waited for at once."""
        return {
            node.done_of: number
            for number, node in enumerate(nodes)
            if node.done_of is not None
            and self.overlapped is not None
            and rows[node.done_of][1] not in self.overlapped
        }

    def _spent_ps(self, kind: str | None, number: int) -> int:
        """Return the time of a binding on its stream; transfers have a separate stream."""
        return 0 if kind in TRANSFERS else self.costs.picoseconds(number)


def _due(
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
                place = _in_time(nodes, spent_ps, i, blocking)
                first[i] = place > due[i]
                due[i] = max(due[i], place)
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
    place = min((r for done in nodes[start].readers for r in nodes[done].readers), default=start)
    left_ps = spent_ps[start]
    while left_ps > 0 and place > 0:
        place -= 1
        if nodes[place].done_of is None and place != start and place not in blocking:
            left_ps += spent_ps[place] if nodes[place].starts else -spent_ps[place]
    return place


def _order(
    nodes: Sequence[BlockNode],
    spent_ps: Sequence[int],
    due: Sequence[int],
    window: int | None,
    blocking: Mapping[int, int] = NONE_BLOCKS,
) -> list[int]:
    """Run list scheduling with a stream for compute and a stream for collectives.

    ``blocking`` has the done of each start behind which it follows at once.
    """
    missing = [len(node.deps) for node in nodes]
    at_rank = [0] * len(nodes)
    for i, rank in enumerate(due):
        at_rank[rank] = i
    ready: list[int] = []  # ranks of what can run
    flying: list[tuple[int, int]] = []  # (end, done)
    order: list[int] = []
    placed = [False] * len(nodes)
    now_ps = wire_free_ps = 0
    first = 0  # rank of the first binding that is not placed
    ends_ps = [0] * len(nodes)

    def release(i: int) -> None:
        node = nodes[i]
        if node.done_of in blocking:
            return  # its start places it
        if node.done_of is not None:
            heapq.heappush(flying, (ends_ps[node.done_of], due[i]))
        else:
            heapq.heappush(ready, due[i])

    def place(i: int) -> None:
        nonlocal now_ps, wire_free_ps
        order.append(i)
        placed[i] = True
        if nodes[i].starts:
            wire_free_ps = max(wire_free_ps, now_ps) + spent_ps[i]
            ends_ps[i] = wire_free_ps
        elif nodes[i].done_of is None:
            now_ps += spent_ps[i]
        for reader in nodes[i].readers:
            missing[reader] -= 1
            if not missing[reader]:
                release(reader)
        if i in blocking:
            now_ps = max(now_ps, ends_ps[i])
            place(blocking[i])

    for i, count in enumerate(missing):
        if not count:
            release(i)
    while len(order) < len(nodes):
        while placed[at_rank[first]]:
            first += 1
        if flying and flying[0][0] <= now_ps:
            place(at_rank[heapq.heappop(flying)[1]])
        elif ready and (not flying or window is None or ready[0] <= first + window):
            place(at_rank[heapq.heappop(ready)])
        else:
            end_ps, rank = heapq.heappop(flying)
            now_ps = max(now_ps, end_ps)
            place(at_rank[rank])
    return order
