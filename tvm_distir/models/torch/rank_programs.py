# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the mesh of process groups, and the ranks that run the same program."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import axis_groups, device_mesh, groups_by_axes
from tvm_distir.support import ModelError, lists_by_key

from .rank_collectives import MESSAGES
from .rank_trace import TracedRank


@dataclass(frozen=True)
class SharedProgram:
    """Ranks that run the same program.

    Attributes
    ----------
    trace : TracedRank
        The trace of the first of them.
    ranks : tuple of int
    groups : dict of str to tuple of tuple of int
        All groups of these ranks at the call of a group, by its name in the trace.
    """

    trace: TracedRank
    ranks: tuple[int, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]


def inferred_mesh(groups: Iterable[Sequence[int]], world: int) -> dict[str, int]:
    """Return axes along which groups are formed; groups of no constant stride are left out.

    Examples
    --------
    >>> inferred_mesh([(0, 1), (0, 2)], 4)
    {'axis0': 2, 'axis1': 2}
    """
    cuts = {1, world}
    for group in groups:
        strides = {b - a for a, b in itertools.pairwise(group)}
        if len(strides) == 1 and len(group) < world:
            stride = strides.pop()
            if stride > 0 and world % (stride * len(group)) == 0:
                cuts |= {stride, stride * len(group)}
    ordered = sorted(cuts)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        return {"axis0": world}
    sizes = [b // a for a, b in itertools.pairwise(ordered)][::-1] or [1]
    return {f"axis{i}": n for i, n in enumerate(sizes)}


def lines(mesh: DeviceMesh, ranks: Sequence[int]) -> list[int] | None:
    """Return the axes along which a group is a line of the mesh, or None."""
    lined = (list(axes) for axes, groups in groups_by_axes(mesh) if list(ranks) in groups)
    return next(lined, None)


def _signature(trace: TracedRank) -> str:
    """Return a fingerprint of a rank's program, in which groups are numbers."""
    numbers = {name: str(i) for i, name in enumerate(trace.groups)}
    parts: list[str] = [str(trace.inputs), str(trace.outputs)]

    def named(value: object) -> object:
        return numbers.get(value, value) if isinstance(value, str) else value

    for node in trace.module.graph.nodes:
        args = fx.node.map_aggregate((node.args, node.kwargs), named)
        parts.append(f"{node.name} {node.target} {args}")
        if str(node.target) in MESSAGES:
            parts.append(str(trace.rank))
        if node.op == "get_attr":
            value = getattr(trace.module, str(node.target))
            if isinstance(value, torch.Tensor):
                parts.append(repr(value.detach().cpu().tolist()))
    parts += [f"{len(ranks)}" for ranks in trace.groups.values()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def programs_of(traces: Sequence[TracedRank], mesh: DeviceMesh) -> list[SharedProgram]:
    """Return the programs; where groups reach beyond the ranks of a program, each rank is one."""
    same_programs = lists_by_key((_signature(trace), trace) for trace in traces)
    programs = [_program(same) for same in same_programs.values()]
    if all(set(itertools.chain(*g)) == set(r.ranks) for r in programs for g in r.groups.values()):
        return programs
    return [_program([trace]) for trace in traces]


def _program(traces: Sequence[TracedRank]) -> SharedProgram:
    first = traces[0]
    groups = {}
    for position, name in enumerate(first.groups):
        same = {list(trace.groups.values())[position] for trace in traces}
        groups[name] = tuple(sorted(same))
    return SharedProgram(first, tuple(trace.rank for trace in traces), groups)


def sampled_program(trace: TracedRank, mesh: DeviceMesh) -> SharedProgram:
    """Return the program of all ranks of the mesh, of which a single one was traced."""
    groups = {}
    for name, ranks in trace.groups.items():
        axes = lines(mesh, ranks)
        if axes is None:
            problem = f"its group {list(ranks)} is along no axes of the mesh {list(mesh.shape)}"
            raise ModelError(
                "DIST0364", f"{problem}: the groups of other ranks are unknown",
                location=f"rank {trace.rank}", remedy="Give another mesh, or leave out sample.",
            )  # fmt: skip
        every = axis_groups(mesh, axes)
        groups[name] = tuple(tuple(int(r) for r in group) for group in every)
    world = math.prod(mesh.shape)
    return SharedProgram(trace, tuple(range(world)), groups)


def meshes_of(
    program: SharedProgram, mesh: DeviceMesh
) -> Mapping[str, tuple[DeviceMesh, list[int]]]:
    """Return for each group of a program the mesh and axes that form it."""
    result: dict[str, tuple[DeviceMesh, list[int]]] = {}
    for name, groups in program.groups.items():
        axes = lines(mesh, groups[0])
        lined = [] if axes is None else axis_groups(mesh, axes)
        if axes is not None and sorted(map(tuple, lined)) == sorted(groups):
            result[name] = mesh, axes
        else:
            ids = [rank for group in groups for rank in group]
            sizes = {"groups": len(groups), "rank": len(groups[0])}
            result[name] = device_mesh(sizes, device_ids=ids), [1]
    return result
