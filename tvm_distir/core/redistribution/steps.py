# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the steps of a redistribution, and which of them a placement allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_distir.core.ir.operators.names import COLLECTIVES, LOCAL_STEPS
from tvm_distir.core.ir.placement import Labels, P, R, blocks_fault

KINDS = (*(kind for kind in COLLECTIVES if kind != "collective_permute"), *LOCAL_STEPS)
"""All kinds of steps: names of ``R.dist`` ops."""


@dataclass(frozen=True)
class Step:
    """A collective of a redistribution.

    Attributes
    ----------
    kind : str
        The kind, from :data:`KINDS`.
    axes : tuple of int
        Mesh axes it runs along: their product group takes part.
    gather_dim, split_dim : int or None
        The dim that is joined, and the dim that is cut.
    after : tuple of int
        Labels of the result.
    """

    kind: str
    axes: tuple[int, ...]
    gather_dim: int | None
    split_dim: int | None
    after: Labels


@dataclass(frozen=True)
class Space:
    """The placements that a search may pass through.

    Attributes
    ----------
    mesh : tuple of int
        Sizes of the mesh axes.
    allowed : tuple of tuple of int
        The dims that each mesh axis may shard.
    finish : tuple of bool
        Whether the partial sums of each mesh axis are completed (else they are kept).
    kinds : tuple of str
        The kinds of steps at hand.
    """

    mesh: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    finish: tuple[bool, ...]
    kinds: tuple[str, ...]


def _relabelled(labels: Labels, axes: Sequence[int], label: int) -> Labels:
    return tuple(label if a in axes else x for a, x in enumerate(labels))


def _subsets(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, count)


def _cuts(space: Space, rest: Labels, axes: tuple[int, ...]) -> Iterator[int]:
    """Return the dims that ``axes`` may shard together, with a block per group."""
    return (dim for dim in _common(space, axes) if not blocks_fault(rest, axes, dim))


def _common(space: Space, axes: tuple[int, ...]) -> Iterator[int]:
    """Return the dims that all of ``axes`` may shard."""
    return (dim for dim in space.allowed[axes[0]] if all(dim in space.allowed[a] for a in axes))


def steps_from(space: Space, labels: Labels) -> Iterator[Step]:
    """Return all steps that may be taken from a placement, but exchanges, in a fixed order."""
    return (step for step in _all_steps(space, labels) if step.kind in space.kinds)


def _all_steps(space: Space, labels: Labels) -> Iterator[Step]:
    full = [a for a, x in enumerate(labels) if x == R]
    for axes in _subsets([a for a, x in enumerate(labels) if x == P and space.finish[a]]):
        yield Step("all_reduce", axes, None, None, _relabelled(labels, axes, R))
        for dim in _common(space, axes):
            yield Step("reduce_scatter", axes, None, dim, _relabelled(labels, axes, dim))
    for axis in full:
        if not space.finish[axis]:
            yield Step("partial", (axis,), None, None, _relabelled(labels, (axis,), P))
    for axes in _subsets(full):
        for dim in _cuts(space, labels, axes):
            yield Step("local_slice", axes, None, dim, _relabelled(labels, axes, dim))
    for old in sorted({x for x in labels if x >= 0}):
        for axes in _subsets([a for a, x in enumerate(labels) if x == old]):
            rest = _relabelled(labels, axes, R)
            if blocks_fault(rest, axes, old):
                continue
            for dim in _cuts(space, rest, axes):
                if dim != old:
                    yield Step("all_to_all", axes, old, dim, _relabelled(labels, axes, dim))
            yield Step("all_gather", axes, old, None, rest)


def exchange_step(before: Labels, after: Labels) -> Step:
    """Return the step from a placement to another with the same partial axes."""
    axes = tuple(a for a, (x, y) in enumerate(zip(before, after)) if x != y or x >= 0)
    return Step("exchange", axes, None, None, after)


def crossing_axes(before: Labels, after: Labels) -> tuple[int, ...]:
    """Return the axes along which devices send each other blocks in an exchange.

    These are the axes whose labels differ, and those that cut a dim inside of these: along the
    others every device has its blocks already.
    """
    pairs = list(zip(before, after))
    first: dict[int, int] = {}  # by dim, the major axis of those that change
    for a, (x, y) in enumerate(pairs):
        if x != y:
            first.setdefault(x, a)
            first.setdefault(y, a)
    inside = (x >= 0 and a > first.get(x, a) for a, (x, _) in enumerate(pairs))
    return tuple(a for a, ((x, y), i) in enumerate(zip(pairs, inside)) if x != y or i)


def can_exchange(before: Labels, after: Labels) -> bool:
    """Return whether two placements differ, but not in partial sums."""
    return before != after and all((x == P) == (y == P) for x, y in zip(before, after))
