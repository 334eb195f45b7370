# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a fabric executed, as counts per mesh axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ..ir import axis_groups, local_shape, mesh_axes, mesh_index, mesh_names, mesh_shape, meshes
from ..ir.ops import dist_op_name
from .calls import Transfer, call_axes, decode_collective
from .collectives import TRAFFIC
from .counts import CollectiveCount, Counter
from .fabric import Meetings
from .layout import Entry

Groups = tuple[tuple[int, ...], ...]


def axes_of_groups(mod: ir.IRModule) -> dict[tuple[int, Groups], tuple[int, ...]]:
    """Mesh axes by mesh number and rank groups.

    Where several sets of axes have the same groups (an axis of one device changes nothing), a
    collective of the module decides, else the smallest set.
    """
    table: dict[tuple[int, Groups], tuple[int, ...]] = {}
    for number, mesh in enumerate(meshes(mod)):
        axes = range(len(mesh_shape(mesh)))
        for size in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, size):
                groups = tuple(tuple(g) for g in axis_groups(mesh, chosen))
                table.setdefault((number, groups), chosen)

    def visit(node: Any) -> None:
        if isinstance(node, ir.Call) and dist_op_name(node) in TRAFFIC:
            number = mesh_index(mod, node.attrs["device_mesh"])
            table[number, decode_collective(node).groups] = call_axes(node)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return table


def _count_transfer(counter: Counter, axes: str, transfer: Transfer, element_bytes: int) -> None:
    part = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
    moved = sum(tile.elements for tile in transfer.tiles() if tile.src != tile.dst)
    result_bytes = math.prod(part) * element_bytes
    counter.transfer(axes, len(transfer.dst[1]), result_bytes, moved * element_bytes)


def count_executed(
    mod: ir.IRModule, found: Sequence[Entry], fabric: Meetings
) -> tuple[CollectiveCount, ...]:
    """Counts of a run from what the first rank of every mesh executed.

    Parameters
    ----------
    mod : IRModule
        At level 5.
    found : sequence of Entry
        Its entry functions.
    fabric : Meetings
        Of the run, which has ended.
    """
    counter = Counter()
    table, axis_names, names = axes_of_groups(mod), mesh_axes(mod), mesh_names(mod)
    mesh_of = {tuple(entry.ranks): names[entry.mesh_index] for entry in found}
    for entry in found:
        number, rank = entry.mesh_index, entry.ranks[0]
        for done in fabric.executed(rank):
            chosen = table.get((number, done.groups))
            if chosen is None:
                axes = f"groups {[list(g) for g in done.groups]}"
            else:
                axes = ",".join(axis_names[number][a] for a in chosen)
            for _ in range(done.count):
                counter.collective(done.kind, axes, len(done.groups[0]), done.result_bytes)
        for transfer, element_bytes in fabric.received(rank):
            ends = (transfer.src[1], transfer.dst[1])
            axes = "->".join(mesh_of.get(devices, "?") for devices in ends)
            _count_transfer(counter, axes, transfer, element_bytes)
    return counter.counts()
