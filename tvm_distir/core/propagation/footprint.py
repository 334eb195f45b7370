# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measures the bytes and operations of each device under a sharding assignment along an axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvm_distir.core.ir.placement import R, ceil_div
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.solve.cost import Conversions, Costs, sent_inside
from tvm_distir.core.propagation.solve.strategies import OpStrategy

from .decision import Instance

BYTE = 1024
"""Cost of a wire byte while measuring."""

Counts = tuple[int, int, int]
"""FLOPs, wire bytes, collectives."""


@dataclass(frozen=True)
class DeviceCost:
    """Bytes stored, FLOPs and bytes sent by a device in a call of the public functions.

    Attributes
    ----------
    param_bytes : int
        The bytes of the weights.
    flops : int
    sent_bytes : int
        Sent, by ring estimates.
    collectives : int
    """

    param_bytes: int
    flops: int
    sent_bytes: int
    collectives: int = 0


class CostMeter:
    """Measures decisions along an axis of ``ranks`` devices."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._conversions = Conversions(Costs(wire=BYTE, launch=0, slice=0, partial=0))

    def counts(self, instances: Iterable[Instance]) -> Counts:
        """Return FLOPs, wire bytes and collectives of instances of a decision together."""
        done: dict[int, Counts] = {}
        parts = [self._instance(inst, done) for inst in instances]
        flops, total_sent, count = (sum(column) for column in zip(*parts, strict=True))
        return flops, total_sent, count

    def _instance(self, inst: Instance, done: dict[int, Counts]) -> Counts:
        """Return the counts of an instance and of all its callees."""
        if inst.number in done:
            return done[inst.number]
        g, choice = inst.graph, inst.choice[0]
        flops, total_sent, count = 0, 0, 0
        for k, node in enumerate(g.nodes):
            if node.kind == "call":
                inner = self._instance(inst.kids[k], done)
                flops, total_sent, count = flops + inner[0], total_sent + inner[1], count + inner[2]
            elif node.rule is not None:
                split = self.ranks if choice[k].factor is not None else 1
                flops += ceil_div(node.rule.flops, split)
                sent = self._inside(node.rule, choice[k])
                total_sent, count = total_sent + sent, count + (sent > 0)
        for v, (k, j) in enumerate(g.producer):
            have = choice[k].gives[j]
            if have == R:
                continue
            needs = {choice[kc].needs[i] for kc, positions in g.uses[v] for i in positions}
            if needs - {have}:
                size = g.values[v].size_bytes
                cost, steps = self._conversions.supply(have, frozenset(needs), size, self.ranks)
                total_sent += cost // BYTE
                count += sum(1 for source, _ in steps if source != R)
        done[inst.number] = flops, total_sent, count
        return done[inst.number]

    def _inside(self, rule: Rule, alternative: OpStrategy) -> int:
        """Return the bytes sent within an op: halos, statistics, reductions other than sums."""
        if alternative.factor is None:
            return 0
        return sent_inside(rule.factors[alternative.factor], sum(rule.out_bytes), self.ranks)[0]
