# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the lines of a function, and the operations that all others are composed of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.common.hlo_names import REDUCTIONS
from tvm_distir.transforms import is_narrow

from .text import Unwritable, array_text, integers, is_float, tensor_text

Shape = Sequence[int]


@dataclass(frozen=True)
class Ssa:
    """SSA value in the text: its name, shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        """Return the type as text."""
        return tensor_text(self.shape, self.dtype)


class Body:
    """Writer of lines in the generic form; a method writes an operation, or none for a no-op.

    Attributes
    ----------
    lines : list of str
    """

    def __init__(self, prefix: str = "%v") -> None:
        self.lines: list[str] = []
        self._prefix, self._count = prefix, 0

    def new(self, shape: Shape, dtype: str) -> Ssa:
        """Return a fresh name for a value."""
        self._count += 1
        return Ssa(f"{self._prefix}{self._count}", tuple(int(n) for n in shape), dtype)

    def op(
        self,
        name: str,
        operands: Sequence[Ssa],
        shape: Shape,
        dtype: str,
        attributes: str = "",
        regions: str = "",
    ) -> Ssa:
        """Write an operation with a result, of StableHLO unless the name has a dialect."""
        result = self.new(shape, dtype)
        self._line(f"{result.name} = ", name, operands, result.type, attributes, regions)
        return result

    def several(
        self,
        name: str,
        operands: Sequence[Ssa],
        results: Sequence[tuple[Shape, str]],
        attributes: str = "",
        regions: str = "",
    ) -> list[Ssa]:
        """Write an operation with several results."""
        base = self.new((), "bool").name
        values = [Ssa(f"{base}#{i}", tuple(s), d) for i, (s, d) in enumerate(results)]
        types = ", ".join(value.type for value in values)
        self._line(f"{base}:{len(values)} = ", name, operands, f"({types})", attributes, regions)
        return values

    def _line(
        self,
        head: str,
        name: str,
        operands: Sequence[Ssa],
        result: str,
        attributes: str,
        regions: str,
    ) -> None:
        title = name if "." in name else f"stablehlo.{name}"
        names = ", ".join(value.name for value in operands)
        types = ", ".join(value.type for value in operands)
        notes = f" <{{{attributes}}}>" if attributes else ""
        inner = f" ({regions})" if regions else ""
        self.lines.append(f'{head}"{title}"({names}){notes}{inner} : ({types}) -> {result}')

    def region(self, kind: str, dtype: str) -> str:
        """Return a region that applies an operation to two scalars; ``update`` is the second."""
        body, left, right = Body("%b"), Ssa("%l", (), dtype), Ssa("%r", (), dtype)
        result = right if kind == "update" else body.op(kind, [left, right], (), dtype)
        return body.as_region([left, right], result)

    def as_region(self, arguments: Sequence[Ssa], result: Ssa) -> str:
        """Return the lines as a region with these arguments; its names need a prefix of its own."""
        head = ", ".join(f"{value.name}: {value.type}" for value in arguments)
        self._line("", "return", [result], "()", "", "")
        return f"{{^bb0({head}): {' '.join(self.lines)}}}"

    def constant(self, value: npt.ArrayLike, dtype: str, shape: Shape | None = None) -> Ssa:
        """Write a constant; a number fills the shape."""
        array = np.asarray(value)
        sizes = tuple(array.shape if shape is None else shape)
        kind = tensor_text(sizes, dtype)
        return self.op(
            "constant", [], sizes, dtype, f"value = dense<{array_text(array, dtype)}> : {kind}"
        )

    def broadcast(self, value: Ssa, shape: Shape, dims: Sequence[int] | None = None) -> Ssa:
        """Broadcast a value to a shape, with its dims at the end or at the given positions."""
        if value.shape == tuple(shape):
            return value
        first = len(shape) - len(value.shape)
        result_dims = range(first, len(shape)) if dims is None else dims
        notes = f"broadcast_dimensions = {integers(result_dims)}"
        return self.op("broadcast_in_dim", [value], shape, value.dtype, notes)

    def filled(self, value: float, like: Ssa) -> Ssa:
        """Write a number in the shape and type of a value."""
        return self.broadcast(self.constant(value, like.dtype), like.shape)

    def together(self, values: Sequence[Ssa]) -> list[Ssa]:
        """Broadcast values to their common shape."""
        shape = np.broadcast_shapes(*(value.shape for value in values))
        return [self.broadcast(value, shape) for value in values]

    def binary(self, name: str, a: Any, b: Any) -> Ssa:
        """Write an operation on two values, or on a value and a number."""
        like = a if isinstance(a, Ssa) else b
        sides = [v if isinstance(v, Ssa) else self.constant(v, like.dtype) for v in (a, b)]
        left, right = self.together(sides)
        return self.op(name, [left, right], left.shape, left.dtype)

    def unary(self, name: str, value: Ssa, dtype: str | None = None) -> Ssa:
        """Write an operation on a single value."""
        return self.op(name, [value], value.shape, dtype or value.dtype)

    def compare(self, direction: str, a: Ssa, b: Any, total: bool = False) -> Ssa:
        """Compare two values, or a value and a number; ``total``: by the total order of floats."""
        other = b if isinstance(b, Ssa) else self.constant(b, a.dtype)
        left, right = self.together([a, other])
        notes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        notes += ", compare_type = #stablehlo<comparison_type TOTALORDER>" if total else ""
        return self.op("compare", [left, right], left.shape, "bool", notes)

    def select(self, chosen: Ssa, a: Any, b: Any) -> Ssa:
        """Select between two values or numbers."""
        like = a if isinstance(a, Ssa) else b
        sides = [v if isinstance(v, Ssa) else self.constant(v, like.dtype) for v in (a, b)]
        parts = self.together([chosen, *sides])
        return self.op("select", parts, parts[1].shape, parts[1].dtype)

    def cast(self, value: Ssa, dtype: str) -> Ssa:
        """Cast a value to another type."""
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            return self.compare("NE", value, 0)
        return self.op("convert", [value], value.shape, dtype)

    def reshape(self, value: Ssa, shape: Shape) -> Ssa:
        """Reshape a value."""
        if value.shape == tuple(shape):
            return value
        return self.op("reshape", [value], shape, value.dtype)

    def transpose(self, value: Ssa, order: Sequence[int]) -> Ssa:
        """Permute the dims of a value."""
        if list(order) == list(range(len(order))):
            return value
        shape = [value.shape[i] for i in order]
        return self.op("transpose", [value], shape, value.dtype, f"permutation = {integers(order)}")

    def slice(
        self, value: Ssa, begins: Shape, ends: Shape, steps: Sequence[int] | None = None
    ) -> Ssa:
        """Slice a value."""
        strides = steps or [1] * len(begins)
        shape = [-(-(e - b) // s) for b, e, s in zip(begins, ends, strides)]
        if shape == list(value.shape):
            return value
        notes = f"start_indices = {integers(begins)}, limit_indices = {integers(ends)}"
        notes += f", strides = {integers(strides)}"
        return self.op("slice", [value], shape, value.dtype, notes)

    def dynamic_slice(self, value: Ssa, starts: Sequence[Ssa], sizes: Shape) -> Ssa:
        """Slice a value at computed offsets."""
        notes = f"slice_sizes = {integers(sizes)}"
        return self.op("dynamic_slice", [value, *starts], sizes, value.dtype, notes)

    def pad(self, value: Ssa, low: Shape, high: Shape, fill: float = 0.0) -> Ssa:
        """Pad a value at its edges."""
        if not any([*low, *high]):
            return value
        shape = [a + n + b for a, n, b in zip(low, value.shape, high)]
        notes = f"edge_padding_low = {integers(low)}, edge_padding_high = {integers(high)}"
        notes += f", interior_padding = {integers([0] * len(shape))}"
        start = self.constant(fill, value.dtype)
        return self.op("pad", [value, start], shape, value.dtype, notes)

    def iota(self, shape: Shape, dim: int, dtype: str) -> Ssa:
        """Write 0, 1, ... along a dim."""
        if dtype == "bool":
            raise Unwritable("counting in booleans")
        return self.op("iota", [], shape, dtype, f"iota_dimension = {dim} : i64")

    def neutral(self, kind: str, dtype: str) -> Ssa:
        """Return the initial value of a reduction."""
        if kind in ("sum", "prod"):
            return self.constant(1 if kind == "prod" else 0, dtype)
        if dtype == "bool":
            return self.constant(kind == "min", dtype)
        bound = -math.inf if kind == "max" else math.inf
        if not is_float(dtype):
            limits = np.iinfo(dtype)
            bound = limits.min if kind == "max" else limits.max
        return self.constant(bound, dtype)

    def accumulated(self, kind: str, value: Ssa) -> Ssa:
        """Return a value in the type in which a reduction of it accumulates, as in JAX."""
        adds = kind in ("sum", "prod", "add", "multiply")
        return self.cast(value, "float32") if adds and is_narrow(value.dtype) else value

    def reduce(self, kind: str, value: Ssa, axes: Sequence[int], keep: bool = False) -> Ssa:
        """Reduce some dims by a sum, product, maximum or minimum."""
        dims = sorted(axis % len(value.shape) for axis in axes)
        if not dims:
            return value
        wide = self.accumulated(kind, value)
        if wide is not value:
            return self.cast(self.reduce(kind, wide, axes, keep), value.dtype)
        shape = [n for i, n in enumerate(value.shape) if i not in dims]
        region = self.region(REDUCTIONS[kind], value.dtype)
        start = self.neutral(kind, value.dtype)
        notes = f"dimensions = {integers(dims)}"
        reduced = self.op("reduce", [value, start], shape, value.dtype, notes, region)
        kept_shape = [1 if i in dims else n for i, n in enumerate(value.shape)]
        return self.reshape(reduced, kept_shape) if keep else reduced

    def mean(self, value: Ssa, axes: Sequence[int], keep: bool = True) -> Ssa:
        """Compute the mean over some dims."""
        count = math.prod(value.shape[axis] for axis in axes)
        wide = self.accumulated("sum", value)
        mean = self.binary("divide", self.reduce("sum", wide, axes, keep), count)
        return self.cast(mean, value.dtype)
