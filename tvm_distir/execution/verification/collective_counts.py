# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the collectives that ``export`` expects with those that ran."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.performance import Entry, Mesh, Op, Program
from tvm_distir.support import Steps, unrolled

Key = tuple[str, str, int]
"""Kind, axes joined by ``","`` (``"mesh0->mesh1"`` for a transfer), ranks per group."""


@dataclass(frozen=True)
class ExpectedCollective:
    """Collectives of the same kind along the same axes, as an exported program has them.

    Attributes
    ----------
    kind, mesh_axis : str
    group_size : int
        The size, as in :class:`tvm_distir.execution.runtime.program.counts.CollectiveCount`.
    count, bytes_per_device : tuple of int
        Least and most: they differ where the branches of an ``If`` do.
    """

    kind: str
    mesh_axis: str
    group_size: int
    count: tuple[int, int]
    bytes_per_device: tuple[int, int]


class _Totals:
    """Lower and upper counts of executions and bytes, by key."""

    def __init__(self) -> None:
        self.low: Counter[tuple[Key, str]] = Counter()
        self.high: Counter[tuple[Key, str]] = Counter()

    def add(self, key: Key, size_bytes: int) -> None:
        for side in (self.low, self.high):
            side[key, "count"] += 1
            side[key, "bytes"] += size_bytes

    def include(self, other: _Totals) -> None:
        self.low.update(other.low)
        self.high.update(other.high)

    @staticmethod
    def either(totals: _Totals, other: _Totals) -> _Totals:
        out = _Totals()
        out.low, out.high = totals.low & other.low, totals.high | other.high
        return out


def _key(program: Program, op: Op) -> Key:
    here = program.meshes[op.mesh]
    if op.kind == "collective":
        return op.collective, _axes_name(program, here, op.mesh_axes), op.group_size
    peer = program.meshes[op.peer_mesh]
    return "send", f"{peer.name}->{here.name}", len(here.device_ids)


def _axes_name(program: Program, mesh: Mesh, axes: tuple[int, ...]) -> str:
    """Return the mesh axes of the first mesh that has the same groups, as runs count them."""
    groups = mesh.groups(axes)
    for other in program.meshes[: program.meshes.index(mesh) + 1]:
        if set(other.device_ids) != set(mesh.device_ids):
            continue
        for size in range(1, len(other.axes) + 1):
            for chosen in itertools.combinations(range(len(other.axes)), size):
                if other.groups(chosen) == groups:
                    return ",".join(other.axes[a] for a in chosen)
    return ",".join(mesh.axes[a] for a in axes)


class _Summing:
    """A summation of the totals of functions, callees once each."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[tuple[str, Entry], _Totals] = {}

    def of(self, name: str, entry: Entry) -> _Totals:
        """Return the totals of a function as an entry calls it; entries may share a mesh."""
        return unrolled(self._of(name, entry))

    def _of(self, name: str, entry: Entry) -> Steps[_Totals]:
        if (name, entry) not in self.known:
            totals = _Totals()
            for op in self.program.functions[name].ops:
                if op.kind in ("call", "branch"):
                    callees = []
                    for callee in _callees(op):
                        callees.append((yield self._of(callee, entry)))
                    totals.include(callees[0] if op.kind == "call" else _Totals.either(*callees))
                elif _has_traffic(op) and self.program.leads(entry, op.mesh):
                    totals.add(_key(self.program, op), op.payload_bytes)
            self.known[name, entry] = totals
        return self.known[name, entry]


def _has_traffic(op: Op) -> bool:
    return op.kind == "collective" or op.collective == "recv"


def _callees(op: Op) -> tuple[str, ...]:
    return (op.callee, op.otherwise) if op.kind == "branch" else (op.callee,)


def claimed_collectives(program: Program) -> tuple[ExpectedCollective, ...]:
    """Return the collectives that each device executes, summed over the meshes, sorted by key.

    Parameters
    ----------
    program : Program
        The program, as :func:`tvm_distir.export` returns it.
    """
    summing, totals = _Summing(program), _Totals()
    for entry in program.entries:
        totals.include(summing.of(entry.function, entry))
    low, high = totals.low, totals.high
    return tuple(
        ExpectedCollective(
            *key, (low[key, "count"], high[key, "count"]), (low[key, "bytes"], high[key, "bytes"])
        )
        for key in sorted({key for key, _ in high})
    )


def differences(
    claims: Sequence[ExpectedCollective], ran: Sequence[CollectiveCount]
) -> tuple[str, ...]:
    """Return a text for each kind, axes and group that did not run as claimed."""
    claimed = {(c.kind, c.mesh_axis, c.group_size): c for c in claims}
    executed = {(c.kind, c.mesh_axis, c.group_size): c for c in ran}
    return tuple(
        text
        for key in sorted({*claimed, *executed})
        for text in _difference(key, claimed.get(key), executed.get(key))
    )


def _difference(
    key: Key, claim: ExpectedCollective | None, ran: CollectiveCount | None
) -> Iterator[str]:
    kind, axes, size = key
    subject = f'{kind} along "{axes}" in groups of {size}'
    count, moved = (ran.count, ran.bytes_per_device) if ran else (0, 0)
    counts = claim.count if claim else (0, 0)
    sizes = claim.bytes_per_device if claim else (0, 0)
    if not counts[0] <= count <= counts[1]:
        yield f"{subject} ran {count} times, {_range(counts)} claimed"
    elif not sizes[0] <= moved <= sizes[1]:
        yield f"{subject} gave {moved} bytes, {_range(sizes)} claimed"


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"
