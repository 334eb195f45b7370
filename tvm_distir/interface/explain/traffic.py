# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute each device's traffic and work from a decision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_distir.core.collectives import sent_share
from tvm_distir.core.ir import ceil_div
from tvm_distir.core.ir.operators import COLLECTIVES
from tvm_distir.core.propagation import Decision, Instance, Layout, conversion_kind, sent_inside
from tvm_distir.support import Steps, unrolled

CollectiveKind = tuple[str, str]
"""Collective (``all_gather``, ``halo``, ``send``, ...) and the mesh axis it runs along."""


@dataclass
class ExecutionTraffic:
    """Totals of an execution per device, by ring formulas.

    Attributes
    ----------
    counts : Counter of Kind
        Collectives.
    wire_bytes : Counter of Kind
        Bytes a device sends in them.
    flops : int
    memory_bytes : int
        Read and written by ops.
    held_bytes : int
        Bytes of parameters, which are resident on a device.
    """

    counts: Counter[CollectiveKind] = field(default_factory=Counter)
    wire_bytes: Counter[CollectiveKind] = field(default_factory=Counter)
    flops: int = 0
    memory_bytes: int = 0
    held_bytes: int = 0

    def add(self, kind: CollectiveKind, size_bytes: int, count: int = 1) -> None:
        """Count collectives that send ``size_bytes`` in all."""
        self.counts[kind] += count
        self.wire_bytes[kind] += size_bytes

    def merge(self, other: ExecutionTraffic) -> None:
        """Add the traffic and work of another part of the program."""
        self.counts.update(other.counts)
        self.wire_bytes.update(other.wire_bytes)
        self.flops += other.flops
        self.memory_bytes += other.memory_bytes
        self.held_bytes += other.held_bytes

    @property
    def total_sent_bytes(self) -> int:
        """Return the total bytes that a device sends."""
        return sum(self.wire_bytes.values())


def traffic_cost_bytes(traffic: ExecutionTraffic, decision: Decision) -> float:
    """Return the cost of the traffic and work in propagation, in bytes on the wire."""
    costs = decision.conversions.costs
    along = {axis.name: costs.along(a) for a, axis in enumerate(decision.axes)}
    weight = costs.work(traffic.flops, traffic.memory_bytes) + sum(
        along.get(kind[1], costs).sending(traffic.wire_bytes[kind], count)
        for kind, count in traffic.counts.items()
    )
    return weight / costs.wire


def conversion(have: int, want: int, size_bytes: int, ranks: int) -> tuple[str, int]:
    """Return the collective that turns a label into another, and the bytes that a device sends.

    Parameters
    ----------
    have, want : int
        Labels along a mesh axis.
    size_bytes : int
        Bytes of the value whole along the axis, local to the others.
    ranks : int
        Devices along the axis.

    """
    kind = conversion_kind(have, want)
    return kind, sent_share(kind, size_bytes, ranks) if kind in COLLECTIVES else 0


def conversions(
    decision: Decision, inst: Instance, value: int, have: Layout, want: Layout
) -> list[tuple[CollectiveKind, int]]:
    """Return the collectives of a resharding by axis, those without traffic included."""
    mesh = inst.graph.values[value].mesh
    result = []
    for a, x, y in zip(decision.mesh_axes(mesh), have, want):
        if x != y:
            axis = decision.axes[a]
            name, sent = conversion(x, y, decision.sizes(inst, a)[value], axis.size)
            result.append(((name, axis.name), sent))
    return result


def moves_of(decision: Decision, inst: Instance, value: int) -> list[tuple[Layout, Layout]]:
    """Return the reshardings of a value as (from, to), the producer's reduction first."""
    route = decision.route(inst, value)
    produced = decision.value_layout(inst, value)
    moves = []
    if route.root != produced and inst.graph.uses[value]:
        moves.append((produced, route.root))
    moves.extend((route.source(labels), labels) for labels in route.layouts if labels != route.root)
    return moves


