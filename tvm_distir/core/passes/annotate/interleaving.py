# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a function for parameters whose segments are interleaved.

Before, with a fused weight ``(12, 8)`` of the segments 4, 4 and 4::

    qkv = R.matmul(x, R.permute_dims(qkv_proj_weight))          # (2, 12)
    split = R.split(qkv, [4, 8], axis=1)

After, with the weight interleaved for two parts, in the order ``q0 k0 v0 q1 k1 v1``::

    qkv = R.matmul(x, R.permute_dims(qkv_proj_weight))          # interleaved as well
    parts = R.reshape(qkv, (2, 2, 6))
    pieces = R.split(parts, [2, 4], axis=2)
    split = (R.reshape(pieces[0], (2, 4)), ...)                 # q, k and v in their order

The function computes what it did, given the interleaved weight. Sharded along the parts, both
reshapes and the split are local. An op that cannot work in the interleaved order gets its operand
back in the original one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr

from tvm_distir.core.ir.segments import SEGMENTS_ATTR, Segments
from tvm_distir.core.ir.types import is_private, static_shape, tensor_type
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.packed import (
    FUSED_ATTENTION,
    INTERLEAVED_ATTENTION,
    is_packed_call,
    packed_args,
    packed_name,
)
from tvm_distir.core.ops.registration import SAME_OP
from tvm_distir.core.ops.registry import registration_of
from tvm_distir.core.rewriting.calls import (
    TIR_CALLS,
    called_name,
    leaves_of,
    rebuild,
    tuple_of,
)
from tvm_distir.core.rewriting.substitute import rebound, substitute, variables
from tvm_distir.core.rewriting.writer import BlockWriter, with_body
from tvm_distir.support import PropagationError

_SPLIT = "relax.split"
_BLOCKWISE = ("relax.expand_dims", "relax.reshape", "relax.squeeze")
"""Ops whose local form depends on the shape of a shard, not on its position."""
SUFFIX = "_interleaved"
Version = Callable[[Any, tuple[tuple[int, Segments], ...]], Any]
"""A function of a GlobalVar and the orders of arguments, which returns a GlobalVar or None."""


def interleave(
    fn: relax.Function,
    mod: ir.IRModule,
    segments_of: Mapping[int, Segments],
    named: Collection[Any] = (),
    version: Version | None = None,
) -> relax.Function:
    """Return a function that takes some parameters with interleaved segments.

    Parameters
    ----------
    fn : Function
    mod : IRModule
        Holds the kernels that the function calls.
    segments_of : mapping of int to Segments
        The interleaved parameters by position.
    named : collection of Var
        Variables that stay, because rules name them. Others of which the value is interleaved get
        another name, since it is not the value of the original function.
    version : callable, optional
        Returns the version of a called function that takes some arguments interleaved.
    """
    rewritten = _Interleaver(mod, named, version).run(fn, segments_of)
    if is_private(fn):
        return rewritten
    rows = {str(fn.params[position].name): s.to_list() for position, s in segments_of.items()}
    return rewritten.with_attr(SEGMENTS_ATTR, rows)


