# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Traffic by the slowest link that it takes: inside of nodes, between them, or to the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..program import Program
from ..schedules import FETCH, STORE
from ..simulation import CollectiveTotal
from ..system import GroupLayout, System, leaving_bytes, pair_up
from . import units
from .markup import esc, row, section
from .markup import table as html_table
from .model import Analysis, LinkUse
from .plain import table

_HEAD = ("link", "what", "bytes per device", "time", "reached", "of")


def links_of(
    collectives: Iterable[CollectiveTotal], program: Program, system: System
) -> tuple[LinkUse, ...]:
    """What crosses each kind of link, of the mesh whose devices send most over it.

    Inside a node a device's bytes over what collectives reach there; between nodes what leaves a
    node over all of its adapters, both of them divided by the devices of a node.
    """
    near, far = system.intra_node, system.inter_node
    factor = system.constant("collective_factor") if system.constants else 1.0
    rates = {
        f"inside a node ({near.name})": near.bandwidth_GBps * 1e9 / factor,
        f"between nodes ({far.name})": far.bandwidth_per_nic_GBps * 1e9 * far.nics_per_node
        / near.devices_per_node,
    }  # fmt: skip
    inside, between = rates
    host = ""
    if system.host_link is not None:  # both directions at once
        host = f"to the host and back ({system.host_link.name})"
        rates[host] = 2e9 * system.host_link.bandwidth_GBps
    found: dict[tuple[str, str], list[tuple[CollectiveTotal, int]]] = {}
    for one in collectives:
        link, size = host, one.wire_bytes_per_device
        if one.kind not in (STORE, FETCH):
            layout = _layout(one, program, system)
            leaving = max((leaving_bytes(one.kind, size, kind) for kind in layout.kinds), default=0)
            link = between if any(kind.nodes > 1 for kind in layout.kinds) else inside
            if link == between:
                size = leaving * layout.sharing // near.devices_per_node
        found.setdefault((link, one.mesh), []).append((one, size))
    uses = []
    for link, rate in rates.items():
        own = [some for (name, _), some in found.items() if name == link]
        most: Sequence[tuple[CollectiveTotal, int]] = max(own, key=_bytes, default=())
        if most:
            kinds = sorted({f"{one.kind} over {one.mesh_axis}" for one, _ in most})
            time_s = sum(one.time_s for one, _ in most)
            uses.append(LinkUse(link, tuple(kinds), _bytes(most), time_s, rate))
    return tuple(uses)


def _bytes(some: Sequence[tuple[CollectiveTotal, int]]) -> int:
    return sum(size for _, size in some)


def _layout(one: CollectiveTotal, program: Program, system: System) -> GroupLayout:
    """How the groups, or pairs, lie on the nodes."""
    meshes = {mesh.name: mesh for mesh in program.meshes}
    first, arrow, last = one.mesh_axis.partition("->")
    if arrow:
        groups: Any = pair_up(meshes[first].device_ids, meshes[last].device_ids)
    else:
        mesh = meshes[one.mesh]
        groups = mesh.group_table(tuple(map(mesh.axes.index, first.split(","))))
    return system.layout(groups)


def _cells(one: LinkUse) -> list[str]:
    reached = one.bytes / one.time_s if one.time_s > 0 else 0.0
    return [
        one.name,
        ", ".join(one.kinds),
        units.size(one.bytes),
        units.duration(one.time_s),
        units.count(reached, "B/s"),
        units.count(one.rate_bytes_per_s, "B/s"),
    ]


def link_lines(analysis: Analysis) -> list[str]:
    """Lines of a text."""
    if not analysis.links:
        return []
    return ["", *table(_HEAD, [_cells(one) for one in analysis.links], "llrrrr")]


def link_section(analysis: Analysis) -> str:
    """The section of a page."""
    if not analysis.links:
        return ""
    rows = [row([esc(cell) for cell in _cells(one)], "llrrrr") for one in analysis.links]
    note = (
        "By the slowest link that a group takes; of the devices that send most. Between nodes what "
        "leaves a node. The last column is a device's share of the links."
    )
    return section("Traffic by link", "links", html_table(_HEAD, rows, "llrrrr"), note)
