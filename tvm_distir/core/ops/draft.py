# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines the input of a rule writer (``CallShape``) and the draft on which it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ops.kernel_classes import KERNEL_CLASSES
from tvm_distir.support import PropagationError

from .dims import Shape, elements, same, size_bytes
from .factor import KINDS, REDUCING, Factor, Rule, Work

if TYPE_CHECKING:
    from tvm import ir


@dataclass(frozen=True)
class CallShape:
    """Shapes, types and attributes of a call: all that a rule may depend on.

    Attributes
    ----------
    op : str
        Name of the op.
    attrs : object
        The call's attributes.
    ins, outs : tuple of shapes
        Shapes of the flattened tensor operands and results.
    in_dtypes, out_dtypes : tuple of str
        The dtypes of the operands and of the results.
    args : tuple
        The arguments: for a tensor or a tuple of tensors, the tuple of its flattened operand
        numbers; otherwise its plain value (number, or tuple of numbers for shapes).
    """

    op: str
    attrs: Any
    ins: tuple[Shape, ...]
    outs: tuple[Shape, ...]
    in_dtypes: tuple[str, ...]
    out_dtypes: tuple[str, ...]
    args: tuple[Any, ...]

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is an int, an array of ints, or nothing as a list."""
        value = getattr(self.attrs, name)
        if value is None:
            return None
        return (int(value),) if isinstance(value, int) else tuple(int(x) for x in value)

    def axes(self, name: str, ndim: int) -> tuple[int, ...]:
        """Return the axes an attribute names, counted from the front; all axes when it is None."""
        value = self.integers(name)
        return tuple(range(ndim)) if value is None else tuple(x % ndim for x in value)

    @property
    def floats(self) -> bool:
        """Return whether the first result holds floating-point numbers."""
        return "float" in self.out_dtypes[0]


class Draft:
    """Collects the factors of a call and turns them into a checked :class:`Rule`.

    A dim of extent 1 cannot be sharded: :meth:`tie` leaves it out, so operands that are broadcast
    need no special case.

    Parameters
    ----------
    call : CallShape
    source : str
        Where the rule comes from: ``hand`` or ``derived``.
    why : str
        Why the dims of no factor are not sharded.
    """

    def __init__(
        self, call: CallShape, source: str = "hand", why: str = "the op's rule does not shard it"
    ) -> None:
        self.call, self.source, self.default_why = call, source, why
        self._factors: list[Factor] = []
        self._linear: list[tuple[int, ...]] = []
        self._why: dict[tuple[str, int, int], str] = {}
        self._bound_dims: set[tuple[str, int, int]] = set()
        self._flops = 0
        self._in_bytes: dict[int, int] = {}
        self._out_bytes: dict[int, int] = {}
        self._kernel_class = "memory"

    def _fault(self, problem: str) -> PropagationError:
        remedy = "Correct the sharding rule."
        return PropagationError(
            "DIST0403", problem, location=f"rule of {self.call.op}", remedy=remedy
        )

    def tie(
        self,
        ins: Mapping[int, int],
        outs: Mapping[int, int],
        kind: str = "map",
        *,
        size: int | ir.Expr | None = None,
        comm_bytes: int = 0,
        uneven: bool = True,
        rescale: bool = False,
        apart: bool = False,
        adjacent: bool = False,
        kernels: int = 0,
        passes: int = 0,
    ) -> None:
        """Add a factor: operand dims and result dims that are sharded together.

        Parameters
        ----------
        ins, outs : mapping of int to int
            Operand (result) number to its dim. A reduced operand dim has no result dim.
        kind : str
            See :class:`Factor`.
        size : int or Expr, optional
            The maximum number of blocks, where the extents differ. The extents of a halo need not
            be multiples of it (see :func:`.halo.most_blocks`).
        comm_bytes : int
            Payload inside the call (halo, stat).
        uneven : bool
            False forbids padding even where the extents agree.
        rescale : bool
            See :class:`Factor`.
        apart : bool
            Rows of neighbours are exchanged: each tied dim is split into padded blocks of its
            extent, whatever the size.
        adjacent : bool
            See :class:`Factor`; what is ``apart`` is adjacent too.
        kernels, passes : int
            See :class:`Factor`.

        Raises
        ------
        PropagationError
            DIST0403 when a dim does not exist, is in two factors, or extents disagree.
        """
        if kind not in KINDS:
            raise self._fault(f'unknown factor kind "{kind}"')
        ties: list[tuple[str, int, int, Any]] = []
        for side, dims, shapes in (("in", ins, self.call.ins), ("out", outs, self.call.outs)):
            for number, dim in dims.items():
                if not 0 <= number < len(shapes) or not 0 <= dim < len(shapes[number]):
                    raise self._fault(f"there is no {side}{number}.dim{dim}")
                extent = shapes[number][dim]
                if not (isinstance(extent, int) and extent == 1):
                    ties.append((side, number, dim, extent))
        if not ties or (isinstance(size, int) and size == 1):
            return
        even = all(same(ties[0][3], k[3]) for k in ties[1:])
        if size is None:
            if not even:
                raise self._fault(
                    "equivalent dims have different extents: "
                    + ", ".join(f"{s}{i}.dim{d} is {n}" for s, i, d, n in ties)
                )
            size = ties[0][3]
        for side, number, dim, _ in ties:
            if (side, number, dim) in self._bound_dims:
                raise self._fault(f"{side}{number}.dim{dim} is in two factors")
            self._bound_dims.add((side, number, dim))
        where = {(side, number): dim for side, number, dim, _ in ties}
        pads = uneven and even and isinstance(size, int) and ties[0][3] == size
        pads = pads or (uneven and apart)
        dims_in = tuple(where.get(("in", i)) for i in range(len(self.call.ins)))
        dims_out = tuple(where.get(("out", i)) for i in range(len(self.call.outs)))
        costs = (comm_bytes, pads, rescale, apart or adjacent, kernels, passes)
        self._factors.append(Factor(size, dims_in, dims_out, kind, *costs))

    def tie_each(
        self,
        ndim: int,
        ins: Iterable[int] = (0,),
        outs: Iterable[int] = (0,),
        without: int | None = None,
    ) -> Draft:
        """Tie each dim of the first operand, or of others, to the same dim of results.

        ``without`` is a dim of which no factor is made.
        """
        operands, results = tuple(ins), tuple(outs)
        for d in range(ndim):
            if d != without:
                self.tie(dict.fromkeys(operands, d), dict.fromkeys(results, d))
        return self

    def replicate(self, side: str, number: int, dim: int, why: str) -> None:
        """Record why a dim cannot be sharded (the first reason given stays)."""
        self._why.setdefault((side, number, dim), why)

    def linear(self, *groups: Sequence[int]) -> Draft:
        """Add operand groups in which the call is linear: f(sum of terms) = sum of f(terms)."""
        self._linear.extend(tuple(g) for g in groups)
        return self

    def work(
        self,
        flops: int = 0,
        kernel_class: str = "memory",
        in_bytes: Mapping[int, int] | None = None,
        out_bytes: Mapping[int, int] | None = None,
    ) -> Draft:
        """Set the work; bytes only of operands that are not read (written) in full exactly once."""
        if kernel_class not in KERNEL_CLASSES:
            raise self._fault(f'unknown kernel class "{kernel_class}"')
        self._flops, self._kernel_class = flops, kernel_class
        self._in_bytes = dict(in_bytes or {})
        self._out_bytes = dict(out_bytes or {})
        return self

    def per_element(self, count: int = 1) -> Draft:
        """Set the work to ``count`` operations per element of the first result."""
        return self.work(count * elements(self.call.outs[0]) if self.call.outs else 0)

    def rule(self) -> Rule:
        """Return the finished rule."""
        call = self.call
        in_bytes = tuple(size_bytes(s, t) for s, t in zip(call.ins, call.in_dtypes))
        out_bytes = tuple(size_bytes(s, t) for s, t in zip(call.outs, call.out_dtypes))
        view = self._kernel_class == "view"
        read = tuple(0 if view else self._in_bytes.get(i, b) for i, b in enumerate(in_bytes))
        written = tuple(0 if view else self._out_bytes.get(i, b) for i, b in enumerate(out_bytes))
        work = Work(self._flops, read, written, self._kernel_class)
        why: dict[str, str] = {}
        for side, shapes in (("in", call.ins), ("out", call.outs)):
            for number, shape in enumerate(shapes):
                for dim, extent in enumerate(shape):
                    if (side, number, dim) in self._bound_dims:
                        continue
                    is_unit = isinstance(extent, int) and extent == 1
                    reason = self._why.get((side, number, dim), self.default_why)
                    why[f"{side}{number}.dim{dim}"] = "its extent is 1" if is_unit else reason
        for group in self._linear:
            if not group or not all(0 <= i < len(call.ins) for i in group):
                raise self._fault(f"linear group {group} names operands the call does not have")
        for factor in self._factors:
            present = [d is not None for d in factor.outs]
            if factor.kind in REDUCING and any(present) and (factor.kind != "sum" or all(present)):
                raise self._fault(f"a {factor.kind} factor contains a result dim")
        parts = (tuple(self._factors), tuple(self._linear), self._flops)
        return Rule(call.op, *parts, in_bytes, out_bytes, why, work, self.source)
