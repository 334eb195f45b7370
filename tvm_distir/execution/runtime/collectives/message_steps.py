# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide each collective into steps, in which ranks exchange messages.

A step is what a rank sends to the positions of its group, and the shapes of what comes from them.
All operands travel unreduced, and the receiver reduces them in group order as
:mod:`tvm_distir.core.collectives.meaning` does, so the bits are those of all engines. The steps are
the same for arrays of NumPy and tensors of PyTorch (:class:`~.array_operations.Arrays`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from tvm_distir.core.collectives import Collective, Side, Transfer, equal_parts
from tvm_distir.core.ir import local_shape

from .array_operations import Arrays, Operand

SMALL_BYTES = 1 << 14
"""The most bytes of an operand that an all-reduce sends to all ranks at once."""


class StepMessages(NamedTuple):
    """The messages of a step of a rank.

    Attributes
    ----------
    parts : mapping of int to array
        The array that goes to each position of the group; that of this rank stays here.
    shapes : mapping of int to tuple of int
        The shape of the array that comes from each position, in the type of the operand.
    """

    parts: Mapping[int, Operand]
    shapes: Mapping[int, tuple[int, ...]]


CollectiveSteps = Generator[Any, dict[int, Any], Any]
"""The steps of a collective; it is sent what came, by position, and returns the result."""


class _Rank(NamedTuple):
    """A rank that takes part in a collective: its position, the size of its group, its operand."""

    arrays: Arrays[Any]
    position: int
    size: int
    x: Operand


def message_steps(
    arrays: Arrays[Any], call: Collective, position: int, x: Operand
) -> CollectiveSteps:
    """Return the steps of a collective on the rank at a position of its group.

    Parameters
    ----------
    arrays : Arrays
    call : Collective
        A collective between ranks.
    position : int
    x : array
        The operand, contiguous.
    """
    return _STEPS[call.name](_Rank(arrays, position, len(call.groups[0]), x), **dict(call.args))


def _of_all(rank: _Rank, x: Operand) -> StepMessages:
    """Return the step in which every rank sends an array to all."""
    everyone = range(rank.size)
    return StepMessages(dict.fromkeys(everyone, x), dict.fromkeys(everyone, tuple(x.shape)))


def _all_gather(rank: _Rank, dim: int) -> CollectiveSteps:
    shards = yield _of_all(rank, rank.x)
    return rank.arrays.concatenate([shards[i] for i in range(rank.size)], dim)


def _all_reduce(rank: _Rank, op: str) -> CollectiveSteps:
    """Reduce a part on each rank, and gather the parts; small operands go to all ranks."""
    arrays, size, x = rank.arrays, rank.size, rank.x
    if x.nbytes <= SMALL_BYTES or size == 1:
        terms = yield _of_all(rank, x)
        return arrays.reduce([terms[i] for i in range(size)], op)
    flat = x.reshape(-1)
    cuts = [len(flat) * i // size for i in range(size + 1)]
    lengths = {i: (b - a,) for i, (a, b) in enumerate(itertools.pairwise(cuts))}
    parts = {i: flat[cuts[i] : cuts[i + 1]] for i in range(size)}
    terms = yield StepMessages(parts, dict.fromkeys(range(size), lengths[rank.position]))
    total = arrays.reduce([terms[i] for i in range(size)], op)
    pieces = yield StepMessages(dict.fromkeys(range(size), total), lengths)
    return arrays.concatenate([pieces[i] for i in range(size)], 0).reshape(x.shape)


def _reduce_scatter(rank: _Rank, dim: int, op: str) -> CollectiveSteps:
    terms = yield _parts(rank, dim)
    return rank.arrays.reduce([terms[i] for i in range(rank.size)], op)


def _all_to_all(rank: _Rank, gather_dim: int, split_dim: int) -> CollectiveSteps:
    rows = yield _parts(rank, split_dim)
    return rank.arrays.concatenate([rows[i] for i in range(rank.size)], gather_dim)


def _parts(rank: _Rank, dim: int) -> StepMessages:
    parts = dict(enumerate(equal_parts(rank.x, rank.size, dim)))
    return StepMessages(parts, dict.fromkeys(parts, tuple(parts[0].shape)))


def _permute(rank: _Rank, shift: int, wrap: int = 0) -> CollectiveSteps:
    to, source = rank.position + shift, rank.position - shift
    if wrap:
        to, source = to % rank.size, source % rank.size
    shapes = {i: tuple(rank.x.shape) for i in range(rank.size) if i == source}
    rows = yield StepMessages({i: rank.x for i in range(rank.size) if i == to}, shapes)
    return rows[source] if shapes else rank.arrays.zeros(rank.x.shape, rank.x.dtype)


def _exchange(rank: _Rank, shape: tuple[int, ...], src: Side, dst: Side) -> CollectiveSteps:
    arrays, x, position = rank.arrays, rank.x, rank.position
    pieces: dict[int, list[Operand]] = {}
    boxes: dict[int, list[tuple[slice, ...]]] = {}
    for tile in Transfer(0, shape, src, dst).tiles():
        if tile.src == position:
            pieces.setdefault(tile.dst, []).append(x[tile.src_slices()].reshape(-1))
        if tile.dst == position:
            boxes.setdefault(tile.src, []).append(tile.dst_slices())
    out = arrays.zeros([int(n) for n in local_shape(shape, dst[2], dst[0])], x.dtype)
    counts = {i: [math.prod(out[box].shape) for box in targets] for i, targets in boxes.items()}
    rows = yield StepMessages(
        {i: arrays.concatenate(flat, 0) for i, flat in pieces.items()},
        {i: (sum(sizes),) for i, sizes in counts.items()},
    )
    for i, targets in boxes.items():
        for box, size, end in zip(targets, counts[i], list(itertools.accumulate(counts[i]))):
            out[box] = rows[i][end - size : end].reshape(out[box].shape)
    return out


_STEPS: dict[str, Callable[..., CollectiveSteps]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
    "exchange": _exchange,
}