def traffic_of(decision: Decision) -> ExecutionTraffic:
    """Return totals over all public functions, each executed once."""
    totals: dict[int, ExecutionTraffic] = {}
    for inst in _callees_first(decision):
        total = _own_traffic(decision, inst)
        for _, kid in sorted(inst.kids.items()):
            total.merge(totals[kid.number])
        totals[inst.number] = total
    total = ExecutionTraffic()
    for _, inst in sorted(decision.entries.items()):
        total.merge(totals[inst.number])
        total.held_bytes += _held_bytes(decision, inst)
    return total


def _held_bytes(decision: Decision, inst: Instance) -> int:
    """Return the bytes of a device's parts of all parameters, one device of each mesh."""
    g, total = inst.graph, 0
    for k in g.params:
        v = g.nodes[k].results[0]
        size = g.values[v].size_bytes
        for a, label in zip(decision.mesh_axes(g.values[v].mesh), decision.value_layout(inst, v)):
            size = ceil_div(size, decision.axes[a].size) if label >= 0 else size
        total += int(size)
    return total


def _callees_first(decision: Decision) -> list[Instance]:
    order: dict[int, Instance] = {}

    def visit(inst: Instance) -> Steps[None]:
        if inst.number not in order:
            for _, kid in sorted(inst.kids.items()):
                yield visit(kid)
            order[inst.number] = inst

    for _, entry in sorted(decision.entries.items()):
        unrolled(visit(entry))
    return list(order.values())


def _own_traffic(decision: Decision, inst: Instance) -> ExecutionTraffic:
    total, g = ExecutionTraffic(), inst.graph
    for v in range(len(g.values)):
        for have, want in moves_of(decision, inst, v):
            for kind, sent in conversions(decision, inst, v, have, want):
                if sent:
                    total.add(kind, sent)
    for k, node in enumerate(g.nodes):
        if node.kind == "op" and node.rule is not None:
            _add_op(decision, inst, k, total)
        elif node.kind == "move":
            target = node.results[0]
            mesh = g.values[target].mesh
            labels = decision.value_layout(inst, target)
            axes = [decision.axes[a] for a in decision.mesh_axes(mesh)]
            parts = math.prod(axis.size for axis, x in zip(axes, labels) if x >= 0)
            total.add(("transfer", f"to mesh {mesh}"), -(-g.values[target].size_bytes // parts))
    return total


def _add_op(decision: Decision, inst: Instance, k: int, total: ExecutionTraffic) -> None:
    """Add the work of an op, and its internal traffic (halos, statistics, maxima)."""
    node = inst.graph.nodes[k]
    rule = node.rule
    if rule is None:
        return
    axes = decision.mesh_axes(node.mesh)
    picked = [inst.choice[a][k] for a in axes]
    ranks = [decision.axes[a].size for a in axes]
    splits = [n if alt.factor is not None else 1 for n, alt in zip(ranks, picked)]
    total.flops += rule.flops // math.prod(splits)
    sizes = [
        size // _cut(i, [alt.needs + alt.gives for alt in picked], ranks)
        for i, size in enumerate(rule.in_bytes + rule.out_bytes)
    ]
    total.memory_bytes += rule.moved_bytes(sizes)
    for a, alt, n, mine in zip(axes, picked, ranks, splits):
        if alt.factor is None:
            continue
        factor, name = rule.factors[alt.factor], decision.axes[a].name
        share = math.prod(splits) // mine
        sent, launches = sent_inside(factor, sum(sizes[len(rule.in_bytes) :]), n, share)
        if launches:
            collective = "halo" if factor.kind in ("halo", "sum") else "all_reduce"
            total.add((collective, name), sent, launches)


def _cut(i: int, placements: Sequence[Sequence[int]], ranks: Sequence[int]) -> int:
    """Return the number of shards of operand or result ``i``."""
    return math.prod(n for labels, n in zip(placements, ranks) if labels[i] >= 0)
