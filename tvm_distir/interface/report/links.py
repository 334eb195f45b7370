# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the traffic by tier of the network: intra-node, inter-node, outer ones, and to the host.

A collective whose groups span several nodes moves data over several tiers: its devices send over
the links of their node, each node over its network adapters, and where groups span the domains of
outer tiers, over those. The inter-node bytes are those of all groups that share the adapters of a
node; those of an outer tier are the share of a device in what leaves its domain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.core.plan import FETCH, STORE
from tvm_distir.hardware import GroupTopology, System, pair_up
from tvm_distir.performance import CollectiveTotal, OpCosts, Program
from tvm_distir.support import align
from tvm_distir.support.display import units

from .model import Analysis, LinkUse

LINK_HEAD = ("link", "collectives", "bytes", "time", "bandwidth", "peak bandwidth")


class _Moved(NamedTuple):
    """The bytes of a collective over a tier, and the rate of its links."""

    total: CollectiveTotal
    bytes: int
    rate_bytes_per_s: float


def links_of(
    collectives: Iterable[CollectiveTotal], program: Program, system: System
) -> tuple[LinkUse, ...]:
    """Return the use of each tier by the mesh that sends most over it, network by network."""
    costs = OpCosts(program, system)
    numbers = {mesh.name: number for number, mesh in enumerate(program.meshes)}
    networks: dict[Hashable, tuple[System, list[CollectiveTotal]]] = {}
    for total in collectives:
        source = numbers.get(total.mesh_axis.partition("->")[0], numbers[total.mesh])
        known = costs.link_clock(source, numbers[total.mesh]).system
        key = known.intra_node, known.inter_node
        networks.setdefault(key, (known, []))[1].append(total)
    return tuple(
        use for known, some in networks.values() for use in _uses(some, costs.program, known)
    )


def _uses(
    collectives: Iterable[CollectiveTotal], program: Program, system: System
) -> Iterator[LinkUse]:
    """Yield the use of each tier of a network."""
    near, far = system.intra_node, system.inter_node
    tiers = {
        f"intra-node ({near.name})": ("intra_node", "device"),
        f"inter-node ({far.name})": ("inter_node", "node"),
    }
    tiers.update({f"outer tier ({tier.name})": ("tiers", "device") for tier in system.outer_tiers})
    network = tuple(tiers)
    host = ""
    if system.host_link is not None:
        host = f"host ({system.host_link.name})"
        tiers[host] = "host_link", "device"
    parts: dict[tuple[str, str], list[_Moved]] = {}
    for collective in collectives:
        if collective.kind in (STORE, FETCH):
            by_tier = {host: _at_host(collective, system)}
        else:
            by_tier = dict(zip(network, _on_network(collective, program, system), strict=True))
        for tier, moved in by_tier.items():
            if moved.bytes:
                parts.setdefault((tier, collective.mesh), []).append(moved)
    for tier, (part, per) in tiers.items():
        by_mesh = [moves for (name, _), moves in parts.items() if name == tier]
        most: Sequence[_Moved] = max(by_mesh, key=_bytes, default=())
        if most:
            kinds = sorted({f"{moved.total.kind} over {moved.total.mesh_axis}" for moved in most})
            time_s = sum(moved.total.time_s for moved in most)
            rate = max(moved.rate_bytes_per_s for moved in most)
            yield LinkUse(tier, part, per, tuple(kinds), _bytes(most), time_s, rate)


def _bytes(some: Sequence[_Moved]) -> int:
    return sum(part.bytes for part in some)


def _at_host(total: CollectiveTotal, system: System) -> _Moved:
    """Return the traffic of a copy to or from the host, in one direction."""
    link = system.host_link
    rate = link.bandwidth_GBps * 1e9 if link is not None else 0.0
    return _Moved(total, total.wire_bytes_per_device, rate)


