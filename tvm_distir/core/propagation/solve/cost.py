# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes costs of placements as integers, so that sums are exact in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tvm_distir.core.collectives.volume import sent_share
from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.ops.factor import Factor
from tvm_distir.core.solver.problem import INFINITE

HEADROOM_BITS = 46
"""Bits to which the cost of an op is scaled, so that sums over a model stay finite."""


@dataclass(frozen=True)
class Costs:
    """Cost weights in 1/1024 of a wire byte.

    Attributes
    ----------
    wire : int
        The cost of a byte that a device sends (ring estimate).
    memory : int
        The cost of a byte that an op reads or writes: a sixteenth of a wire byte.
    flop : int
        The cost of a floating point operation: 1/256 of a wire byte.
    launch : int
        The cost of launching a collective: 64 wire bytes.
    slice : int
        Replicated to sharded: local, so a tie-break only.
    partial : int
        Replicated to partial sum: local as well.
    hold : int
        The cost of a byte of a free parameter of a public function: it shards the parameter where
        nothing else decides.
    keep : int
        The cost of a byte of every result, and of every copy in another placement, that a device
        stores; this is the price of memory, which a bound on it raises.
    move : int
        Factor on converting an annotated value away from where the plan put it.
    clone : int
        The cost of a specialisation of a private function beyond the first; with 0 specialising is
        free and calls are never made to share a specialisation.
    shift : int
        Right shift of all costs but the tie-breaks: coarser units for huge models.
    links : tuple of (int, int)
        ``wire`` and ``launch`` of each mesh axis; empty where they are those of all.
    """

    wire: int = 1024
    memory: int = 64
    flop: int = 4
    launch: int = 1 << 16
    slice: int = 1
    partial: int = 16
    hold: int = 1
    keep: int = 0
    move: int = 2
    clone: int = 0
    shift: int = 0

    links: tuple[tuple[int, int], ...] = ()

    def along(self, axis: int) -> Costs:
        """Return the weights along the axis of a number."""
        if not self.links:
            return self
        sent, launch = self.links[axis]
        return replace(self, wire=sent, launch=launch, links=())

    def work(self, flops: int, moved_bytes: int, kept_bytes: int = 0) -> int:
        """Return the cost of a device's arithmetic, memory traffic and storage."""
        return self.flop * flops + self.memory * moved_bytes + self.keep * kept_bytes

    def sending(self, sent_bytes: int, collectives: int) -> int:
        """Return the cost of the bytes a device sends, in a number of collectives."""
        return self.wire * sent_bytes + self.launch * collectives

    def scaled(self, cost: int) -> int:
        """Scale a cost to the units of ``shift``; a cost that is not zero stays so."""
        return max(cost >> self.shift, 1) if cost > 0 else 0

    def for_ops(self, flops: int, moved_bytes: int) -> Costs:
        """Return the same weights, scaled for a model with this largest op."""
        each_byte = self.memory + self.hold + 2 * self.keep + 4 * self.wire
        largest = self.flop * flops + each_byte * moved_bytes
        return replace(self, shift=max(0, largest.bit_length() - HEADROOM_BITS))


Step = tuple[int, int]
Supply = tuple[int, tuple[Step, ...]]


def sent_inside(factor: Factor, result_bytes: int, ranks: int, share: int = 1) -> tuple[int, int]:
    """Return bytes and collectives that a device sends inside an op that follows a factor.

    A halo's rows go once, also those that a sum over a spatial dim reads; a statistic is reduced
    in two all-reduces, the results of another reduction in a single
    all-reduce. Sums are reduced later, outside.

    Parameters
    ----------
    factor : Factor
    result_bytes : int
        The bytes of all results, local to the other axes.
    ranks : int
        Devices along the axis.
    share : int
        Devices of other axes that split the op.
    """
    if factor.kind == "halo" or (factor.kind == "sum" and factor.comm_bytes):
        return factor.comm_bytes // share, 1
    if factor.kind == "stat":
        return sent_share("all_reduce", 2 * factor.comm_bytes // share, ranks), 2
    if factor.reduces and factor.kind != "sum":
        return sent_share("all_reduce", result_bytes, ranks), 1
    return 0, 0


def conversion_kind(have: int, want: int) -> str:
    """Return the op that turns a label along an axis into another; ``none`` between equals.

    A shard becomes a partial sum by ``all_gather`` too: the full value is then kept by a single
    device only, which costs nothing.
    """
    if have == want:
        return "none"
    if have == R:
        return "local_slice" if want >= 0 else "partial"
    if have == P:
        return "all_reduce" if want == R else "reduce_scatter"
    return "all_to_all" if want >= 0 else "all_gather"


class Conversions:
    """Cheapest label conversions along an axis, memoised."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._along: dict[int, Conversions] = {}
        self._supply: dict[tuple[int, frozenset[int], int, int, bool], Supply] = {}

    def along(self, axis: int) -> Conversions:
        """Return the conversions at the costs of the axis of a number."""
        if not self.costs.links:
            return self
        if axis not in self._along:
            self._along[axis] = Conversions(self.costs.along(axis))
        return self._along[axis]

    def cost(
        self, have: int, want: int, size_bytes: int, ranks: int, stationary: bool = False
    ) -> int:
        """Return the cost of turning label ``have`` of a value into label ``want``.

        Parameters
        ----------
        have, want : int
            Labels along the axis.
        size_bytes : int
            Bytes of the value whole along the axis, local to the others.
        ranks : int
            Devices along the axis.
        stationary : bool
            The value may not be communicated (a stationary parameter).

        Notes
        -----
        Ring formulae: :func:`tvm_distir.core.collectives.volume.sent_share`.
        """
        if have == want:
            return 0
        c = self.costs
        local_cost = c.keep * (size_bytes // ranks if want >= 0 else size_bytes)
        if have == R:
            return (c.slice if want >= 0 else c.partial) + c.scaled(local_cost)
        if stationary:
            return INFINITE
        sent = sent_share(conversion_kind(have, want), c.wire * size_bytes, ranks)
        step_cost = c.scaled(sent + c.launch + local_cost)
        return step_cost + c.partial if want == P else step_cost

    def supply(
        self,
        have: int,
        needs: frozenset[int],
        size_bytes: int,
        ranks: int,
        stationary: bool = False,
    ) -> Supply:
        """Return the cheapest way to store all labels ``needs``, from ``have``: (cost, steps)."""
        key = (have, needs, size_bytes, ranks, stationary)
        hit = self._supply.get(key)
        if hit is None:
            hit = self._supply[key] = self._cheapest(
                have, sorted(needs - {have}), size_bytes, ranks, stationary
            )
        return hit

    def _cheapest(
        self, have: int, todo: list[int], size_bytes: int, ranks: int, stationary: bool
    ) -> Supply:
        best: Supply | None = None
        passes = len(todo) > 1 and R not in todo and have != R
        detours: list[tuple[int, ...]] = [(), (R,)] if passes else [()]
        for detour in detours:
            orders = itertools.permutations(todo) if len(todo) < 4 else iter([tuple(todo)])
            for order in orders:
                layouts, cost, steps = [have], 0, []
                for want in (*detour, *order):
                    step_cost, source = min(
                        (self.cost(layout, want, size_bytes, ranks, stationary), i)
                        for i, layout in enumerate(layouts)
                    )
                    cost = min(INFINITE, cost + step_cost)
                    steps.append((layouts[source], want))
                    layouts.append(want)
                if best is None or cost < best[0]:
                    best = cost, tuple(steps)
        return best if best is not None else (0, ())
