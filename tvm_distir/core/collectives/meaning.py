# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define every collective in NumPy, over the arrays of a group.

All engines must give these bits. Reductions run in the group's rank order, one rank after the
other. ``float16`` and ``bfloat16`` are widened to ``float32``, reduced there and rounded once at
the end; every other type is reduced in itself, integers modulo their width. On ``bool``,
``sum`` and ``max`` are "or", ``prod`` and ``min`` are "and".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.operators.names import LOCAL_OPS, REDUCE_OPS
from tvm_distir.core.ir.placement import local_shape, shard_slices
from tvm_distir.support import EngineError

from .tiles import Side, transfer_tiles

Array = npt.NDArray[Any]

_STEP: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_BOOL_STEP: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.logical_or,
    "prod": np.logical_and,
    "min": np.logical_and,
    "max": np.logical_or,
}


def _refuse(problem: str, remedy: str, location: str = "") -> EngineError:
    return EngineError("DIST0611", problem, location=location, remedy=remedy)


def check_op(op: str) -> str:
    """Return ``op`` if it is a known reduction, else raise DIST0611."""
    if op not in REDUCE_OPS:
        raise _refuse(f'unknown reduction "{op}"', f"Use one of {', '.join(REDUCE_OPS)}.")
    return op


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which values of ``dtype`` are reduced."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def neutral(op: str, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of a reduction, as a scalar array of ``dtype``.

    For ``min``/``max`` of floats it is +inf/-inf, of integers the largest/smallest value.
    """
    check_op(op)
    if op in ("sum", "prod"):
        return np.array(op == "prod").astype(dtype)
    if dtype == np.bool_:
        return np.array(op == "min")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array(info.max if op == "min" else info.min, dtype)
    return np.array(np.inf if op == "min" else -np.inf).astype(dtype)


def all_reduce(terms: Sequence[Array], op: str) -> Array:
    """Reduce arrays of equal shape in their order; the result has their type.

    Parameters
    ----------
    terms : sequence of arrays, each of shape (...)
        The arrays, an array per rank of the group, in group order.
    op : str
        The reduction, from :data:`tvm_distir.core.ir.operators.names.REDUCE_OPS`.
    """
    check_op(op)
    dtype = terms[0].dtype
    step = (_BOOL_STEP if dtype == np.bool_ else _STEP)[op]
    total = terms[0].astype(wide_dtype(dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        for term in terms[1:]:
            total = step(total, term.astype(total.dtype, copy=False))
        return np.asarray(total).astype(dtype, copy=False)


def all_gather(shards: Sequence[Array], dim: int) -> Array:
    """Concatenate the shards of a group along ``dim``, in group order."""
    return np.concatenate(list(shards), axis=dim)


def equal_parts(x: Any, count: int, dim: int) -> list[Any]:
    """Return views of the equal parts of an array of any library along a dim; else DIST0611."""
    if x.shape[dim] % count:
        raise _refuse(
            f"dim {dim} of size {x.shape[dim]} is not divisible by the {count} ranks of the group",
            f"Pad it to {-(-x.shape[dim] // count) * count} first.",
        )
    size = x.shape[dim] // count
    before = (slice(None),) * dim
    return [x[(*before, slice(i * size, (i + 1) * size))] for i in range(count)]


def local_slice(x: Array, position: int, count: int, dim: int) -> Array:
    """Return part number ``position`` of ``count`` equal parts of ``x`` along ``dim``."""
    return np.ascontiguousarray(equal_parts(x, count, dim)[position])


def reduce_scatter(terms: Sequence[Array], dim: int, op: str) -> list[Array]:
    """Reduce, and split the result along ``dim`` into a part per rank."""
    total = all_reduce(terms, op)
    return [np.ascontiguousarray(part) for part in equal_parts(total, len(terms), dim)]


def all_to_all(shards: Sequence[Array], gather_dim: int, split_dim: int) -> list[Array]:
    """Go from shards of ``gather_dim`` to shards of ``split_dim``.

    Every rank splits its shard along ``split_dim``, sends part j to rank j, and concatenates the
    received parts along ``gather_dim`` in group order.
    """
    parts = [equal_parts(x, len(shards), split_dim) for x in shards]
    return [np.concatenate([row[j] for row in parts], axis=gather_dim) for j in range(len(shards))]


def collective_permute(shards: Sequence[Array], shift: int, wrap: bool = False) -> list[Array]:
    """Send the array of rank i to rank i + ``shift``.

    With ``wrap`` they count around the ring; else zeros arrive at the border.
    """
    count = len(shards)
    sources = [(i - shift) % count if wrap else i - shift for i in range(count)]
    return [
        shards[i].copy() if 0 <= i < len(shards) else np.zeros_like(shards[j])
        for j, i in enumerate(sources)
    ]


def exchange(shards: Sequence[Array], shape: tuple[int, ...], src: Side, dst: Side) -> list[Array]:
    """Give every rank its shard under ``dst`` of a tensor placed as ``src``.

    Parameters
    ----------
    shards : sequence of arrays
        The (padded) shard of each rank, in group order.
    shape : tuple of int
        The shape of the full tensor.
    src, dst : Side
        The two ends; their devices are positions in the group. New padding is zero.
    """
    size = [int(n) for n in local_shape(shape, dst[2], dst[0])]
    out = [np.zeros(size, shards[0].dtype) for _ in shards]
    for tile in transfer_tiles(shape, src, dst):
        out[tile.dst][tile.dst_slices()] = shards[tile.src][tile.src_slices()]
    return out


def crossing_elements(call: Collective) -> int:
    """Return the maximum number of elements that a rank receives in an exchange."""
    args: dict[str, Any] = dict(call.args)
    (mesh, _, before), (_, _, after) = args["src"], args["dst"]
    most = 0
    for coords in itertools.product(*(range(n) for n in mesh)):
        have, want = (shard_slices(args["shape"], x, mesh, coords) for x in (before, after))
        overlap = [max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(have, want)]
        most = max(most, math.prod(b - a for a, b in want) - math.prod(overlap))
    return most


def counted_bytes(call: Collective, result: Array) -> int:
    """Return the bytes from which :func:`~.volume.sent_bytes` computes the traffic."""
    if call.name == "exchange":
        return crossing_elements(call) * result.itemsize
    return result.nbytes


def partial(x: Array, position: int, op: str) -> Array:
    """Turn a reduced value into partial terms: the neutral element but at position 0."""
    check_op(op)
    return x.copy() if position == 0 else np.full_like(x, neutral(op, x.dtype))


def axis_index(position: int) -> Array:
    """Return the rank's position in the group, as an int64 array of shape ()."""
    return np.array(position, np.int64)


