# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents partial sums, and how a call is sharded along each mesh axis.

*Terms* of a value are the mesh axes along which each device holds only a term of a reduction,
with the reduction's op. A reducing factor makes terms, an op that is linear in its unfinished
operands carries them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_distir.core.ir.placement import Labels
from tvm_distir.core.ir.views.tilings import (
    moved_axes,
)

from .factor import Factor, Rule

if TYPE_CHECKING:
    from tvm import relax
    from tvm.relax.distributed import DeviceMesh

Terms = tuple[tuple[int, str], ...]
"""(mesh axis, reduction op) pairs, in order of axis."""


def axes_of(terms: Terms) -> tuple[int, ...]:
    """Return the mesh axes of partial sums."""
    return tuple(axis for axis, _ in terms)


def without(terms: Terms, axes: Sequence[int]) -> Terms:
    """Return the partial sums without those along some axes."""
    return tuple(t for t in terms if t[0] not in axes)


def within(terms: Terms, axes: Sequence[int]) -> Terms:
    """Return the partial sums along some axes."""
    return tuple(t for t in terms if t[0] in axes)


def moved_terms(terms: Terms, source: DeviceMesh, target: DeviceMesh) -> Terms:
    """Return the partial sums of a value named by the axes of another view of its mesh."""
    moved = ((axis, op) for a, op in terms for axis in moved_axes((a,), source, target))
    return tuple(sorted(moved))


def attribute_axes(fn: relax.Function, side: str) -> dict[int, tuple[int, ...]]:
    """Return the partial axes per parameter or result, from the attribute ``dist.partial``."""
    attrs = fn.attrs or {}
    if "dist.partial" not in attrs or side not in attrs["dist.partial"]:
        return {}
    entries = attrs["dist.partial"][side]
    return {int(k): tuple(sorted(int(a) for a in axes)) for k, axes in entries.items()}


def sums(axes: Sequence[int]) -> Terms:
    """Return partial sums along axes."""
    return tuple((a, "sum") for a in sorted(axes))


@dataclass(frozen=True)
class CallSharding:
    """Factors and partial sums of a call along each mesh axis.

    Attributes
    ----------
    factors : tuple of Factor or None
        The factor that the call follows along each mesh axis.
    ins : tuple of labels
        The labels of each flattened tensor operand; of a constant, the labels that the factors ask
        of it.
    outs : tuple of labels
        The labels of each flattened result, as typed.
    terms : Terms
        The partial sums that the reducing factors leave.
    rule : Rule or None
        None when nothing is sharded.
    """

    factors: tuple[Factor | None, ...]
    ins: tuple[Labels, ...]
    outs: tuple[Labels, ...]
    terms: Terms
    rule: Rule | None

    @property
    def sharded(self) -> bool:
        """Return whether a factor is followed along some axis."""
        return any(f is not None for f in self.factors)

    def result_terms(self, result: int) -> Terms:
        """Return the partial sums that the reducing factors leave in a result."""
        left = [(a, op, self.factors[a]) for a, op in self.terms]
        return tuple((a, op) for a, op, f in left if f is None or f.leaves_terms(result))
