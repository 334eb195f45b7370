# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From one placement to another on the same mesh, as steps along mesh axes.

The states are placements (one label per mesh axis, partial sums included), the edges are the
collectives that change the label along one axis (an all-reduce: along several). A step is legal
only when no later mesh axis shards the dim it cuts or joins: the blocks along the axis are then
contiguous. The cheapest sequence is a shortest path. So ``S[0], S[0] -> R, S[0]`` comes out as
exchanges that end in the right order, and slices come before gathers: later steps are cheaper
on smaller shards.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import LoweringError
from ...ir import Labels, P, R, local_shape, placement_text, shard_counts

LAUNCH = 16
"""Price of starting a collective, in elements on the wire."""
SLICE = 1
"""Price of a step without traffic."""
MAX_STATES = 2000
"""More placements than this are not searched: dims that neither end shards are left out."""


@dataclass(frozen=True)
class Step:
    """One collective of a redistribution.

    Attributes
    ----------
    kind : str
        Name of the ``R.dist`` op: ``all_reduce``, ``reduce_scatter``, ``all_gather``,
        ``all_to_all``, ``local_slice`` or ``partial``.
    axes : tuple of int
        Mesh axes it runs along; one, except for ``all_reduce`` and ``partial``.
    gather_dim, split_dim : int or None
        The dim that is joined, and the dim that is cut.
    """

    kind: str
    axes: tuple[int, ...]
    gather_dim: int | None = None
    split_dim: int | None = None


def apply_step(labels: Sequence[int], step: Step) -> Labels:
    """Labels after a step."""
    out = list(labels)
    for axis in step.axes:
        if step.kind == "partial":
            out[axis] = P
        else:
            out[axis] = R if step.split_dim is None else step.split_dim
    return tuple(out)


def check_sharding(shape: Sequence[int], labels: Sequence[int], mesh: Sequence[int]) -> str:
    """Why a placement cannot be lowered, or an empty text.

    A dim may be cut unevenly (its last shards are padded), but by one mesh axis only.
    """
    for dim, (size, count) in enumerate(zip(shape, shard_counts(labels, mesh, len(shape)))):
        if count > 1 and size % count:
            axes = [a for a, x in enumerate(labels) if x == dim and mesh[a] > 1]
            if len(axes) > 1:
                return (
                    f'the placement "{placement_text(labels)}" cuts dim {dim} of size {size} '
                    f"into {count} parts over {len(axes)} mesh axes, which is not even"
                )
    return ""


def _minor(labels: Sequence[int], axis: int, dim: int) -> bool:
    return dim not in labels[axis + 1 :]


def _steps_from(
    labels: Labels, allowed: Sequence[tuple[int, ...]], finish: Sequence[bool]
) -> Iterator[Step]:
    """All legal steps; ``allowed`` lists the dims each axis may shard."""
    waiting = [a for a, x in enumerate(labels) if x == P and finish[a]]
    for count in range(len(waiting), 0, -1):
        for axes in itertools.combinations(waiting, count):
            yield Step("all_reduce", axes)
    for axis, label in enumerate(labels):
        if label == R:
            if not finish[axis]:
                yield Step("partial", (axis,))
            for dim in allowed[axis]:
                if _minor(labels, axis, dim):
                    yield Step("local_slice", (axis,), None, dim)
        elif label == P:
            if finish[axis]:
                for dim in allowed[axis]:
                    if _minor(labels, axis, dim):
                        yield Step("reduce_scatter", (axis,), None, dim)
        elif _minor(labels, axis, label):
            for dim in allowed[axis]:
                if dim != label and _minor(labels, axis, dim):
                    yield Step("all_to_all", (axis,), label, dim)
            yield Step("all_gather", (axis,), label, None)


def step_cost(shape: Sequence[int], labels: Labels, step: Step, mesh: Sequence[int]) -> int:
    """Elements one rank sends, by the ring formulas, plus :data:`LAUNCH`.

    With k ranks and e local elements before the step: all-reduce ``2 e (k-1)/k``, reduce-scatter
    and all-to-all ``e (k-1)/k``, all-gather ``e (k-1)``. Source: the bandwidth terms of Thakur,
    Rabenseifner, Gropp (2005), "Optimization of Collective Communication Operations in MPICH".
    """
    k = math.prod(mesh[a] for a in step.axes)
    if k == 1:
        return 0
    if step.kind in ("local_slice", "partial"):
        return SLICE
    elements: int = math.prod(local_shape(shape, labels, mesh))
    if step.kind == "all_gather":
        return LAUNCH + elements * (k - 1)
    rounds = 2 if step.kind == "all_reduce" else 1
    return LAUNCH + -(-rounds * elements * (k - 1) // k)


def _allowed_dims(
    shape: Sequence[int], src: Labels, dst: Labels, mesh: Sequence[int]
) -> list[tuple[int, ...]]:
    """Dims each axis may shard on the way: those of the ends, and dims it cuts evenly."""
    named = sorted({x for x in (*src, *dst) if x >= 0})
    wide = [
        tuple(d for d in range(len(shape)) if d in named or (n > 1 and shape[d] % n == 0))
        for n in mesh
    ]
    if math.prod(len(dims) + 2 for dims in wide) <= MAX_STATES:
        return wide
    return [tuple(named)] * len(mesh)


def plan_steps(
    shape: Sequence[int], src_labels: Sequence[int], dst_labels: Sequence[int], mesh: Sequence[int]
) -> list[Step]:
    """Cheapest legal sequence of steps between two placements of one mesh.

    Parameters
    ----------
    shape : sequence of int
        Whole shape of the tensor.
    src_labels, dst_labels : sequence of int
        One label per mesh axis: a dim, ``R`` or ``P``.
    mesh : sequence of int
        Sizes of the mesh axes.

    Returns
    -------
    steps : list of Step
        Empty when the placements are equal.

    Raises
    ------
    LoweringError
        DIST0501 when one of the placements cannot be lowered.
    """
    return list(_plan(tuple(shape), tuple(src_labels), tuple(dst_labels), tuple(mesh)))


@functools.lru_cache(maxsize=8192)
def _plan(shape: tuple[int, ...], src: Labels, dst: Labels, mesh: tuple[int, ...]) -> list[Step]:
    for labels in (src, dst):
        why = check_sharding(shape, labels, mesh)
        if why:
            raise LoweringError("DIST0501", why, remedy="Pad the dim, or shard it by one axis.")
    allowed = _allowed_dims(shape, src, dst, mesh)
    # Along an axis that ends partial, a sum is kept; along all others it is completed.
    finish = [x != P for x in dst]
    best = {src: 0}
    came: dict[Labels, tuple[Labels, Step]] = {}
    done: set[Labels] = set()
    queue: list[tuple[int, int, int, Labels]] = [(0, 0, 0, src)]
    ticket = itertools.count(1)
    while queue:
        cost, count, _, labels = heapq.heappop(queue)
        if labels in done:
            continue
        done.add(labels)
        if labels == dst:
            break
        for step in _steps_from(labels, allowed, finish):
            after = apply_step(labels, step)
            if after in done or check_sharding(shape, after, mesh):
                continue
            total = cost + step_cost(shape, labels, step, mesh)
            if after not in best or total < best[after]:
                best[after] = total
                came[after] = (labels, step)
                heapq.heappush(queue, (total, count + 1, next(ticket), after))
    steps: list[Step] = []
    at = dst
    while at != src:
        at, step = came[at]
        steps.append(step)
    return steps[::-1]
