# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Determines which operands are indices, their allowed range, and which inputs must respect it.

:func:`index_range` is the table of the ops. ``verify`` draws the indices of a module inside of
it; :func:`input_index_ranges` follows the inputs of a function to it, and a run refuses inputs
that are outside (``bind_inputs``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.branches import branch_of
from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.operators.paged_attention_ops import CACHE_OPS, KV_APPEND_OP
from tvm_distir.core.ir.types import flat_types, known_shape, named_leaves, tensor_type
from tvm_distir.support import GenericConst, Steps, unrolled

_VIEWS = frozenset(
    relax_names(
        "astype broadcast_to expand_dims flatten permute_dims reshape squeeze "
        "dist.annotate_sharding dist.redistribute dist.all_gather dist.all_to_all dist.exchange "
        "dist.local_slice dist.send dist.recv"
    )
)
"""Ops whose result holds every element of operand 0, and nothing else."""


@dataclass(frozen=True)
class IndexRange:
    """Allowed range of the indices of an operand.

    Attributes
    ----------
    low, high : int
        The bounds of the indices, which are in ``[low, high)``.
    ignored : int, optional
        A number outside that is allowed all the same.
    strict : bool
        Whether the op reads elsewhere for other indices; False where it clips or masks them.
    """

    low: int
    high: int
    ignored: int | None = None
    strict: bool = True

    def intersect(self, other: IndexRange) -> IndexRange:
        """Return the range that both allow, for indices with two uses."""
        same = self.ignored if self.ignored == other.ignored else None
        return IndexRange(max(self.low, other.low), min(self.high, other.high), same)

    def numbers(self) -> tuple[int, ...]:
        """Return ``low``, ``high`` and, if set, the ignored index: an item of ``dist.io``."""
        return (self.low, self.high, *(() if self.ignored is None else (self.ignored,)))


def sizes_of(expr: ir.Expr) -> tuple[int, ...]:
    """Return the static shape of an operand, () when unknown."""
    shape = known_shape(expr.ty) if getattr(expr, "ty", None) is not None else None
    return shape or ()


def index_range(call: ir.Call, operand: int, leaf: int = 0) -> IndexRange | None:
    """Return the allowed range of the indices in an operand; None where it holds no indices.

    Parameters
    ----------
    call : ir.Call
        A call of an op, with global types.
    operand : int
    leaf : int
        Number of the tensor in an operand that is a tuple.
    """
    name = str(call.op.name) if isinstance(call.op, ir.Op) else ""
    data = sizes_of(call.args[0]) if call.args else ()
    if name in ("relax.nn.nll_loss", "relax.grad.nll_loss_backward"):
        first = int(name == "relax.grad.nll_loss_backward")
        classes = sizes_of(call.args[first])
        if operand != first + 1 or not classes:
            return None
        return IndexRange(0, classes[min(1, len(classes) - 1)], int(call.attrs.ignore_index))
    if name == "relax.one_hot":
        return IndexRange(0, int(call.attrs.depth), strict=False) if operand == 0 else None
    if operand == 2 and name == "relax.grad.take_backward":
        table, axis = sizes_of(call.args[1]), call.attrs.axis
        return _along(table, axis, 0)
    if name in CACHE_OPS:
        return _paged(call, operand)
    if operand != 1 or not data:
        return None
    if name == "relax.take":
        return _along(data, call.attrs.axis, 0, str(call.attrs.mode) == "fast")
    if name == "relax.gather_elements":
        return _along(data, call.attrs.axis, 0)
    if name == "relax.scatter_elements":  # TVM's kernel counts negative ones from the end
        return _along(data, call.attrs.axis, 1)
    if name == "relax.index_tensor":
        return IndexRange(0, data[leaf])
    if name == "relax.index_put":
        return IndexRange(-data[leaf], data[leaf])
    if name in ("relax.gather_nd", "relax.scatter_nd"):
        # A row of the operand names several dims: of which of them an element is, is not followed.
        first = int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
        dims = data[first : first + (sizes_of(call.args[1]) or (1,))[-1]]
        return IndexRange(0, min(dims, default=0), strict=len(set(dims)) == 1)
    return None


def _paged(call: ir.Call, operand: int) -> IndexRange | None:
    """Return the range of the pages, or of the lengths, of an op on a paged cache."""
    appends = str(call.op.name) == KV_APPEND_OP
    cache, new = sizes_of(call.args[0 if appends else 1]), sizes_of(call.args[1 if appends else 0])
    positions = 2 if appends else 3
    pages = sizes_of(call.args[positions])
    if operand not in (positions, positions + 1) or not (cache and new and pages):
        return None
    if operand == positions:
        return IndexRange(0, cache[1])
    return IndexRange(0, pages[1] * int(call.attrs["page_size"]) - new[1] + 1)


def _along(
    data: tuple[int, ...], axis: int | ir.Expr, below: int, strict: bool = True
) -> IndexRange | None:
    if not data:
        return None
    size = math.prod(data) if axis is None else data[int(axis)]
    return IndexRange(-size * below, size, strict=strict)


@dataclass(frozen=True)
class _Held:
    """The value of a variable: a full parameter, with ``below`` counted from the end.

    Attributes
    ----------
    number : int
        The number of the tensor among the flattened parameters.
    below : int
        The number that was added to negative elements.
    """

    number: int
    below: int = 0


class _Walker:
    """Follows integers from the parameters of functions, through each private function once."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.functions = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
        self.done: dict[str, dict[int, IndexRange]] = {}

    def ranges(self, fn: relax.Function) -> dict[int, IndexRange]:
        """Return the ranges by the number of the tensor among the flattened parameters."""
        return unrolled(self._ranges(fn))

    def _ranges(self, fn: relax.Function) -> Steps[dict[int, IndexRange]]:
        walk = _FunctionWalk(self)
        number = 0
        for param in unpack(fn.params):
            leaves = flat_types(param.ty)
            walk.declare(param, number)
            number += len(leaves)
        if walk.stored or walk.tuples:
            yield from walk.sequence(fn.body)
        return walk.ranges

    def of_private(self, name: str) -> Steps[dict[int, IndexRange]]:
        """Return ranges of a callee's parameters; none for kernels, branches and recursion."""
        fn = self.functions.get(name)
        if not isinstance(fn, relax.Function) or branch_of(fn) is not None:
            return {}
        if name not in self.done:
            self.done[name] = {}
            self.done[name] = yield from self._ranges(fn)
        return self.done[name]


class _FunctionWalk:
    """Follows the integer parameters of a function through its bindings.

    Only what always happens counts: neither slices, of which the rest may hold anything, nor the
    branches of an ``If``, nor what is chosen by a condition.
    """

    def __init__(self, owner: _Walker) -> None:
        self.owner = owner
        self.stored: dict[ir.Expr, _Held] = {}
        self.tuples: dict[ir.Expr, int] = {}
        self.definitions: dict[Any, Any] = {}
        self.negative: dict[Any, Any] = {}
        self.moved: dict[Any, tuple[Any, int]] = {}
        self.ranges: dict[int, IndexRange] = {}

    def declare(self, param: relax.Var, number: int) -> None:
        """Follow a parameter that is a tensor of integers, or a tuple of tensors."""
        if isinstance(param.ty, relax.TupleType):
            if all(tensor_type(field) is not None for field in unpack(param.ty.fields)):
                self.tuples[param] = number
            return
        tensor: Any = tensor_type(param.ty)
        if tensor is not None and "int" in str(tensor.dtype):
            self.stored[param] = _Held(number)

    def sequence(self, body: relax.SeqExpr) -> Steps[None]:
        for block in getattr(body, "blocks", []):
            for binding in unpack(block.bindings):
                value = getattr(binding, "value", None)
                if isinstance(value, ir.Call):
                    yield from self._call(binding.var, value)
                elif isinstance(value, relax.Tuple):
                    self.definitions[binding.var] = value
                elif isinstance(value, relax.TupleGetItem):
                    self._field(binding.var, value)
                elif isinstance(value, relax.Var) and value in self.stored:
                    self.stored[binding.var] = self.stored[value]

    def _field(self, var: relax.Var, item: ir.Expr) -> None:
        source = self.definitions.get(item.tuple_value)
        if source is not None and source.fields[int(item.index)] in self.stored:
            self.stored[var] = self.stored[source.fields[int(item.index)]]
        start, tensor = self.tuples.get(item.tuple_value), tensor_type(item.ty)
        if start is not None and tensor is not None and "int" in str(tensor.dtype):
            self.stored[var] = _Held(start + int(item.index))

    def _call(self, var: relax.Var, call: ir.Call) -> Steps[None]:
        args = [
            self.definitions.get(arg, arg) if isinstance(arg, relax.Var) else arg
            for arg in call.args[:]
        ]
        followed = (isinstance(arg, relax.Tuple) or arg in self.stored for arg in args)
        if not args or not any(followed):
            return
        if isinstance(call.op, ir.GlobalVar):
            yield from self._called(call, args)
            return
        name = str(call.op.name) if isinstance(call.op, ir.Op) else ""
        if name in _VIEWS and args[0] in self.stored:
            self.stored[var] = self.stored[args[0]]
        elif name == "relax.less" and _number(args[1]) == 0:
            self.negative[var] = args[0]
        elif name == "relax.add" and (size := _number(args[1])) is not None:
            self.moved[var] = (args[0], size)
        elif name == "relax.where":
            self._chosen(var, *args)
        else:
            for operand, leaf, tensor in _tensors(args):
                self._used(tensor, index_range(call, operand, leaf))

    def _chosen(self, var: relax.Var, condition: Any, moved: Any, other: Any) -> None:
        """Match ``where(x < 0, x + size, x)``: negative indices count from the end."""
        source, size = self.moved.get(moved, (None, 0))
        tested = self.negative.get(condition)
        if other in self.stored and tested is not None and source is not None:
            if other.same_as(source) and other.same_as(tested):
                self.stored[var] = _Held(self.stored[other].number, size)

    def _called(self, call: ir.Call, args: Sequence[ir.Expr]) -> Steps[None]:
        number = 0
        ranges = yield self.owner.of_private(str(call.op.name_hint))
        for _, _, tensor in _tensors(args):
            self._used(tensor, ranges.get(number))
            number += len(flat_types(tensor.ty))

    def _used(self, tensor: ir.Expr, allowed: IndexRange | None) -> None:
        stored_range = self.stored.get(tensor) if isinstance(tensor, relax.Var) else None
        if stored_range is None or allowed is None or not allowed.strict:
            return
        allowed = IndexRange(min(allowed.low, -stored_range.below), allowed.high, allowed.ignored)
        cached = self.ranges.get(stored_range.number)
        self.ranges[stored_range.number] = allowed if cached is None else cached.intersect(allowed)


def _tensors(args: Sequence[ir.Expr]) -> Iterator[tuple[int, int, Any]]:
    for operand, arg in enumerate(args):
        for leaf, tensor in enumerate(arg.fields if isinstance(arg, relax.Tuple) else [arg]):
            yield operand, leaf, tensor


def _number(expr: ir.Expr) -> int | None:
    """Return the integer of a uniform constant, else None."""
    if not isinstance(expr, GenericConst):
        return None
    values = expr.value.numpy()
    if values.dtype.kind not in "iu" or values.size == 0 or values.min() != values.max():
        return None
    return int(values.flat[0])


def input_index_ranges(mod: ir.IRModule, fn: relax.Function) -> dict[tuple[int, str], IndexRange]:
    """Return the range that each input of a function must be in where it is always an index.

    Parameters
    ----------
    mod : IRModule
        The module, at levels 1 to 4; its private functions are followed.
    fn : relax.Function
        A function of the module.

    Returns
    -------
    dict of (int, str) to IndexRange
        The ranges by the position of a parameter, and by what the name of its tensor has beyond the
        parameter's (:func:`~.types.named_leaves`). Inputs behind a condition, a slice or arithmetic
        are left out: their computed indices are masked in the kernels.
    """
    ranges = _Walker(mod).ranges(fn)
    leaves = [
        (position, suffix)
        for position, param in enumerate(fn.params)
        for suffix, _ in named_leaves("", param.ty)
    ]
    return {leaves[number]: allowed for number, allowed in ranges.items()}