def _on_network(total: CollectiveTotal, program: Program, system: System) -> tuple[_Moved, ...]:
    """Return the bytes that are sent inside nodes, between nodes, and over each outer tier.

    A ring enters and leaves every node once. Sums over several nodes by systems with constants are
    taken to be hierarchical, which sends least over either tier. The bandwidth inside of nodes is
    what collectives reach by NCCL's curve; ``collective_factor`` times it is what steps reach.
    """
    near, far = system.intra_node, system.inter_node
    layout = system.layout(_groups(total, program))
    where = max(
        layout.kinds,
        key=lambda kind: (kind.nodes, kind.per_node, kind.ranks),
        default=GroupTopology(1, 1, 1, tuple((1, 1) for _ in system.outer_tiers)),
    )
    hierarchical = bool(system.constants)
    sent, left = _parts(total, where, hierarchical)
    factor = min(1.0, system.constant("collective_factor") if system.constants else 1.0)
    adapters = min(
        far.nics_per_node,
        math.ceil(far.nics_per_node / near.devices_per_node) * where.per_node * layout.sharing,
    )
    outer = (
        _Moved(
            total,
            -(-_leaving(total, where.ranks, domains, members, hierarchical) // members),
            tier.bandwidth_GBps * 1e9 / tier.oversubscription,
        )
        for tier, (domains, members) in zip(system.outer_tiers, where.outer, strict=True)
    )
    return (
        _Moved(total, sent, near.bandwidth_GBps * 1e9 / factor),
        _Moved(
            total,
            layout.sharing * left,
            adapters * far.bandwidth_per_nic_GBps * 1e9 / far.oversubscription,
        ),
        *outer,
    )


def _parts(total: CollectiveTotal, where: GroupTopology, hierarchical: bool) -> tuple[int, int]:
    """Return the bytes that a device sends within its node, and that its group sends out."""
    payload, sent = total.bytes_per_device, total.wire_bytes_per_device
    ranks, nodes, members = where.ranks, where.nodes, where.per_node
    left = _leaving(total, ranks, nodes, members, hierarchical)
    if nodes == 1:
        return sent, left
    if total.kind == "all_to_all":
        return payload * (members - 1) // ranks, left
    if total.kind == "all_reduce" and hierarchical and ranks == members * nodes:
        return sent_bytes(total.kind, payload, members), left
    return sent if members > 1 else 0, left


def _leaving(
    total: CollectiveTotal, ranks: int, domains: int, members: int, hierarchical: bool
) -> int:
    """Return the bytes that a group sends out of one of the domains that it touches."""
    if domains == 1:
        return 0
    if total.kind == "all_to_all":
        return total.bytes_per_device * members * (ranks - members) // ranks
    if total.kind == "all_reduce" and hierarchical and ranks == members * domains:
        return sent_bytes(total.kind, total.bytes_per_device, domains)
    return total.wire_bytes_per_device


def _groups(total: CollectiveTotal, program: Program) -> Any:
    """Return the groups of devices, or the pairs of devices of two meshes."""
    meshes = {mesh.name: mesh for mesh in program.meshes}
    first, arrow, last = total.mesh_axis.partition("->")
    if arrow:
        return pair_up(meshes[first].device_ids, meshes[last].device_ids)
    mesh = meshes[total.mesh]
    return mesh.group_table(tuple(map(mesh.axes.index, first.split(","))))


def link_cells(use: LinkUse) -> list[str]:
    """Return the cells of a row of a table."""
    rate = use.bytes / use.time_s if use.time_s > 0 else 0.0
    return [
        use.name,
        ", ".join(use.kinds),
        f"{units.size(use.bytes)} per {use.per}",
        units.duration(use.time_s),
        units.count(rate, "B/s"),
        units.count(use.rate_bytes_per_s, "B/s"),
    ]


def link_lines(analysis: Analysis) -> list[str]:
    """Return the lines of the table of links."""
    if not analysis.links:
        return []
    return ["", *align(LINK_HEAD, [link_cells(link) for link in analysis.links], "llrrrr")]
