# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Traffic by tier of the network: inside of nodes, between them, and to the host.

A collective whose groups lie on several nodes moves data over two tiers: its devices send over the
links of their node, and each node over its adapters. What leaves a node is that of all groups that
share its adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tvm_distir.core import FETCH, STORE, GroupTopology, System, pair_up, wire_bytes
from tvm_distir.performance import CollectiveTotal, Program

from . import units
from .model import Analysis, LinkUse
from .text_table import table

LINK_HEAD = ("link", "what", "moved", "time", "rate", "capacity")


class _Moved(NamedTuple):
    """The bytes of a collective over a tier, and the rate of its links."""

    total: CollectiveTotal
    bytes: int
    rate_bytes_per_s: float


def links_of(
    collectives: Iterable[CollectiveTotal], program: Program, system: System
) -> tuple[LinkUse, ...]:
    """Return the use of each tier by the mesh that sends most over it."""
    near, far = system.intra_node, system.inter_node
    tiers = {f"inside a node ({near.name})": "device", f"between nodes ({far.name})": "node"}
    inside, between = tiers
    host = ""
    if system.host_link is not None:
        host = f"to the host and back ({system.host_link.name})"
        tiers[host] = "device"
    found: dict[tuple[str, str], list[_Moved]] = {}
    for collective in collectives:
        if collective.kind in (STORE, FETCH):
            moved = {host: _at_host(collective, system)}
        else:
            moved = dict(
                zip((inside, between), _on_network(collective, program, system), strict=True)
            )
        for tier, part in moved.items():
            if part.bytes:
                found.setdefault((tier, collective.mesh), []).append(part)
    uses = []
    for tier, per in tiers.items():
        own = [some for (name, _), some in found.items() if name == tier]
        most: Sequence[_Moved] = max(own, key=_bytes, default=())
        if most:
            kinds = sorted({f"{part.total.kind} over {part.total.mesh_axis}" for part in most})
            time_s = sum(part.total.time_s for part in most)
            rate = max(part.rate_bytes_per_s for part in most)
            uses.append(LinkUse(tier, per, tuple(kinds), _bytes(most), time_s, rate))
    return tuple(uses)


def _bytes(some: Sequence[_Moved]) -> int:
    return sum(part.bytes for part in some)


def _at_host(one: CollectiveTotal, system: System) -> _Moved:
    """A copy in one direction, which takes its own time."""
    link = system.host_link
    rate = link.bandwidth_GBps * 1e9 if link is not None else 0.0
    return _Moved(one, one.wire_bytes_per_device, rate)


def _on_network(one: CollectiveTotal, program: Program, system: System) -> tuple[_Moved, _Moved]:
    """Return the bytes that devices send inside nodes and between nodes.

    A ring enters and leaves every node once. Sums over several nodes by systems with constants are
    taken to be hierarchical, which sends least over either tier. The bandwidth inside of nodes is
    what collectives reach by NCCL's curve; ``collective_factor`` times it is what steps reach.
    """
    near, far = system.intra_node, system.inter_node
    layout = system.layout(_groups(one, program))
    where = max(
        layout.kinds,
        key=lambda kind: (kind.nodes, kind.per_node, kind.ranks),
        default=GroupTopology(1, 1, 1),
    )
    sent, left = _parts(one, where, bool(system.constants))
    factor = min(1.0, system.constant("collective_factor") if system.constants else 1.0)
    adapters = min(
        far.nics_per_node,
        math.ceil(far.nics_per_node / near.devices_per_node) * where.per_node * layout.sharing,
    )
    return (
        _Moved(one, sent, near.bandwidth_GBps * 1e9 / factor),
        _Moved(one, layout.sharing * left, adapters * far.bandwidth_per_nic_GBps * 1e9),
    )


def _parts(one: CollectiveTotal, where: GroupTopology, hierarchical: bool) -> tuple[int, int]:
    """Bytes that a device of a group sends inside of its node, and that the group sends out."""
    payload, wire = one.bytes_per_device, one.wire_bytes_per_device
    ranks, nodes, members = where.ranks, where.nodes, where.per_node
    if nodes == 1:
        return wire, 0
    if one.kind == "all_to_all":
        return payload * (members - 1) // ranks, payload * members * (ranks - members) // ranks
    if one.kind == "all_reduce" and hierarchical and ranks == members * nodes:
        return wire_bytes(one.kind, payload, members), wire_bytes(one.kind, payload, nodes)
    return wire if members > 1 else 0, wire


def _groups(one: CollectiveTotal, program: Program) -> Any:
    """Groups of devices, or pairs of those of two meshes."""
    meshes = {mesh.name: mesh for mesh in program.meshes}
    first, arrow, last = one.mesh_axis.partition("->")
    if arrow:
        return pair_up(meshes[first].device_ids, meshes[last].device_ids)
    mesh = meshes[one.mesh]
    return mesh.group_table(tuple(map(mesh.axes.index, first.split(","))))


def link_cells(one: LinkUse) -> list[str]:
    """Return the cells of a row of a table."""
    rate = one.bytes / one.time_s if one.time_s > 0 else 0.0
    return [
        one.name,
        ", ".join(one.kinds),
        f"{units.size(one.bytes)} per {one.per}",
        units.duration(one.time_s),
        units.count(rate, "B/s"),
        units.count(one.rate_bytes_per_s, "B/s"),
    ]


def link_lines(analysis: Analysis) -> list[str]:
    """Lines of a text."""
    if not analysis.links:
        return []
    return ["", *table(LINK_HEAD, [link_cells(link) for link in analysis.links], "llrrrr")]