class _Interleaver:
    """A rewriter that tracks which values are interleaved."""

    def __init__(self, mod: ir.IRModule, named: Collection[Any], version: Version | None) -> None:
        self.mod, self.named, self.version = mod, named, version
        self.orders: dict[Any, Segments] = {}  # of new variables
        self.fields: dict[Any, list[Segments | None]] = {}  # of new variables that are tuples
        self.env: dict[Expr, Expr] = {}
        self.restored: dict[Any, Any] = {}
        self.new_values: dict[Any, Any] = {}  # reshapes and joins, by their new variables
        self.heads: dict[tuple[int, ...], int] = {}  # parts by the sizes of segments
        self.writer = BlockWriter(relax.BlockBuilder(), False)

    def run(self, fn: relax.Function, segments_of: Mapping[int, Segments]) -> relax.Function:
        """Return the rewritten function."""
        self.orders = {fn.params[i]: segments for i, segments in segments_of.items()}
        self.heads = {segments.sizes: segments.parts for segments in segments_of.values()}
        blocks = []
        for block in fn.body.blocks[:]:
            self.writer = BlockWriter(self.writer.builder, isinstance(block, relax.DataflowBlock))
            self.restored = {}
            for binding in block.bindings[:]:
                self._binding(binding)
            blocks.append(self.writer.block())
        self.writer, self.restored = BlockWriter(self.writer.builder, False), {}
        result = self._restored(substitute(fn.body.body, self.env))
        blocks.append(self.writer.block())
        return with_body(fn, list(fn.params), blocks, result, bool(fn.is_pure))

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, substitute(binding.value, self.env)
        attends = is_packed_call(value) and packed_name(value) == FUSED_ATTENTION
        if attends:
            self._attention(var, value)
            return
        if type(value) is ir.Call and called_name(value) in ("relax.reshape", "relax.concat"):
            self.new_values[var] = value
        read = [x for x in variables(value) if x in self.orders or x in self.fields]
        if type(binding) is relax.MatchCast or not read:
            self.writer.bindings.append(rebound(binding, self._restored(value)))
            return
        if isinstance(value, relax.Var):
            self._keep(var, value, self.orders.get(value), self.fields.get(value))
        elif type(value) is relax.TupleGetItem and value.tuple_value in self.fields:
            self._keep(var, value, self.fields[value.tuple_value][int(value.index)])
        elif type(value) is ir.Call and called_name(value) == _SPLIT:
            self._split(var, value)
        elif type(value) is ir.Call and type(value.op) is ir.GlobalVar:
            self._keep(var, self._called(value), None)
        else:
            order = self._order(value, var.ty) if type(value) is ir.Call else None
            value = value if order is not None else self._restored(value)
            self._keep(var, value, order)

    def _keep(
        self,
        var: relax.Var,
        value: Any,
        order: Segments | None,
        fields: list[Segments | None] | None = None,
    ) -> None:
        """Bind a variable, and note the order of its value."""
        new = var
        if order is not None and var not in self.named:
            new = self.env[var] = type(var)(f"{var.name}{SUFFIX}", var.ty)
        self.writer.bind(new, value)
        if order is not None:
            self.orders[new] = order
        if fields is not None:
            self.fields[new] = fields

    def _called(self, call: ir.Call) -> Any:
        """Return the call of the version of a function that takes interleaved arguments."""
        args = call.args[:]
        orders = {
            i: self.orders[arg]
            for i, arg in enumerate(args)
            if isinstance(arg, relax.Var) and arg in self.orders
        }
        called = self.version(call.op, tuple(orders.items())) if self.version and orders else None
        if called is None:
            return self._restored(call)
        args = [arg if i in orders else self._restored(arg) for i, arg in enumerate(args)]
        return rebuild(call, called, args, call.ty)

    # -- ops in the interleaved order

    def _order(self, call: ir.Call, ty: ir.Type) -> Segments | None:
        """Return the order of the result of a call on interleaved operands, None if it has none.

        A factor of the rule along which blocks are computed alike and independently may be
        traversed in any order of whole blocks.
        """
        name = called_name(call)
        if not isinstance(call.op, ir.Op) or tensor_type(ty) is None:
            return None
        registration = None if name in TIR_CALLS else registration_of(name)
        if (
            registration is not None
            and registration.local not in (None, SAME_OP)
            and name not in _BLOCKWISE
        ):
            return None
        try:
            rule = rule_of(call, self.mod, ty)
        except PropagationError:  # propagation reports it
            return None
        operands = [leaf for arg in call.args[:] for leaf in leaves_of(arg)]
        operands = [leaf for leaf in operands if tensor_type(leaf[2]) is not None]
        if len(operands) != len(rule.in_bytes):
            return None
        orders = [self.orders.get(x) if isinstance(x, relax.Var) else None for x, _, _ in operands]
        known = {order.dim: i for i, order in enumerate(orders) if order is not None}
        factors = [f for f in rule.factors if any(f.ins[i] == d for d, i in known.items())]
        if len(factors) != 1 or factors[0].kind != "map":
            return None
        factor, target = factors[0], factors[0].outs[0]
        if target is None:
            return None
        blocks: set[tuple[tuple[int, ...], int]] = set()
        for (_, _, operand_ty), order, dim in zip(operands, orders, factor.ins, strict=True):
            if (order.dim if order else None) != dim:
                return None
            if order is not None:
                scaled = _scaled(order, static_shape(operand_ty), factor.size)
                if scaled is None:
                    return None
                blocks.add((scaled, order.parts))
        if len(blocks) != 1:
            return None
        [(sizes, parts)], shape = blocks, static_shape(ty) or ()
        extent = shape[target]
        if not isinstance(extent, int) or extent % factor.size:
            return None
        step = extent // factor.size
        return Segments(target, tuple(n * step for n in sizes), parts)

    def _attention(self, var: relax.Var, call: ir.Call) -> None:
        """Let attention take interleaved heads, where each part has whole heads of q, k and v."""
        args = packed_args(call)
        shape, fused = static_shape(var.ty) or (), static_shape(args[-1].ty) or ()
        sizes = (shape[-2], *[(fused[-2] - shape[-2]) // 2] * 2)
        parts = self.heads.get(tuple(n * fused[-1] for n in sizes))
        if parts is None:
            self._keep(var, self._restored(call), None)
            return
        if self.orders.get(args[-1]) != Segments(1, sizes, parts):
            pieces = self._joined_pieces(args[-1], sizes) or self._split_pieces(args[-1], sizes)
            args[-1] = self._interleaved(pieces, fused, parts)
        called = relax.ExternFunc(f"{INTERLEAVED_ATTENTION}.{parts}")
        self.writer.bind(var, rebuild(call, call.op, [called, tuple_of(args)], call.ty))

    def _joined_pieces(self, value: Any, sizes: tuple[int, ...]) -> list[Any]:
        """Return what a value joins, as models do that normalize heads; empty for other values."""
        while (joined := self.new_values.get(value)) is not None and called_name(
            joined
        ) == "relax.reshape":
            value = joined.args[0]
        if joined is None or called_name(joined) != "relax.concat":
            return []
        fields, axis = list(getattr(joined.args[0], "fields", ())), int(joined.attrs.axis)
        shapes = [static_shape(field.ty) or () for field in fields]
        heads = len(shapes[0]) - 2 if shapes else -1
        if axis % len(shapes[0]) != heads or tuple(shape[heads] for shape in shapes) != sizes:
            return []
        return [self._original(field) if field in self.orders else field for field in fields]

    def _split_pieces(self, value: Any, sizes: tuple[int, ...]) -> list[Any]:
        """Return the heads of query, key and value of a value in its original order."""
        full = self._restored(value)
        borders = list(itertools.accumulate(sizes[:-1]))
        split = self.writer.emit(relax.op.split(full, borders, 1), str(value.name))
        items = [relax.TupleGetItem(split, i) for i in range(len(sizes))]
        return [self.writer.emit(item, str(value.name)) for item in items]

    def _interleaved(self, pieces: Sequence[Any], shape: Sequence[int | Expr], parts: int) -> Any:
        """Return (tokens, heads, size) with the heads of all pieces interleaved."""
        divided = []
        for piece in pieces:
            name, heads = str(piece.name), (static_shape(piece.ty) or ())[-2]
            divided.append(self._reshaped(piece, [shape[0], parts, heads // parts, shape[2]], name))
        name = f"{pieces[0].name}{SUFFIX}"
        return self._reshaped(self.writer.emit(relax.op.concat(divided, 2), name), shape, name)

    # -- back to the original order

    def _split(self, var: relax.Var, call: ir.Call) -> None:
        """Write a split at borders of segments in the interleaved order."""
        full = call.args[0]
        order, ndim = self.orders[full], int(tensor_type(full.ty).ndim)  # type: ignore[union-attr]
        axis = int(call.attrs.axis) % ndim
        sizes = [(static_shape(ty) or ())[axis] for ty in var.ty.fields[:]]
        groups = _groups(order.sizes, sizes) if axis == order.dim else None
        if groups is None:
            self._keep(var, self._restored(call), None)
            return
        pieces = self._pieces(full, order, sizes)
        fields = []
        for ty, group, piece in zip(var.ty.fields[:], groups, pieces, strict=True):
            field = self._reshaped(piece, static_shape(ty) or (), str(var.name))
            fields.append(field)
            if len(group) > 1:
                self.orders[field] = Segments(axis, group, order.parts)
        rows = [self.orders.get(field) for field in fields]
        self.writer.bind(var, tuple_of(fields))
        if any(row is not None for row in rows):
            self.fields[var] = rows

    def _pieces(self, full: Any, order: Segments, sizes: Sequence[int]) -> list[Any]:
        """Return the parts of ranges of segments: tensors with a dim for parts before the dim."""
        name, dim = str(full.name), order.dim
        shape = list(static_shape(full.ty) or ())
        inner = [*shape[:dim], order.parts, shape[dim] // order.parts, *shape[dim + 1 :]]
        parts = self._reshaped(full, inner, name)
        borders = [n // order.parts for n in itertools.accumulate(sizes[:-1])]
        if not borders:
            return [parts]
        split = self.writer.emit(relax.op.split(parts, borders, dim + 1), name)
        count = range(len(sizes))
        return [self.writer.emit(relax.TupleGetItem(split, i), name) for i in count]

    def _reshaped(self, value: Any, shape: Sequence[int | Expr], name: str) -> Any:
        return self.writer.emit(relax.op.reshape(value, list(shape)), name)

    def _restored(self, value: Any) -> Any:
        """Return a value that reads what it reads in the original order."""
        env = {x: self._original(x) for x in variables(value) if x in self.orders}
        for full in [x for x in variables(value) if x in self.fields]:
            items = [
                self.writer.emit(relax.TupleGetItem(full, i), str(full.name))
                for i in range(len(full.ty.fields))
            ]
            for item, order in zip(items, self.fields[full], strict=True):
                if order is not None:
                    self.orders[item] = order
            parts = [self._original(item) if item in self.orders else item for item in items]
            env[full] = self.writer.add(tuple_of(parts), str(full.name))
        if not env:
            return value
        if isinstance(value, relax.Var):
            return env.get(value, value)
        new = substitute(value, env)
        return rebuild(new, new.op, list(new.args), value.ty) if type(new) is ir.Call else new

    def _original(self, var: relax.Var) -> Any:
        """Return an interleaved value in the original order."""
        if var not in self.restored:
            order = self.orders[var]
            shape = list(static_shape(var.ty) or ())
            pieces = []
            for piece, size in zip(self._pieces(var, order, order.sizes), order.sizes, strict=True):
                extents = [*shape[: order.dim], size, *shape[order.dim + 1 :]]
                pieces.append(self._reshaped(piece, extents, str(var.name)))
            joined = relax.op.concat(pieces, order.dim)
            self.restored[var] = self.writer.emit(joined, str(var.name).removesuffix(SUFFIX))
        return self.restored[var]


def _scaled(order: Segments, shape: tuple[Any, ...] | None, blocks: Any) -> tuple[int, ...] | None:
    """Return the sizes of segments in blocks of a factor, None where a piece has broken ones."""
    if shape is None or not isinstance(blocks, int) or shape[order.dim] % blocks:
        return None
    step = shape[order.dim] // blocks
    if any(piece % step for piece in order.pieces):
        return None
    return tuple(size // step for size in order.sizes)


def _groups(segments: Sequence[int], sizes: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """Return the segments that each field of a split consists of, None where it cuts one."""
    groups, pending = [], list(segments)
    for size in sizes:
        group: list[int] = []
        while pending and isinstance(size, int) and sum(group) < size:
            group.append(pending.pop(0))
        if sum(group) != size:
            return None
        groups.append(tuple(group))
    return None if pending else groups
