# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every sequence of collectives between placements, by trying them: the planner's reference.

Nothing of the planner is used. Whether a collective leads from one placement to another is found
by moving numbered elements; what an exchange costs, by counting those that a device lacks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.core.passes.redistribute_harness import together
from tvm_distir.core.ir.placement import P, R

EMPTY = -1
FREE = 1
LAUNCH = 64
EXCHANGE = 72


def combinations(items):
    for count in range(1, len(items) + 1):
        yield from itertools.combinations(items, count)


def chunk(x, dim, number, count):
    """Block ``number`` of ``count`` along a dim, what is missing EMPTY."""
    size = -(-x.shape[dim] // count)
    widths = [(0, 0)] * x.ndim
    widths[dim] = (0, size * count - x.shape[dim])
    x = np.pad(x, widths, constant_values=EMPTY)
    return np.take(x, range(number * size, (number + 1) * size), axis=dim)


class Search:
    """All moves between the placements of one tensor on one mesh."""

    def __init__(self, shape, mesh, partial=True):
        self.shape, self.mesh = shape, mesh
        self.full = np.arange(math.prod(shape)).reshape(shape)
        self.coords = list(itertools.product(*(range(n) for n in mesh)))
        words = [R, *range(len(shape))] + ([P] if partial else [])
        self.states = list(itertools.product(words, repeat=len(mesh)))
        self.held = {s: [self.shard(s, c) for c in self.coords] for s in self.states}
        self.edges = {s: list(self.moves(s)) for s in self.states}

    def shard(self, labels, coord):
        x = self.full
        for dim in range(x.ndim):
            for a, label in enumerate(labels):
                if label == dim:
                    x = chunk(x, dim, coord[a], self.mesh[a])
        return x

    def size(self, labels):
        return self.held[labels][0].size

    def parts(self, labels):
        return math.prod(n for n, label in zip(self.mesh, labels) if label >= 0)

    def group(self, coord, axes):
        """Positions of the devices that differ from one along some axes, and its place there."""
        ranges = [range(n) if a in axes else [c] for a, (n, c) in enumerate(zip(self.mesh, coord))]
        members = [self.coords.index(m) for m in itertools.product(*ranges)]
        return members, members.index(self.coords.index(coord))

    def same(self, labels, result):
        """Whether all devices hold their shards; what lies beyond the end may be anything."""
        for want, got in zip(self.held[labels], result):
            got = got[tuple(slice(0, n) for n in want.shape)]
            if got.shape != want.shape or not np.array_equal(got[want >= 0], want[want >= 0]):
                return False
        return True

    def moved(self, labels, axes, gather, split):
        out = []
        for coord in self.coords:
            x = self.held[labels][self.coords.index(coord)]
            if gather is not None:
                members, _ = self.group(coord, axes)
                rest = [a for a, label in enumerate(labels) if label == gather and a not in axes]
                keep = -(-self.shape[gather] // math.prod(self.mesh[a] for a in rest))
                parts = [self.held[labels][m] for m in members]
                x = together(parts, gather, [self.mesh[a] for a in axes], keep)
            for a in axes if split is not None else ():
                x = chunk(x, split, coord[a], self.mesh[a])
            out.append(x)
        return out

    def moves(self, labels):
        """(result, elements a device sends by the ring, price beside it, kind) of every step."""
        for axes in combinations(range(len(self.mesh))):
            k = math.prod(self.mesh[a] for a in axes)
            old = {labels[a] for a in axes}
            if len(old) > 1:
                continue
            old = old.pop()
            local = self.size(labels)
            if old == R and len(axes) == 1:
                yield self.changed(labels, axes, P), 0, FREE, "partial"
            if old == P:
                yield self.changed(labels, axes, R), 2 * local * (k - 1) / k, LAUNCH, "all_reduce"
            for dim in range(len(self.shape)):
                after = self.changed(labels, axes, dim)
                if old == dim:
                    continue
                if not self.same(after, self.cut(labels, axes, old, dim)):
                    if old == P:
                        yield after, self.missing(labels, after, k), EXCHANGE, "terms"
                    continue
                got = self.size(after)
                if old == R:
                    yield after, 0, FREE, "local_slice"
                elif old == P:
                    yield after, got * (k - 1), LAUNCH, "reduce_scatter"
                else:
                    rows = self.held[after][0].shape[old]
                    joined = k * self.held[labels][0].shape[old]
                    yield after, got // rows * joined * (k - 1) / k, LAUNCH, "all_to_all"
            if old >= 0:
                after = self.changed(labels, axes, R)
                if self.same(after, self.moved(labels, axes, old, None)):
                    yield after, local * (k - 1), LAUNCH, "all_gather"
        for after in self.states:
            if after != labels and all((x == P) == (y == P) for x, y in zip(labels, after)):
                yield after, self.lacking(labels, after), EXCHANGE, "exchange"

    def cut(self, labels, axes, old, dim):
        return self.moved(labels, axes, old if old >= 0 else None, dim)

    @staticmethod
    def changed(labels, axes, label):
        return tuple(label if a in axes else x for a, x in enumerate(labels))

    def lacking(self, before, after):
        worst = 0
        for have, want in zip(self.held[before], self.held[after]):
            worst = max(worst, len(set(want[want >= 0].tolist()) - set(have[have >= 0].tolist())))
        return worst

    def missing(self, before, after, count):
        """Terms that the worst-off device lacks of its new shard, of ``count`` per element."""
        worst = 0
        for have, want in zip(self.held[before], self.held[after]):
            expected = set(want[want >= 0].tolist())
            local = expected & set(have[have >= 0].tolist())
            worst = max(worst, count * len(expected) - len(local))
        return worst

    def cheapest(self, before, after, bound, price, itemsize):
        """Least cost of any sequence whose shards stay within ``bound`` times the larger end.

        ``price(kind, elements, fixed, axes)`` is the price of a step.
        """
        limit = bound * max(self.size(before), self.size(after)) * itemsize
        fewest = min(self.parts(before), self.parts(after))
        finish = [x != P for x in after]
        best, changed = {before: 0}, {before}
        while changed:
            waiting, changed = changed, set()
            for state in waiting:
                for move in self.edges[state]:
                    new = move[0]
                    # Padding may take an eighth more than the bound.
                    room = limit * 9 // 8 if self.parts(new) * bound >= fewest else limit
                    if new != after and self.size(new) * itemsize > room:
                        continue
                    # A sum that stays unfinished is kept; another one is not begun.
                    axes = [a for a, (x, y) in enumerate(zip(state, new)) if x != y]
                    if any((state[a] == P and not finish[a]) or (new[a] == P and finish[a])
                           for a in axes):  # fmt: skip
                        continue
                    total = best[state] + price(move, state)
                    if total < best.get(new, math.inf):
                        best[new] = total
                        changed.add(new)
        return best[after]
