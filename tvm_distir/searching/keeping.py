# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What devices keep of the values of a function, in which form, and how long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import Labels
from ..ops import VIEWS, nominal
from ..propagation.graph import Uses
from ..redistribution import PriceMatrix
from .arithmetic import in_place
from .flights import NO_FLIGHT, Spans
from .net import Assembly, Bytes, Holding, Side


class Keeping:
    """Notes in the net of a function what is kept of its values.

    Parameters
    ----------
    net : Assembly
        With all nodes.
    """

    def __init__(self, net: Assembly) -> None:
        self.g, self.shared, self.net = net.g, net.shared, net.net
        g, updates = net.g, net.shared.updates
        flight = net.shared.flight if g.public else NO_FLIGHT
        self._spans = Spans(g, net.shared.module.graphs, net.net.begins, flight)
        self._donated = {g.result_values[ret] for ret in (updates if g.public else ())}
        self._updating = self._updates()

    def keep(self, v: int, matrix: PriceMatrix, producer: Side, read: Side) -> None:
        """Note how long a value is kept: as it is given until it is read, then as it is read.

        Parameters, which stay, and what a stage keeps for other micro-batches, and of others like
        it on the rank, are kept as they are given, with what is read beside that.
        """
        g, (given, variable) = self.g, producer
        maker = g.producer[v][0]
        node = g.nodes[maker]
        begin, end = self._span(self._works(v))
        if v in self._donated or self._aliases(maker) or (node.kind == "param" and not g.public):
            self._copy(matrix, producer, read, (begin, end))
            return
        first, last = self.net.begins[maker], self.last(v)
        if node.kind == "param":
            first, last = 0, self.net.begins[-1] - 1
        elif maker in self.net.spliced:
            first = self.net.begins[maker + 1] - 1
        size = self._bytes(matrix, given)
        pieces = [piece for piece in self._spans.of(v, first, last) if piece[0]]
        if node.kind == "param" or pieces != [(1, first, last)]:
            for often, since, until in pieces:
                self._hold((variable,), self._times(size, often), since, until)
            whole = self._spans.copied(begin, end) if node.kind == "param" else (begin, end)
            self._copy(matrix, producer, read, whole)
            return
        self._hold((variable,), size, first, begin)
        self._copy(matrix, producer, read, (begin, begin))
        if last > begin:
            self._hold((read[1],), self._bytes(matrix, read[0]), begin + 1, last)

    def _copy(
        self,
        matrix: PriceMatrix,
        producer: Side,
        reader: Side,
        span: tuple[int, int],
    ) -> None:
        """Note how long a value is kept in another form than it is given in."""
        (given, variable), (needs, other) = producer, reader
        key = ("copies", id(matrix), given, needs)
        found = self.shared.sizes.get(key)
        if found is None:
            same = np.array([[x == y for y in needs] for x in given])
            found = self.shared.sizes[key] = np.where(same, 0, self._bytes(matrix, needs)[None])
        self._hold((variable, other), found, *span)

    def _span(self, uses: Uses) -> tuple[int, int]:
        """From the first of some uses of a value to the end of the last."""
        begins = self.net.begins
        return begins[min(k for k, _ in uses)], max(self._end(k, where) for k, where in uses)

    def _end(self, k: int, operands: Sequence[int]) -> int:
        """When a node has read operands: in a function that is called, what reads them last."""
        begins = self.net.begins
        if k in self.net.spliced:
            lasts = self.net.spliced[k][0].lasts
            return begins[k] + max(lasts[i] for i in operands)
        return begins[k + 1] - 1

    def last(self, v: int) -> int:
        """When a value, or another view of it, is read last."""
        found = [self._end(k, where) for k, where in self.g.uses[v]]
        for k, _ in self.g.uses[v]:
            if self._aliases(k):
                found.append(self.last(self.g.nodes[k].results[0]))
        return max(found, default=0)

    def _works(self, v: int) -> Uses:
        """Uses of a value; of a weight without those of its update, which has it as it is kept."""
        uses = self.g.uses[v]
        if self.g.nodes[self.g.producer[v][0]].kind != "param":
            return uses
        return [one for one in uses if one[0] not in self._updating] or uses

    def _updates(self) -> set[int]:
        """Nodes that make new weights or states, and those that only serve to, element by element.

        What reads a weight there has it as it is kept.
        """
        g, found = self.g, set[int]()
        for k in reversed(range(len(g.nodes))) if self._donated else ():
            node = g.nodes[k]
            made = [v for v in node.results if v not in self._donated]
            if node.results and all(node.kind == "op" and self._serves(v, found) for v in made):
                found.add(k)
        return found

    def _serves(self, v: int, updates: set[int]) -> bool:
        """Whether a value only serves updates, which make values of its shape."""
        g, readers = self.g, [k for k, _ in self.g.uses[v]]
        made = [g.values[g.nodes[k].results[0]].shape for k in readers if k in updates]
        return 0 < len(made) == len(readers) and all(
            list(map(nominal, shape)) == list(map(nominal, g.values[v].shape)) for shape in made
        )

    def _aliases(self, k: int) -> bool:
        """Whether a node's result is its operand's memory."""
        node = self.g.nodes[k]
        if node.rule is None:
            return False
        return node.rule.op in VIEWS or in_place(self.g, node)

    def _bytes(self, matrix: PriceMatrix, forms: tuple[Labels, ...]) -> Bytes:
        key = ("bytes", id(matrix), forms)
        found = self.shared.sizes.get(key)
        if found is None:
            at = {form: i for i, form in enumerate(matrix.placements)}
            found = self.shared.sizes[key] = matrix.local_bytes[[at[form] for form in forms]]
        return found

    def _times(self, size: Bytes, often: int) -> Bytes:
        if often == 1:
            return size
        key = ("times", id(size), often)
        found = self.shared.sizes.get(key)
        if found is None:
            found = self.shared.sizes[key] = often * size
        return found

    def _hold(self, scope: tuple[int, ...], size: Bytes, first: int, last: int) -> None:
        """Note a holding; variables of a single state are left out of its scope."""
        open_axes = tuple([slice(None) if u >= 0 else 0 for u in scope])
        size = size[open_axes]
        scope = tuple([u for u in scope if u >= 0])
        if len(scope) == 2 and scope[0] == scope[1]:
            scope, size = scope[:1], size.diagonal()
        if size.any():
            self.net.holdings.append(Holding(scope, size, first, last))
