# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Move and reduce tensors between the ranks of a group.

Data moves as bytes, because gloo and NCCL move types that they cannot reduce. ``"ordered"``
reductions run in rank order, as those of all engines (:mod:`tvm_distir.core.collectives.meaning`),
and give their bits; ``"library"`` reductions are those of gloo or NCCL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.message_steps import SMALL_BYTES, exchanged_tiles
from tvm_distir.support import EngineError

from .torch_job import RankGroup, load_torch

_BOOL_OPS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}


@dataclass(frozen=True)
class PendingCollective:
    """A collective that has been started.

    Attributes
    ----------
    works : tuple of torch.distributed.Work
        What must be waited for.
    complete : callable
        Writes the result once the works are done; returns a collective that follows, if any.
    tensors : tuple of Tensor
        The memory that the works read and write, which must stay until then.
    """

    works: tuple[Any, ...]
    complete: Callable[[], PendingCollective | None]
    tensors: tuple[Any, ...] = ()


def nothing() -> None:
    """Complete a collective whose works write its result."""


def as_bytes(x: Any) -> Any:
    """Return the elements of a contiguous tensor as bytes, without a copy."""
    return x.reshape(-1).view(load_torch().uint8)


def blocks(x: Any, count: int, dim: int) -> Any:
    """Return a view (count, before, n / count, after): the parts along a dim come first.

    Raises
    ------
    EngineError
        DIST0611 where the dim is not divisible.
    """
    n = x.shape[dim]
    if n % count:
        raise EngineError(
            "DIST0611",
            f"dim {dim} of size {n} is not divisible by the {count} ranks of the group",
            remedy=f"Pad it to {-(-n // count) * count} first.",
        )
    after = math.prod(x.shape[dim + 1 :])
    return x.reshape(math.prod(x.shape[:dim]), count, n // count, after).transpose(0, 1)


class Mover:
    """Starts collectives on torch tensors.

    Parameters
    ----------
    reduce : str
        ``"ordered"`` or ``"library"``.
    """

    def __init__(self, reduce: str) -> None:
        self._torch = load_torch()
        self._dist = self._torch.distributed
        self._by_library = reduce == "library"
        # The older names of the two are deprecated since torch 2.13.
        self._gather = getattr(self._dist, "all_gather_single", None) or (
            self._dist.all_gather_into_tensor
        )
        self._scatter = getattr(self._dist, "reduce_scatter_single", None) or (
            self._dist.reduce_scatter_tensor
        )

    # Moves of bytes -------------------------------------------------------------------------

    def gathered(self, x: Any, group: RankGroup, into: Any = None) -> tuple[Any, tuple[Any, ...]]:
        """Start to gather an array (...) of each rank; returns (k, ...) in process order."""
        x = x.contiguous()
        if into is None:
            into = x.new_empty((len(group.ranks), *x.shape))
        if not x.numel():
            return into, ()
        work = self._gather(as_bytes(into), as_bytes(x), group=group.data, async_op=True)
        return into, (work,)

    def swapped(self, parts: Any, group: RankGroup) -> tuple[Any, tuple[Any, ...], Any]:
        """Start to send row j of (k, ...) to rank j.

        Returns
        -------
        rows : Tensor
            The rows that come, (k, ...), in process order.
        works : tuple of Work
        sent : Tensor
            The memory that is sent.
        """
        sent = parts.contiguous()
        if not group.is_ordered:
            positions = group.positions
            sent = sent[[positions.index(i) for i in range(len(positions))]].contiguous()
        rows = self._torch.empty_like(sent)
        if not sent.numel():
            return rows, (), sent
        work = self._dist.all_to_all_single(
            as_bytes(rows), as_bytes(sent), group=group.data, async_op=True
        )
        return rows, (work,), sent

    def _in_order(self, rows: Any, group: RankGroup) -> Any:
        return rows if group.is_ordered else rows[group.positions]

    def routed(
        self, parts: dict[int, Any], sizes: Sequence[int], like: Any, group: RankGroup
    ) -> tuple[dict[int, Any], tuple[Any, ...], Any]:
        """Start to send a flat part to some ranks of a group, and to receive from some.

        Parameters
        ----------
        parts : mapping of position in the group to flat tensor
        sizes : sequence of int
            The number of elements that come from each position.
        like : Tensor
            A tensor of the type.
        """
        order = sorted(range(len(group.ranks)), key=lambda i: group.processes[i])
        empty = like.new_empty(0)
        sent = self._torch.cat([parts.get(i, empty) for i in order])
        landing = like.new_empty(sum(sizes))
        size = like.element_size()
        work = self._dist.all_to_all_single(
            as_bytes(landing),
            as_bytes(sent),
            [sizes[i] * size for i in order],
            [(parts[i].numel() if i in parts else 0) * size for i in order],
            group=group.data,
            async_op=True,
        )
        pieces = landing.split([sizes[i] for i in order])
        return dict(zip(order, pieces)), (work,), (sent, landing)

    # Reductions -----------------------------------------------------------------------------

    def reduced(self, terms: Any, op: str) -> Any:
        """Reduce (k, ...) over its first dim, one term after the other."""
        torch = self._torch
        kind = terms.dtype
        if kind == torch.bool:
            return terms.any(0) if _BOOL_OPS[op] == "max" else terms.all(0)
        step = {
            "sum": torch.add,
            "prod": torch.mul,
            "min": torch.minimum,
            "max": torch.maximum,
        }[op]
        wide = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
        total = terms[0].to(wide)
        for term in terms[1:]:
            total = step(total, term.to(wide))
        return total.to(kind)

    def _library_op(self, op: str, x: Any) -> tuple[Any, Any]:
        """Return a view that the library reduces, and its reduction."""
        ops = self._dist.ReduceOp
        if x.dtype == self._torch.bool:
            x, op = x.view(self._torch.uint8), _BOOL_OPS[op]
        return x, {"sum": ops.SUM, "prod": ops.PRODUCT, "min": ops.MIN, "max": ops.MAX}[op]

    # Collectives ----------------------------------------------------------------------------

    def all_reduce(self, group: RankGroup, x: Any, out: Any, op: str) -> PendingCollective:
        """Start to reduce the operands of all ranks."""
        if self._by_library:
            out.copy_(x)
            view, code = self._library_op(op, out)
            work = self._dist.all_reduce(view, code, group=group.data, async_op=True)
            return PendingCollective((work,), nothing, (out,))
        if x.nbytes <= SMALL_BYTES:
            rows, works = self.gathered(x, group)

            def reduce() -> None:
                out.copy_(self.reduced(self._in_order(rows, group), op))

            return PendingCollective(works, reduce, (x, rows))
        count, n = len(group.ranks), x.numel()
        flat = x.new_zeros(-(-n // count) * count)
        flat[:n] = x.reshape(-1)
        rows, works, sent = self.swapped(flat.view(count, -1), group)

        def gather() -> PendingCollective:
            mine = self.reduced(self._in_order(rows, group), op)
            pieces, works = self.gathered(mine, group)

            def place() -> None:
                out.reshape(-1).copy_(self._in_order(pieces, group).reshape(-1)[:n])

            return PendingCollective(works, place, (mine, pieces))

        return PendingCollective(works, gather, (sent, rows))

    def all_gather(self, group: RankGroup, x: Any, out: Any, dim: int) -> PendingCollective:
        """Start to concatenate the operands of all ranks along a dim."""
        if math.prod(x.shape[:dim]) == 1 and group.is_ordered:
            _, works = self.gathered(x, group, out)  # into the buffer of TVM
            return PendingCollective(works, nothing, (x, out))
        rows, works = self.gathered(x, group)

        def place() -> None:
            self._torch.cat(list(self._in_order(rows, group)), dim, out=out)

        return PendingCollective(works, place, (x, rows))

    def reduce_scatter(
        self, group: RankGroup, x: Any, out: Any, dim: int, op: str
    ) -> PendingCollective:
        """Start to reduce the operands of all ranks, of which each keeps a part along a dim."""
        parts = blocks(x, len(group.ranks), dim).contiguous()
        if self._by_library and group.is_ordered and x.dtype != self._torch.bool:
            _, code = self._library_op(op, out)
            work = self._scatter(
                out.reshape(-1), parts.reshape(-1), code, group=group.data, async_op=True
            )
            return PendingCollective((work,), nothing, (parts, out))
        rows, works, sent = self.swapped(parts, group)

        def reduce() -> None:
            out.copy_(self.reduced(self._in_order(rows, group), op).reshape(out.shape))

        return PendingCollective(works, reduce, (sent, rows))

    def all_to_all(
        self, group: RankGroup, x: Any, out: Any, gather_dim: int, split_dim: int
    ) -> PendingCollective:
        """Start to go from shards of a dim to shards of another one."""
        count = len(group.ranks)
        rows, works, sent = self.swapped(blocks(x, count, split_dim), group)
        shape = list(x.shape)
        shape[split_dim] //= count

        def place() -> None:
            parts = [row.reshape(shape) for row in self._in_order(rows, group)]
            self._torch.cat(parts, gather_dim, out=out)

        return PendingCollective(works, place, (sent, rows))

    def collective_permute(
        self, group: RankGroup, x: Any, out: Any, position: int, shift: int, wrap: bool
    ) -> PendingCollective:
        """Start to send the operand of position i to position i + shift."""
        count = len(group.ranks)
        to, source = position + shift, position - shift
        if wrap:
            to, source = to % count, source % count
        parts = {to: x.reshape(-1)} if 0 <= to < count else {}
        sizes = [x.numel() if i == source else 0 for i in range(count)]
        pieces, works, buffers = self.routed(parts, sizes, x, group)

        def place() -> None:
            if 0 <= source < count:
                out.copy_(pieces[source].reshape(out.shape))
            else:
                out.zero_()

        return PendingCollective(works, place, buffers)

    def exchange(
        self, group: RankGroup, x: Any, out: Any, position: int, transfer: Transfer
    ) -> PendingCollective:
        """Start to send and receive the tiles of a transfer whose ranks are positions."""
        tiles, boxes = exchanged_tiles(transfer, position, x)
        parts = {i: self._torch.cat(pieces) for i, pieces in tiles.items()}
        sizes = [sum(out[box].numel() for box in boxes.get(i, [])) for i in range(len(group.ranks))]
        pieces, works, buffers = self.routed(parts, sizes, x, group)

        def place() -> None:
            out.zero_()
            for source, targets in boxes.items():
                ends = pieces[source].split([out[box].numel() for box in targets])
                for box, piece in zip(targets, ends):
                    out[box] = piece.reshape(out[box].shape)

        return PendingCollective(works, place, buffers)

    # What needs no other rank ---------------------------------------------------------------

    def local_slice(self, x: Any, out: Any, position: int, count: int, dim: int) -> None:
        """Write a part of ``count`` equal parts along a dim."""
        out.copy_(blocks(x, count, dim)[position].reshape(out.shape))

    def partial(self, x: Any, out: Any, position: int, op: str) -> None:
        """Write the operand at position 0, the neutral element of the reduction elsewhere."""
        if position == 0:
            out.copy_(x)
        elif op in ("sum", "prod"):
            out.fill_(op == "prod")
        elif out.dtype == self._torch.bool:
            out.fill_(op == "min")
        elif out.dtype.is_floating_point:
            out.fill_(math.inf if op == "min" else -math.inf)
        else:
            info = self._torch.iinfo(out.dtype)
            out.fill_(info.max if op == "min" else info.min)
