# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents a sharding rule: factors, linear operand groups, and the work of the call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import ir

#: Kinds of a factor whose results are terms of a reduction.
REDUCING = ("sum", "max", "min", "prod")
#: All kinds of a factor.
KINDS = ("map", *REDUCING, "halo", "stat")


@dataclass(frozen=True)
class Factor:
    """An iteration space of a call that the devices of a mesh axis may split into blocks.

    Attributes
    ----------
    size : int or tvm Expr
        The maximum number of equal blocks of the space: a mesh axis of n devices needs ``size % n
        == 0`` (or ``uneven``). For dims tied elementwise it is their extent; a tied dim of extent m
        times the size is sharded into blocks of whole m's. The extents of a halo are not
        restricted, see :func:`.halo.most_blocks`.
    ins, outs : tuple of int or None
        The dim of each flattened tensor operand and result that walks the space; None: replicated.
    kind : str
        ``map``: each device computes its block of the results. ``sum``, ``max``, ``min``,
        ``prod``: each device computes a term of that reduction; of a ``sum``, results with a dim
        are blocks, as of a map. ``halo``: as map, with neighbour
        rows exchanged. ``stat``: as map, with statistics reduced inside the call; a result that
        is such a statistic is complete.
    comm_bytes : int
        Bytes exchanged inside the whole call: a halo's rows (also those that a ``sum`` over a
        spatial dim reads of its neighbours), or either of two statistics (of a
        softmax, maximum and sum) that are reduced. What gathers or scans instead is priced so.
    uneven : bool
        Whether an extent that does not divide may be padded.
    rescale : bool
        A ``sum`` whose terms are means of their part: each is multiplied by
        (extent of the part / whole extent) before it is summed.
    adjacent : bool
        Whether the call reads across the borders of shards, so that no padding may lie between
        them: a single mesh axis may shard an uneven extent, several may not.
    kernels, passes : int
        The cost of a ``stat``: how many kernels of the first operand's size a device runs in place
        of a single kernel, and how often they read or write as much; 0 where the cost stays about
        the same.
    """

    size: int | ir.Expr
    ins: tuple[int | None, ...]
    outs: tuple[int | None, ...]
    kind: str = "map"
    comm_bytes: int = 0
    uneven: bool = False
    rescale: bool = False
    adjacent: bool = False
    kernels: int = 0
    passes: int = 0

    @property
    def reduces(self) -> bool:
        """Return whether results are partial results of a reduction."""
        return self.kind in REDUCING

    def leaves_terms(self, result: int) -> bool:
        """Return whether a result is a partial result of a reduction."""
        return self.reduces and self.outs[result] is None


@dataclass(frozen=True)
class Work:
    """Cost of executing a call on a device.

    Attributes
    ----------
    flops : int
        Arithmetic operations (a multiply-add counts two).
    in_bytes, out_bytes : tuple of int
        Bytes really read of each flattened operand and written of each result: a table look-up
        reads the rows it takes, a view nothing.
    kernel_class : str
        The class, from :data:`tvm_distir.core.ops.kernel_classes.KERNEL_CLASSES`.
    """

    flops: int
    in_bytes: tuple[int, ...]
    out_bytes: tuple[int, ...]
    kernel_class: str = "memory"


@dataclass(frozen=True)
class Rule:
    """Sharding rule of a call along a mesh axis.

    Attributes
    ----------
    op : str
        Name of the op, or of the PrimFunc of a ``call_tir``.
    factors : tuple of Factor
        The factors. Along a mesh axis a call follows at most a single factor. Each dim is in at
        most a single factor.
    linear : tuple of tuple of int
        Operand groups: when all operands of a group are partial sums and the others are not
        sharded, the results are partial sums.
    flops : int
        Arithmetic operations of the whole call.
    in_bytes, out_bytes : tuple of int
        Sizes of the operands and results in bytes. (``work`` has what the kernel moves.)
    why_replicated : mapping of str to str
        The reason why a dim in no factor must be replicated, by ``in0.dim1`` or ``out0.dim2``.
    work : Work
        The work of the call.
    source : str
        ``hand`` or ``derived`` (from TIR).
    """

    op: str
    factors: tuple[Factor, ...]
    linear: tuple[tuple[int, ...], ...]
    flops: int
    in_bytes: tuple[int, ...]
    out_bytes: tuple[int, ...]
    why_replicated: Mapping[str, str]
    work: Work = field(default_factory=lambda: Work(0, (), ()))
    source: str = "hand"

    def moved_bytes(self, sizes: Sequence[int]) -> int:
        """Return the bytes that a device reads and writes.

        A look-up reads as many bytes of its table per byte of its result as the whole call does.

        Parameters
        ----------
        sizes : sequence of int
            Bytes of the device's operands, then of its results.
        """
        total = sum(sizes)
        if self.work.kernel_class == "gather":
            part, largest = sum(sizes[len(self.in_bytes) :]), max(sum(self.out_bytes), 1)
            for size, full, read in zip(sizes, self.in_bytes, self.work.in_bytes):
                if read < full:
                    total -= max(0, size - read * part // largest)
        return total

    @functools.cached_property
    def ties(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return the (slot, dim) pairs of each factor; slots are the operands, then the results."""
        return tuple(
            tuple((slot, d) for slot, d in enumerate((*f.ins, *f.outs)) if d is not None)
            for f in self.factors
        )

    @functools.cached_property
    def summing(self) -> int:
        """Return a bit mask; bit i is set when factor i leaves sums that may be reduced later."""
        return sum(1 << i for i, f in enumerate(self.factors) if f.kind == "sum")

    @functools.cached_property
    def carrying(self) -> tuple[int, ...]:
        """Return the operands whose partial sums the results may carry on."""
        return tuple(sorted({i for group in self.linear for i in group}))