@dataclass(frozen=True)
class Collective:
    """A collective, in the form that all engines share.

    Attributes
    ----------
    name : str
        Short op name, e.g. ``"all_reduce"``.
    groups : tuple of tuple of int
        Ranks of every group, each in group order.
    args : tuple of (str, value)
        Attributes by name: ``op``, ``dim``, ``gather_dim``, ``split_dim``, ``shift``; of an
        exchange ``shape``, ``src`` and ``dst`` (whose devices are positions in the group).
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    args: tuple[tuple[str, Any], ...] = field(default=())

    def group_of(self, rank: int) -> tuple[int, ...]:
        """Return the group of a rank, or DIST0611."""
        for group in self.groups:
            if rank in group:
                return group
        raise _refuse(
            f"rank {rank} takes part in {self.text()} but is in none of its groups {self.groups}",
            "Run the function on the devices of its mesh.",
        )

    def text(self) -> str:
        """Return the collective as text for messages, such as ``all_gather(dim=0)``."""
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.args)})"


def apply(call: Collective, xs: Sequence[Array], count: int | None = None) -> list[Array]:
    """Return the results of a collective on a group.

    Parameters
    ----------
    call : Collective
    xs : sequence of arrays
        The array of each rank, in group order. ``axis_index`` reads none of them.
    count : int, optional
        Group size when ``xs`` is empty.
    """
    args: dict[str, Any] = dict(call.args)
    size = len(xs) or (count or 0)
    if call.name == "all_reduce":
        return [all_reduce(xs, args["op"])] * size
    if call.name == "all_gather":
        return [all_gather(xs, args["dim"])] * size
    if call.name == "reduce_scatter":
        return reduce_scatter(xs, args["dim"], args["op"])
    if call.name == "all_to_all":
        return all_to_all(xs, args["gather_dim"], args["split_dim"])
    if call.name == "collective_permute":
        return collective_permute(xs, args["shift"], bool(args.get("wrap")))
    if call.name == "exchange":
        return exchange(xs, args["shape"], args["src"], args["dst"])
    if call.name in LOCAL_OPS:
        return [apply_local(call, x, i, size) for i, x in enumerate(xs or [None] * size)]
    raise _refuse(f'unknown collective "{call.name}"', "Report it: this is a bug of the lowering.")


def apply_groups(call: Collective, xs: Mapping[int, Array]) -> dict[int, Array]:
    """Return the results of a collective on all its groups, by rank."""
    out: dict[int, Array] = {}
    for group in call.groups:
        out.update(zip(group, apply(call, [xs[rank] for rank in group])))
    return out


def apply_local(call: Collective, x: Array | None, position: int, count: int) -> Array:
    """Return the result of an op of :data:`~.names.LOCAL_OPS` at a position."""
    args: dict[str, Any] = dict(call.args)
    if call.name == "axis_index":
        return axis_index(position)
    if x is None:
        raise _refuse(f"{call.text()} has no operand", "Report it: this is a bug of the lowering.")
    if call.name == "local_slice":
        return local_slice(x, position, count, args["dim"])
    return partial(x, position, args["op"])
