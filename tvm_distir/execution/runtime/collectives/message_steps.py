# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide each collective into steps, in which ranks exchange messages.

A step is what a rank sends to the positions of its group, and the shapes of what comes from them.
All operands travel unreduced, and the receiver reduces them in group order as
:mod:`tvm_distir.core.collectives.meaning` does, so the bits are those of all engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import Collective, Transfer, all_reduce, apply, local_slice
from tvm_distir.core.ir import local_shape

Array = npt.NDArray[Any]

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

    parts: Mapping[int, Array]
    shapes: Mapping[int, tuple[int, ...]]


CollectiveSteps = Generator[StepMessages, dict[int, Array], Array]
"""The steps of a collective; it is sent what came, by position, and returns the result."""


def message_steps(call: Collective, position: int, x: Array) -> CollectiveSteps:
    """Return the steps of a collective on the rank at a position of its group.

    Parameters
    ----------
    call : Collective
        A collective between ranks.
    position : int
    x : array
        The operand, contiguous.
    """
    make = _STEPS.get(call.name, _to_all)
    return make(call, position, len(call.groups[0]), x)


def _to_all(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    """Send every operand to every rank, which applies the definition of the collective."""
    terms = yield StepMessages(dict.fromkeys(range(size), x), dict.fromkeys(range(size), x.shape))
    return apply(call, [terms[i] for i in range(size)])[position]


def _all_reduce(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    """Reduce a part on each rank, and gather the parts; small operands go to all ranks."""
    if x.nbytes <= SMALL_BYTES or size == 1:
        return (yield from _to_all(call, position, size, x))
    flat = x.reshape(-1)
    cuts = [len(flat) * i // size for i in range(size + 1)]
    lengths = {i: (b - a,) for i, (a, b) in enumerate(itertools.pairwise(cuts))}
    parts = {i: flat[cuts[i] : cuts[i + 1]] for i in range(size)}
    terms = yield StepMessages(parts, dict.fromkeys(range(size), lengths[position]))
    total = all_reduce([terms[i] for i in range(size)], str(dict(call.args)["op"]))
    pieces = yield StepMessages(dict.fromkeys(range(size), total), lengths)
    return np.concatenate([pieces[i] for i in range(size)]).reshape(x.shape)


def _reduce_scatter(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    args = dict(call.args)
    terms = yield _parts(x, position, size, int(args["dim"]))
    return all_reduce([terms[i] for i in range(size)], str(args["op"]))


def _all_to_all(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    args = dict(call.args)
    rows = yield _parts(x, position, size, int(args["split_dim"]))
    return np.concatenate([rows[i] for i in range(size)], axis=int(args["gather_dim"]))


def _parts(x: Array, position: int, size: int, dim: int) -> StepMessages:
    parts = {i: local_slice(x, i, size, dim) for i in range(size)}
    return StepMessages(parts, dict.fromkeys(range(size), parts[position].shape))


def _permute(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    args = dict(call.args)
    to, source = position + int(args["shift"]), position - int(args["shift"])
    if args.get("wrap"):
        to, source = to % size, source % size
    shapes = {i: x.shape for i in range(size) if i == source}
    rows = yield StepMessages({i: x for i in range(size) if i == to}, shapes)
    return rows[source] if shapes else np.zeros_like(x)


def exchanged_tiles(
    transfer: Transfer, position: int, x: Any
) -> tuple[dict[int, list[Any]], dict[int, list[tuple[slice, ...]]]]:
    """Return what a rank sends to each position, and where what comes from each belongs.

    Parameters
    ----------
    transfer : Transfer
        A transfer whose ranks are positions.
    position : int
        The position of this rank.
    x : array or torch.Tensor
        The operand of this rank.
    """
    pieces: dict[int, list[Any]] = {}
    boxes: dict[int, list[tuple[slice, ...]]] = {}
    for tile in transfer.tiles():
        if tile.src == position:
            pieces.setdefault(tile.dst, []).append(x[tile.src_slices()].reshape(-1))
        if tile.dst == position:
            boxes.setdefault(tile.src, []).append(tile.dst_slices())
    return pieces, boxes


def _exchange(call: Collective, position: int, size: int, x: Array) -> CollectiveSteps:
    args: dict[str, Any] = dict(call.args)
    transfer = Transfer(0, args["shape"], args["src"], args["dst"])
    tiles, boxes = exchanged_tiles(transfer, position, x)
    mesh, _, labels = transfer.dst
    out = np.zeros([int(n) for n in local_shape(transfer.shape, labels, mesh)], x.dtype)
    counts = {i: [out[box].size for box in targets] for i, targets in boxes.items()}
    rows = yield StepMessages(
        {i: np.concatenate(pieces) for i, pieces in tiles.items()},
        {i: (sum(sizes),) for i, sizes in counts.items()},
    )
    for i, targets in boxes.items():
        for box, piece in zip(targets, np.split(rows[i], np.cumsum(counts[i])[:-1])):
            out[box] = piece.reshape(out[box].shape)
    return out


_STEPS: dict[str, Callable[[Collective, int, int, Array], CollectiveSteps]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
    "exchange": _exchange,
}
"""Collectives of which a rank needs less than all operands; the others take all of them."""
