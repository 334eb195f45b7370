# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the parts of an explanation, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChainStep:
    """A step of a chain: an op or a call ties a dim of a value to a dim of another.

    Attributes
    ----------
    place : str
        ``function/variable`` of the op or call.
    op : str
        ``matmul``, or ``call layer``.
    kind : str
        Of the factor that ties the dims (``map``, ``sum``, ...); ``linear`` where a partial sum
        passes through; ``call`` at a function's boundary.
    factor : str
        The factor: ``S(0), R -> S(0)``.
    source, target : str
        ``function/variable`` of the two values.
    source_dim, target_dim : int or None
        Their dims; None for a partial sum.
    """

    place: str
    op: str
    kind: str
    factor: str
    source: str
    source_dim: int | None
    target: str
    target_dim: int | None


@dataclass(frozen=True)
class AxisReason:
    """The reason for a value's label along a mesh axis.

    Attributes
    ----------
    axis : str
    size : int
        Devices along it.
    label : str
        ``S[d]``, ``R`` or ``P`` (partial sum).
    produced : str
        The label the producer gives; differs if a partial sum is reduced immediately.
    reason : str
        ``annotated`` here; ``followed``: by a chain the program takes along the axis; ``tied``: by
        a chain the program leaves somewhere; ``summed``: a partial sum, or a sum just reduced;
        ``fixed``: every call gives it so; ``unreached``: no annotation reaches any dim;
        ``cheapest``: an annotation reaches a dim, and whole costs least.
    annotation : str
        The nearest annotation that gave the label, ``function/variable``; empty for none.
    steps : tuple of ChainStep
        From the annotation to the value.
    also : tuple of str
        Further annotations whose dims are tied to the same dim, nearest first.
    claims : tuple of (str, str)
        Labels that annotations reach the value with, and the nearest annotation of each: more
        than one, or one that was not taken, is a conflict.
    """

    axis: str
    size: int
    label: str
    produced: str
    reason: str
    annotation: str
    steps: tuple[ChainStep, ...]
    also: tuple[str, ...]
    claims: tuple[tuple[str, str], ...]

    @property
    def conflict(self) -> bool:
        """Return whether annotations ask for something else too."""
        return any(label != self.label for label, _ in self.claims)


@dataclass(frozen=True)
class Dim:
    """The limits on the sharding of a dim.

    Attributes
    ----------
    dim : int
    size : str
    axes : tuple of str
        Mesh axes that shard it.
    obstacles : tuple of str
        Why an axis cannot, or can only at the price of a conversion: the size, or an op's rule.
    """

    dim: int
    size: str
    axes: tuple[str, ...]
    obstacles: tuple[str, ...]


@dataclass(frozen=True)
class ExplainedCollective:
    """A collective, or the difference of many.

    Attributes
    ----------
    kind : str
    axis : str
        The mesh axis it runs along.
    count : int
    wire_bytes : int or None
        Sent per device, by ring formulae. None: a size is not known.
    """

    kind: str
    axis: str
    count: int
    wire_bytes: int | None


@dataclass(frozen=True)
class Resharding:
    """A resharding of the value.

    Attributes
    ----------
    source, target : str
        Placements.
    collectives : tuple of ExplainedCollective
    users : tuple of str
        Who takes the value in the target form.
    """

    source: str
    target: str
    collectives: tuple[ExplainedCollective, ...]
    users: tuple[str, ...]


@dataclass(frozen=True)
class OtherPlacement:
    """The effect of another annotation of the value on the module.

    Attributes
    ----------
    axis : str
    label : str
        ``S[d]`` or ``R``; ``?`` for the value's annotation taken away along the axis.
    becomes : str
        For ``?``, the label propagation picks then; else the label.
    asked : bool
        Whether annotations reach the value with this label, so that propagation weighed it.
    price : float or None
        What the program costs more, in bytes on the wire: sent bytes, and what collectives, FLOPs
        and memory traffic weigh in propagation. None: not possible.
    cost : float or None
        Difference of what propagation minimises, in the same unit. It is a sum over the axes:
        each counts the work again, an axis not yet decided is estimated; conversions of annotated
        values count double; and ties are broken.
    wire_bytes, flops, memory_bytes : int
        Differences per device and execution: bytes sent, arithmetic, bytes ops read and write.
    held_bytes : int
        Difference of what a device holds of the parameters all the time.
    collectives : tuple of ExplainedCollective
        Those that appear (count > 0) or vanish (count < 0), or send another number of bytes.
    impossible : str
        Why not, where it is not.
    """

    axis: str
    label: str
    becomes: str
    asked: bool
    price: float | None
    cost: float | None
    wire_bytes: int = 0
    flops: int = 0
    memory_bytes: int = 0
    held_bytes: int = 0
    collectives: tuple[ExplainedCollective, ...] = ()
    impossible: str = ""
