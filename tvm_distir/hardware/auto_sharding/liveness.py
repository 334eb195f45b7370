# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Records which values devices store, in which placements and until when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.core.ir import Labels
from tvm_distir.core.ops import VIEWS
from tvm_distir.core.redistribution import CostMatrix
from tvm_distir.core.solver import INFINITE

from .in_flight import NO_FLIGHT, LiveRanges
from .kernel_costs import in_place
from .sharding_problem import Assembly, Bytes, LiveRange, Side, once


class Liveness:
    """Records the live ranges of a problem's values.

    The lowered program has a buffer for each placement of a value that anyone needs, from the first
    that needs it to the last. Which these are hangs on all readers at once; holdings stand over two
    variables at most, so they tell apart all readers but the last, together, and the last reader.

    Parameters
    ----------
    net : Assembly
        The problem, with all nodes.
    """

    def __init__(self, net: Assembly) -> None:
        self.g, self.shared, self.net = net.g, net.shared, net.net
        g, updates = net.g, net.shared.updates
        flight = net.shared.flight if g.public else NO_FLIGHT
        self.spans = LiveRanges(g, net.shared.module.graphs, net.net.begins, flight)
        self.donated = {g.result_values[ret] for ret in (updates if g.public else ())}

    def keep(
        self, v: int, matrix: CostMatrix, producer: Side, shared: Side, readers: Sequence[Side]
    ) -> None:
        """Record how long a value is stored.

        It is kept as it is given, and from its first reader on as it is shared, until all readers
        but the last have read it. For that there is then what it needs: a placement that only
        others needed is freed, and so is the produced value. Inside a function that reads it
        last it is there in the form of the argument alone. A slice for the last reader from a
        form that neither was given nor is needed any more counts as cut before.

        Parameters
        ----------
        v : int
        matrix : CostMatrix
            The costs between the placements of the value.
        producer, shared : Side
            The placements in which the value is produced, and in which it is held for its readers.
        readers : sequence of Side
            A side per operand, in the order of the graph; a single side is ``shared``.
        """
        begins = self.net.begins
        times = [
            self.spans.reading(v, k, begins[k], self._end(k, (i,)))
            for k, where in self.g.uses[v]
            for i in (where if k in self.net.callees else dict.fromkeys(where))
        ]
        final = max(range(len(times)), key=lambda n: times[n][1])
        (begin, end), reader = times[final], readers[final]
        others = [until for n, (_, until) in enumerate(times) if n != final]
        until = max(others, default=begin)
        often = self._keep(v, matrix, producer, until)
        changed = begin if often else end  # until when both forms count
        if others:
            self._hold(
                (producer[1], shared[1]), self._copies(matrix, producer, shared), times[0][0], until
            )
            left = self._times(self._left(matrix, producer, reader, often > 0), often or 1)
            self._hold((producer[1], reader[1]), left, until + 1, changed)
        else:
            self._hold(
                (producer[1], reader[1]), self._copies(matrix, producer, reader), begin, changed
            )
        if often:
            size = self._times(self._bytes(matrix, reader[0]), often)
            self._hold((reader[1],), size, max(begin, until) + 1, end)

    def last(self, v: int) -> int:
        """Return when a value, or another view of it, is read last."""
        return max((self._end(k, where) for k, where in self.g.uses[v]), default=0)

    def _end(self, k: int, operands: Sequence[int]) -> int:
        """Return when operands of a node, or views of them, are read last, also in its callees."""
        begins = self.net.begins
        if k in self.net.callees:
            lasts = self.net.callees[k][0].lasts
            return begins[k] + max(lasts[i] for i in operands)
        end = begins[k + 1] - 1
        return max(end, self.last(self.g.nodes[k].results[0])) if self._aliases(k) else end

    def _keep(self, v: int, matrix: CostMatrix, producer: Side, last: int) -> int:
        """Record that a value is stored in the placement in which it is produced, and how often.

        Of a stage also what is kept for other micro-batches, and of others like it on the rank.

        Parameters
        ----------
        v : int
        matrix : CostMatrix
        producer : Side
        last : int
            The time until which it is stored in this placement, unless it is stored forever.

        Returns
        -------
        int
            The number of copies; 0 for a value that is stored regardless of its readers, or that
            shares memory with another value.
        """
        g, (produced, variable) = self.g, producer
        maker = g.producer[v][0]
        node = g.nodes[maker]
        if v in self.donated or self._aliases(maker) or (node.kind == "param" and not g.public):
            return 0
        first = self.net.begins[maker]
        if node.kind == "param":
            first, last = 0, self.net.begins[-1] - 1
        elif maker in self.net.callees:
            first = self.net.begins[maker + 1] - 1
        size = self._bytes(matrix, produced)
        spans = list(self.spans.of(v, first, last))
        for often, begin, end in spans:
            if often:
                self._hold((variable,), self._times(size, often), begin, end)
        return 0 if node.kind == "param" else spans[0][0]

    def _aliases(self, k: int) -> bool:
        """Return whether a node's result shares its operand's memory."""
        node = self.g.nodes[k]
        if node.rule is None:
            return False
        return node.rule.op in VIEWS or in_place(self.g, node)

    def _copies(self, matrix: CostMatrix, producer: Side, reader: Side) -> Bytes:
        """Return the bytes of a value after resharding for a reader; 0 where none is needed."""
        produced, needs = producer[0], reader[0]
        key = ("copies", id(matrix), produced, needs)

        def make() -> Bytes:
            same = np.array([[x == y for y in needs] for x in produced])
            return np.where(same, 0, self._bytes(matrix, needs)[None])

        return once(self.shared.sizes, key, make)

    def _left(self, matrix: CostMatrix, producer: Side, reader: Side, exclusive: bool) -> Bytes:
        """Return the bytes that wait for the last of several readers.

        A reader that slices what was produced does so when it reads. What is sent for it has been
        sent for others already, and the produced value is freed if no other reader needs it
        (``exclusive``).
        """
        produced, needs = producer[0], reader[0]
        key = ("left", id(matrix), produced, needs, exclusive)

        def make() -> Bytes:
            sent = matrix.local[np.ix_(matrix.rows(produced), matrix.rows(needs))] >= INFINITE
            before, after = self._bytes(matrix, produced)[:, None], self._bytes(matrix, needs)[None]
            least = before if exclusive else np.zeros_like(before)
            return np.where(sent, np.maximum(least, after), least)

        return once(self.shared.sizes, key, make)

    def _bytes(self, matrix: CostMatrix, layouts: tuple[Labels, ...]) -> Bytes:
        key = ("bytes", id(matrix), layouts)
        return once(self.shared.sizes, key, lambda: matrix.local_bytes[matrix.rows(layouts)])

    def _times(self, size: Bytes, often: int) -> Bytes:
        if often == 1:
            return size
        key = ("times", id(size), often)
        return once(self.shared.sizes, key, lambda: often * size)

    def _hold(self, scope: tuple[int, ...], size: Bytes, first: int, last: int) -> None:
        """Record a non-empty live range; variables of a single state are left out of its scope."""
        is_single = len(scope) == 1
        size = size[tuple([slice(None) if u >= 0 else 0 for u in scope])]
        scope = tuple([u for u in scope if u >= 0])
        if len(scope) == 2 and scope[0] == scope[1]:
            scope, size = scope[:1], size.diagonal()
        if first <= last and size.any():
            self.net.holdings.append(LiveRange(scope, size, first, last, is_single))
