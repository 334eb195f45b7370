# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Emit tensor movements for all translations, omitting no-ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import relax, te
from tvm.relax import BlockBuilder, Expr

from tvm_distir.models.common.hlo_names import KERNEL_OPERATION
from tvm_distir.models.common.translation import dtype_of, shape_of
from tvm_distir.support import begin_block, end_block

from .translated_values import Tensors, TranslatedTensor, constant, is_constant

_op = relax.op


class Emitter:
    """Emitter of bindings into the current block of a builder.

    Parameters
    ----------
    builder : relax.BlockBuilder
    module : relax.BlockBuilder
        The builder of the module, which gets kernels.
    """

    def __init__(self, builder: BlockBuilder, module: BlockBuilder) -> None:
        self.builder, self._module = builder, module
        self.hint = ""
        self._written: dict[int, tuple[TranslatedTensor, Expr]] = {}

    def emit(self, expr: Expr) -> Expr:
        """Bind an expression to a variable."""
        return self.builder.emit(expr, self.hint)

    def kernel(
        self,
        name: str,
        compute: Callable[..., te.Tensor],
        args: Sequence[Expr],
        shape: Sequence[int],
        dtype: str,
        operation: str,
    ) -> TranslatedTensor:
        """Call a kernel that TE tensors define, for an operation of StableHLO that Relax lacks."""
        operands = enumerate(args)
        tensors = [te.placeholder(shape_of(x), dtype_of(x), f"x{i}") for i, x in operands]
        function = te.create_prim_func([*tensors, compute(*tensors)])
        function = function.without_attr("global_symbol").with_attr(KERNEL_OPERATION, operation)
        variable = self._module.add_func(function, name)
        result = relax.TensorType(list(shape), dtype)
        return self.value(self.emit(_op.call_tir(variable, list(args), out_ty=result)))

    def full(self, value: TranslatedTensor) -> Expr:
        """Return the full tensor, expanded once."""
        if value.is_full:
            return value.expr
        if id(value) not in self._written:
            unsharded = self._joined(value) if value.rows is not None else self._spread(value)
            self._written[id(value)] = value, unsharded
        return self._written[id(value)][1]

    def branches(
        self, condition: Expr, then: Callable[[], Expr], other: Callable[[], Expr]
    ) -> Expr:
        """Choose by a condition between what two functions emit, each into a block of its own."""
        sides, written = [], self._written
        for branch in (then, other):
            self._written = dict(written)  # what a branch expands is not known outside of it
            begin_block(self.builder, dataflow=False)
            result = self.emit(branch())
            sides.append(relax.SeqExpr([end_block(self.builder)], result))
        self._written = written
        return self.emit(relax.If(condition, *sides))

    def values(self, expr: Expr) -> Tensors:
        """Return the tensors of an expression, of the fields if it is a tuple."""
        if not isinstance(expr.ty, relax.TupleType):
            return [self.value(expr)]
        return [self.value(self.emit(expr[i])) for i in range(len(expr.ty.fields))]

    def value(self, expr: Expr) -> TranslatedTensor:
        """Return a value of a full tensor."""
        return TranslatedTensor(expr, shape_of(expr))

    def _spread(self, value: TranslatedTensor) -> Expr:
        if _without_ones(shape_of(value.expr)) == _without_ones(value.shape):
            return self.reshape(value.expr, value.shape)
        return self.emit(_op.broadcast_to(value.expr, list(value.shape)))

    def _joined(self, value: TranslatedTensor) -> Expr:
        """Concatenate rows, with contiguous ones sliced in runs."""
        rows, parts, first = value.rows or (), [], 0
        while first < len(rows):
            row, end = rows[first], first + 1
            if row is None:
                while end < len(rows) and rows[end] is None:
                    end += 1
                parts.append(
                    self.full(self.rows_of(TranslatedTensor(value.expr, value.shape), first, end))
                )
            else:
                parts.append(self.full(row))
            first = end
        return parts[0] if len(parts) == 1 else self.emit(_op.concat(parts, 0))

    def rows_of(self, value: TranslatedTensor, begin: int, end: int) -> TranslatedTensor:
        """Slice rows of dim 0."""
        shape = (end - begin, *value.shape[1:])
        if value.rows is not None:
            if end == begin + 1 and value.rows[begin] is not None:
                return value.rows[begin] or value
            rows = value.rows[begin:end]
            base = self.rows_of(TranslatedTensor(value.expr, value.shape), begin, end)
            return TranslatedTensor(base.expr, shape, rows if any(rows) else None)
        sizes = shape_of(value.expr)
        if not sizes or sizes[0] == 1 != value.shape[0]:
            return TranslatedTensor(value.expr, shape)
        return TranslatedTensor(
            self.slice(value.expr, [begin] + [0] * (len(sizes) - 1), [end, *sizes[1:]]), shape
        )

    def reshape(self, expr: Expr, shape: Sequence[int]) -> Expr:
        """Reshape a tensor."""
        if shape_of(expr) == tuple(shape):
            return expr
        return self.emit(_op.reshape(expr, list(shape)))

    def permute(self, expr: Expr, order: Sequence[int]) -> Expr:
        """Permute the dims of a tensor."""
        if list(order) == list(range(len(order))):
            return expr
        turned = list(order) == list(range(len(order)))[::-1]
        return self.emit(_op.permute_dims(expr, None if turned else list(order)))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Cast a tensor."""
        return expr if dtype_of(expr) == dtype else self.emit(_op.astype(expr, dtype))

    def slice(
        self,
        expr: Expr,
        begins: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Expr:
        """Slice a tensor by bounds and steps of every dim."""
        strides = steps or [1] * len(begins)
        full = [(0, n, 1) for n in shape_of(expr)]
        sliced_dims = [i for i, b in enumerate(zip(begins, ends, strides)) if b != full[i]]
        if not sliced_dims:
            return expr
        low, high, gaps = ([list_[i] for i in sliced_dims] for list_ in (begins, ends, strides))
        dilations = gaps if max(gaps) > 1 else None
        return self.emit(_op.strided_slice(expr, sliced_dims, low, high, dilations))

    def pad(
        self,
        expr: Expr,
        low: Sequence[int],
        high: Sequence[int],
        inner: Sequence[int] = (),
        fill: float = 0.0,
    ) -> Expr:
        """Pad a tensor at edges and between elements, or crop it where numbers are negative."""
        if any(inner):
            expr = self._spaced(expr, inner, fill)
        shape = shape_of(expr)
        ends = [n + min(h, 0) for n, h in zip(shape, high)]
        expr = self.slice(expr, [max(-n, 0) for n in low], ends)
        widths = [max(n, 0) for pair in zip(low, high) for n in pair]
        if not any(widths):
            return expr
        dtype = dtype_of(expr)
        if dtype != "bool":
            return self.emit(_op.nn.pad(expr, widths, pad_value=fill))
        padded = self.emit(_op.nn.pad(self.cast(expr, "int8"), widths, pad_value=float(bool(fill))))
        return self.cast(padded, dtype)

    def _spaced(self, expr: Expr, inner: Sequence[int], fill: float) -> Expr:
        """Insert a number of elements between any two along each dim."""
        shape = shape_of(expr)
        separate = [n for size, gap in zip(shape, inner) for n in ([size, 1] if gap else [size])]
        widths: list[int] = []
        for gap in inner:
            widths += [0, 0, 0, gap] if gap else [0, 0]
        wide = self.emit(_op.nn.pad(self.reshape(expr, separate), widths, pad_value=fill))
        joined = [size * (gap + 1) for size, gap in zip(shape, inner)]
        ends = [max((size - 1) * (gap + 1) + 1, 0) for size, gap in zip(shape, inner)]
        return self.slice(self.reshape(wide, joined), [0] * len(ends), ends)

    def clipped(self, index: Expr, highest: int) -> Expr:
        """Clip indices from 0 to a maximum."""
        if self._is_clipped(index, highest):
            return index
        dtype = dtype_of(index)
        least = self.emit(_op.maximum(index, constant(0, dtype)))
        return self.emit(_op.minimum(least, constant(max(highest, 0), dtype)))

    def _is_clipped(self, index: Expr, highest: int) -> bool:
        """Return whether indices are clipped to 0 and a maximum."""
        low, most = self._bounded(index, "relax.minimum")
        _, least = self._bounded(low, "relax.maximum")
        return most is not None and most <= highest and least is not None and least >= 0

    def _bounded(self, index: Expr, name: str) -> tuple[Expr, int | None]:
        """Return both sides of such an operation with a number, or None."""
        is_bound = isinstance(index, relax.Var)
        bound: Expr = self.builder.lookup_binding(index) if is_bound else None
        if getattr(getattr(bound, "op", None), "name", "") != name:
            return None, None
        sides = [TranslatedTensor(side, ()) if is_constant(side) else None for side in bound.args]
        for side, other in zip(sides, reversed(bound.args)):
            if side is not None and side.integer is not None:
                return other, side.integer
        return None, None

    def counting(self, size: int, dtype: str) -> Expr:
        """Return ``0, 1, ...`` as a tensor of a single dim."""
        index_dtype = dtype if "int" in dtype else "int64"
        return self.cast(self.emit(_op.arange(0, size, 1, index_dtype)), dtype)

    def zeros(self, shape: Sequence[int], dtype: str) -> Expr:
        """Return a tensor of zeros."""
        return self.emit(_op.full(list(shape), constant(0, dtype), dtype))

    def rows_flat(self, expr: Expr) -> Expr:
        """Flatten a tensor."""
        return self.reshape(expr, [math.prod(shape_of(expr))])


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
