# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent placements as the mesh axes that shard each dim, as ``PartitionSpec`` of JAX does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_distir.core.ir.placement import R
from tvm_distir.support import MeshError, shortened

from .schema import MeshSpec, OpenLabels, parse_open_placement

DimAxes = str | tuple[str, ...] | None
"""The mesh axes that shard a dim, major first; None for none."""


class PartitionSpec(tuple[DimAxes, ...]):
    """The mesh axes that shard each dim of a tensor, in the order of the dims.

    An entry is the name of a mesh axis, a tuple of names (major first), or None for a dim that is
    not sharded. Dims without an entry are not sharded, and axes without an entry hold replicas.

    Parameters
    ----------
    *entries : str, sequence of str or None

    Raises
    ------
    MeshError
        DIST0203 for an entry of another type.

    Examples
    --------
    >>> plan = td.Plan(mesh={"dp": 2, "tp": 4}, rules={"weight": td.P("tp", None)})
    >>> plan.rules[0].placement
    (-1, 0)
    """

    __slots__ = ()

    def __new__(cls, *entries: str | Sequence[str] | None) -> PartitionSpec:
        """Make a specification; lists of axes become tuples."""
        dims: list[Any] = [tuple(x) if isinstance(x, list) else x for x in entries]
        for dim, entry in enumerate(dims):
            names = entry if isinstance(entry, tuple) else (entry or "",)
            if entry == "" or not all(isinstance(name, str) for name in names):
                raise _unread(
                    f"the entry {shortened(repr(entry))} of dim {dim} names no mesh axis",
                    "Write a mesh axis, a list of mesh axes, or None (in JSON null) for each dim.",
                )
        return super().__new__(cls, dims)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    @classmethod
    def of_labels(cls, labels: Sequence[int | None], axes: Sequence[str]) -> PartitionSpec:
        """Return the specification of a placement; axes that replicate or are open have no entry.

        Parameters
        ----------
        labels : sequence of int or None
            A label per mesh axis.
        axes : sequence of str
            The names of the mesh axes.
        """
        sharded = [label for label in labels if label is not None and label >= 0]
        entries: list[DimAxes] = []
        for dim in range(max(sharded, default=-1) + 1):
            names = tuple(axis for axis, label in zip(axes, labels, strict=True) if label == dim)
            entries.append(names[0] if len(names) == 1 else names or None)
        return cls(*entries)

    def labels(self, mesh: MeshSpec, location: str = "") -> OpenLabels:
        """Return the label of each axis of a mesh.

        Raises
        ------
        MeshError
            DIST0203 an axis is named twice; DIST0206 an unknown axis.
        """
        labels = [R] * len(mesh.axes)
        for dim, entry in enumerate(self):
            names = (entry,) if isinstance(entry, str) else entry or ()
            for name in names:
                number = mesh.axis_number(name, location)
                if labels[number] != R:
                    problem = f'the mesh axis "{name}" shards dims {labels[number]} and {dim}'
                    raise _unread(problem, "Name each mesh axis once.", location)
                labels[number] = dim
        return tuple(labels)

    def orders(self, mesh: MeshSpec) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the axes of each dim that several axes shard, major first."""
        several = [entry for entry in self if isinstance(entry, tuple) and len(entry) > 1]
        return tuple(tuple(mesh.axis_number(name) for name in entry) for entry in several)


P = PartitionSpec


def _unread(problem: str, remedy: str, location: str = "") -> MeshError:
    return MeshError("DIST0203", problem, location=location, remedy=remedy)


def read_placement(placement: Any) -> OpenLabels | PartitionSpec:
    """Read a placement as text, or as the mesh axes of each dim.

    Parameters
    ----------
    placement : str or sequence
        ``"S[0], ?"``, with an entry per mesh axis; or the entries of a :class:`PartitionSpec` of
        this package or of JAX, as a list in JSON.

    Raises
    ------
    MeshError
        DIST0203 it cannot be read.
    """
    if isinstance(placement, str):
        return parse_open_placement(placement)
    if isinstance(placement, Mapping) or not hasattr(placement, "__iter__"):
        raise _unread(
            f"the placement {shortened(repr(placement))} cannot be read",
            'Write an entry per mesh axis as text, "S[0], R", or a list with the mesh axes of '
            'each dim, ["dp", null].',
        )
    if getattr(placement, "unreduced", None):  # of JAX: partial sums are no placement of a plan
        problem = f"the placement {shortened(repr(placement))} is a partial sum"
        raise _unread(problem, "Give the placement after the reduction.")
    return PartitionSpec(*placement)
