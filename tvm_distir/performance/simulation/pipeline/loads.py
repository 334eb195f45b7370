# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the load of units and messages of a pipelined step on shared links.

Links are, in either direction: a node's adapters, a device's part of them, and its port inside the
node; of the devices of a rank, which do the same, a single device stands for all. A load is the
share of the link's time that is taken at full speed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS, System, pair_up
from tvm_distir.performance.event_loop.activities import ENDLESS, Loads
from tvm_distir.performance.event_loop.function_summaries import NEVER, STREAM_PORTS, Ints
from tvm_distir.performance.program.pipeline_program import Edge
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.op_costs import COMM, GRADIENTS, OpRow, overlap_slowdown
from tvm_distir.support import memoized

from .rank_arrays import StageSteps
from .run_kinds import RunKind

OUT, IN = "out", "in"
Shares = Mapping[Hashable, float]
Piece = tuple[float, Shares]
"""End, behind the beginning; load by link."""


class StageLoads:
    """Loads of all units and messages.

    A unit of a micro-batch is a piece: what its collectives send, on average. What is done once
    (sums of gradients) is looked at as its collectives come and go.

    Parameters
    ----------
    program : Program
    system : System
    steps : StageSteps
    """

    def __init__(self, program: Program, system: System, steps: StageSteps) -> None:
        self.program, self.system = program, system
        self.steps, self.kinds, self.costs = steps, steps.kinds, steps.costs
        self._slower = overlap_slowdown(system)
        self._cache: dict[tuple[int, str, int, bool], list[Piece]] = {}

    def loads(self) -> Loads | None:
        """Return the arrays; None where nothing can meet."""
        idle: list[Piece] = [(ENDLESS, {})]
        runs, rank_of = self.steps.runs, self.steps.rank_of
        units = [
            self._unit(runs[step]) if step in runs else idle
            for step in range(len(self.steps.units.steps))
        ]
        ends = [[rank_of[e.source[0]], rank_of[e.target[0]]] for e in self.steps.edges]
        duration = self.steps.edge_ps
        flows = [
            self._message(edge, first, second, time)
            for edge, (first, second), time in zip(self.steps.edges, ends, duration, strict=True)
        ]
        rest = len(self.steps.units.edges) - len(flows)  # copies to the host meet nothing
        classes = [*units, *flows, *[idle] * rest]
        owners: list[Hashable] = [
            *(rank_of[runs[step].stage] if step in runs else -1 for step in range(len(units))),
            *((OUT, link[0]) for link in ends),
            *[-1] * rest,
        ]
        slows = np.full((len(classes), 2), -1, np.int64)
        if ends:
            slows[len(units) : len(units) + len(ends)] = ends
        links = _shared(classes, owners)
        slowed = self._slower > 1.0
        if not links and not slowed:
            return None
        return _arrays(classes, links, slows, 1.0 / self._slower, slowed)

    def _unit(self, kind: RunKind) -> list[Piece]:
        rank = self.steps.rank_of[kind.stage]
        key = rank, kind.name, kind.unit.number, kind.once
        if key not in self._cache:
            self._cache[key] = self._pieces(rank, kind)
        return self._cache[key]

    def _pieces(self, rank: int, kind: RunKind) -> list[Piece]:
        """Return the pieces of a unit that begins when all that it reads is there."""
        maps, number, lowering = self.kinds.maps, kind.unit.number, self.kinds.lowering
        used: dict[Hashable, float] = {}
        for row in np.flatnonzero(lowering.counts(kind.unit.function)).tolist():
            count = int(lowering.counts(kind.unit.function)[row])
            if lowering.rows[row].stream == COMM:
                for link, duration in self._collective(rank, lowering.rows[row]).items():
                    used[link] = used.get(link, 0.0) + count * duration
        times = np.full((1, STREAM_PORTS + len(maps.ports(number))), NEVER, np.int64)
        times[0, :STREAM_PORTS] = 0
        start = maps.expand(number, times)[0]
        end = start + lowering.durations(kind.unit.function)
        length = int(end.max(initial=0))
        if not used or not length:
            return [(ENDLESS, {})]
        talks = lowering.streams(kind.unit.function) == COMM
        if kind.once:
            return list(self._parts(start[talks], end[talks], used))
        return [(ENDLESS, _shares(used, length))]

    def _parts(self, start: Ints, end: Ints, used: Shares) -> Iterable[Piece]:
        """Yield the pieces with and without collectives."""
        edges = np.unique(np.concatenate(([0], start, end)))
        talks = _covered(edges, start, end)
        communicating = float(np.diff(edges)[talks].sum())
        shares = _shares(used, communicating) if communicating else {}
        for position in np.flatnonzero(np.diff(talks, append=~talks[-1:])).tolist():
            yield float(edges[position + 1]), shares if talks[position] else {}
        yield ENDLESS, {}

    def _message(self, edge: Edge, source: int, target: int, duration: int) -> list[Piece]:
        """Return a latency, and bytes."""
        meshes, near = self.program.meshes, self.system.intra_node
        ids = meshes[source].device_ids, meshes[target].device_ids
        size = edge.part_bytes[0]
        layout = self.costs.pair_layout(source, target)
        lead = min(self.costs.clocks[source].collective_ps("send", 0, layout), duration)
        used: dict[Hashable, float] = {}
        crossing: dict[tuple[str, int, int], int] = {}
        for pair in pair_up(*ids):
            nodes = [device // near.devices_per_node for device in pair]
            if nodes[0] == nodes[1]:
                spent_ps = _ps(size, near.bandwidth_GBps)
                used[OUT, "port", source] = used[IN, "port", target] = spent_ps
                continue
            for side, node, rank, device in zip(
                (OUT, IN), nodes, (source, target), pair, strict=True
            ):
                key = side, node
                used[key] = used.get(key, 0.0) + self._pool_ps(size, False)
                crossing[side, rank, device] = crossing.get((side, rank, device), 0) + 1
        for (side, rank, _), count in crossing.items():
            link = side, "own", rank
            used[link] = max(used.get(link, 0.0), count * self._own_ps(size, False))
        shares = _shares(used, duration - lead)
        before: list[Piece] = [(float(lead), {})] if lead else []
        return [*before, (ENDLESS, shares)]

    def _collective(self, rank: int, row: OpRow) -> Shares:
        """Return the picoseconds of each link's time that a collective of a rank takes."""
        op, near = row.op, self.system.intra_node
        gradients = op.kernel_class == GRADIENTS
        result: dict[Hashable, float] = {}
        port_ps = _ps(row.wire_bytes, near.bandwidth_GBps)
        for side in (OUT, IN):
            result[side, "port", rank] = port_ps
        groups, most = self._crossing(rank, op.mesh_axes)
        size = row.wire_bytes
        for node, count in groups.items():
            if op.collective == "all_to_all":
                outside = most * (op.group_size - most) / op.group_size
                size = round(op.payload_bytes * outside)
            for side in (OUT, IN):
                result[side, node] = count * self._pool_ps(size, gradients)
                result[side, "own", rank] = self._own_ps(size, gradients) / most
        return {link: duration for link, duration in result.items() if duration > 0}

    @memoized
    def _crossing(self, rank: int, axes: tuple[int, ...]) -> tuple[dict[int, int], int]:
        """Return the groups that leave each node, and their most members on a node."""
        per_node = self.system.intra_node.devices_per_node
        nodes = self.program.meshes[rank].group_table(axes) // per_node
        nodes = nodes[(nodes != nodes[:, :1]).any(axis=1)]
        group = np.repeat(np.arange(len(nodes)), nodes.shape[1])
        pairs, members = np.unique(np.stack((group, nodes.ravel())), axis=1, return_counts=True)
        known, counts = np.unique(pairs[1], return_counts=True)
        groups = dict(zip(known.tolist(), counts.tolist(), strict=True))
        return groups, int(members.max(initial=1))

    def _pool_ps(self, size: int, gradients: bool) -> float:
        """Return the time that bytes take all adapters of a node."""
        net = self.system.inter_node
        return _ps(size, net.nics_per_node * net.bandwidth_per_nic_GBps * self._reached(gradients))

    def _own_ps(self, size: int, gradients: bool) -> float:
        """Return the time that bytes take the adapters that a device drives."""
        net = self.system.inter_node
        nics = math.ceil(net.nics_per_node / self.system.intra_node.devices_per_node)
        return _ps(size, nics * net.bandwidth_per_nic_GBps * self._reached(gradients))

    def _reached(self, gradients: bool) -> float:
        if not self.system.constants:
            return 1.0
        return self.system.constant("nic_efficiency_gradients" if gradients else "nic_efficiency")


def _ps(size: float, gigabytes_per_s: float) -> float:
    return size / (gigabytes_per_s * 1e9) * PICOSECONDS


def _shares(used: Shares, length: float) -> Shares:
    """Return the shares of links' time: none takes more than all of it."""
    if length <= 0:
        return {}
    return {link: min(duration / length, 1.0) for link, duration in used.items() if duration > 0}


def _covered(edges: Ints, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """Return between which neighbouring edges something is in flight, (edges - 1,)."""
    change = np.zeros(edges.size, np.int64)
    np.add.at(change, np.searchsorted(edges, start), 1)
    np.add.at(change, np.searchsorted(edges, end), -1)
    covered: npt.NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
    return covered


def _shared(classes: list[list[Piece]], owners: list[Hashable]) -> dict[Hashable, int]:
    """Return the links that may be full, by number; links with equal loads share a number.

    An owner, a rank or its messages, does a single thing at a time.
    """
    most: dict[Hashable, dict[Hashable, float]] = {}
    columns: dict[Hashable, list[tuple[int, int, float]]] = {}
    for number, (pieces, owner) in enumerate(zip(classes, owners, strict=True)):
        for position, (_, shares) in enumerate(pieces):
            for link, load in shares.items():
                by_owner = most.setdefault(link, {})
                by_owner[owner] = max(by_owner.get(owner, 0.0), load)
                columns.setdefault(link, []).append((number, position, load))
    numbers: dict[Hashable, int] = {}
    result: dict[Hashable, int] = {}
    for link, by_owner in most.items():
        if sum(by_owner.values()) > 1.0 + 1e-9:
            link_columns = tuple(columns[link])
            if link_columns not in numbers:
                numbers[link_columns] = result[link] = len(numbers)
    return result


def _arrays(
    classes: list[list[Piece]],
    links: Mapping[Hashable, int],
    slows: Ints,
    beside: float,
    slowed: bool,
) -> Loads:
    """Return the loads on shared links; links that are never full mark slowed units."""
    capacity = np.ones(len(links) + slowed)
    if slowed:
        capacity[-1] = np.inf
    pieces = [piece for pieces_of_class in classes for piece in pieces_of_class]
    loads: list[dict[int, float]] = []
    for _, shares in pieces:
        piece_loads = {links[link]: load for link, load in shares.items() if link in links}
        if slowed and shares:
            piece_loads[len(links)] = 1e-9
        loads.append(dict(sorted(piece_loads.items())))
    return Loads(
        capacity,
        np.cumsum([0, *map(len, classes)]).astype(np.int64),
        np.array([end for end, _ in pieces], np.float64),
        np.ones(len(pieces), np.float64),
        np.cumsum([0, *map(len, loads)]).astype(np.int64),
        np.array([link for piece_loads in loads for link in piece_loads], np.int64),
        np.array([load for piece_loads in loads for load in piece_loads.values()], np.float64),
        slows,
        beside,
    )
