# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognize masks that depend on the positions of queries and keys only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import op_name
from tvm_distir.support import GenericConst, memoized

LOW = -1e4
"""A score that is lower, or a mask's addend, means that a key is not seen."""


@dataclass(frozen=True)
class Line:
    """Numbers ``start, start + 1, ...`` along a dim, which is counted from the last, -1."""

    dim: int
    start: int


@dataclass(frozen=True)
class Band:
    """Mask that is true where ``above < column - row <= below``; None: no limit."""

    above: int | None = None
    below: int | None = None

    def negated(self) -> Band | None:
        """Return the mask that is true elsewhere, if it is a band."""
        if self.above is None and self.below is not None:
            return Band(above=self.below)
        if self.below is None and self.above is not None:
            return Band(below=self.above)
        return None

    def common(self, other: Band) -> Band:
        """Return the mask that is true where both are."""
        above = [x for x in (self.above, other.above) if x is not None]
        below = [x for x in (self.below, other.below) if x is not None]
        return Band(max(above, default=None), min(below, default=None))


Fact = Line | Band
_VIEWS = ("reshape", "expand_dims", "broadcast_to", "squeeze", "astype")
_COMPARISONS: dict[str, Callable[[int], Band]] = {
    "less_equal": lambda d: Band(below=d),
    "less": lambda d: Band(below=d - 1),
    "greater_equal": lambda d: Band(above=d - 1),
    "greater": lambda d: Band(above=d),
}
"""The band where ``column - row`` compares so with a number."""
_MIRRORED = {
    "less_equal": "greater_equal", "less": "greater", "greater_equal": "less_equal",
    "greater": "less",
}  # fmt: skip


@dataclass(eq=False)
class MaskReader:
    """Reader of the masks of a function.

    Parameters
    ----------
    values : mapping of Var to expression
        The values of the function.
    of_param, of_call : callable
        Return what is known of a parameter, and of a call of a private function.
    """

    _values: Mapping[Var, Expr]
    _of_param: Callable[[Any], Fact | None]
    _of_call: Callable[[Any], Fact | None]

    @memoized
    def of(self, expr: Expr) -> Fact | None:
        """Return what is known of an expression."""
        value = self._values.get(expr) if isinstance(expr, ir.Var) else expr
        return self._of_param(expr) if value is None else self._read(value)

    def added(self, expr: Expr) -> Band | None:
        """Return the mask of an addend, zero where a key is seen and low elsewhere."""
        value = self._resolved(expr)
        if op_name(value) != "where":
            return _constant_addend(value) if isinstance(value, GenericConst) else None
        mask, first, other = value.args
        band = self.of(mask)
        if not isinstance(band, Band):
            return None
        if _is_zero(first) and self.is_low(other):
            return band
        return band.negated() if _is_zero(other) and self.is_low(first) else None

    def is_low(self, expr: Expr) -> bool:
        """Return whether an expression is a number below :data:`LOW`."""
        return is_scalar(self._repeated(expr), lambda x: x <= LOW)

    def _resolved(self, expr: Expr) -> Expr:
        while isinstance(expr, ir.Var) and expr in self._values:
            expr = self._values[expr]
            if op_name(expr) in _VIEWS and not isinstance(expr, ir.Var):
                inner = expr.args[0]
                if known_shape(inner.ty) == known_shape(expr.ty) or not known_shape(inner.ty):
                    expr = inner
        return expr

    def _read(self, value: Expr) -> Fact | None:
        if isinstance(value, GenericConst):
            return Band() if is_filled(value) and _is_bool(value) else _constant(value)
        if type(value) is ir.Call and isinstance(value.op, ir.GlobalVar):
            return self._of_call(value)
        name = op_name(value)
        if name in ("full", "broadcast_to") and _is_bool(value) and self._is_filled(value):
            return Band()
        if name == "where" and _is_bool(value) and self._is_false(value.args[2]):
            chosen, mask = self.of(value.args[1]), self.of(value.args[0])
            if isinstance(chosen, Band) and isinstance(mask, Band):
                return mask.common(chosen)
        if name in _VIEWS:
            return _moved(self.of(value.args[0]), value)
        if name == "arange":
            start, _, step = (_integer(arg) for arg in value.args[:3])
            return Line(-1, start) if start is not None and step == 1 else None
        if name in ("add", "subtract"):
            return self._shifted(value, 1 if name == "add" else -1)
        if name in _COMPARISONS:
            return self._compared(name, *map(self.of, value.args))
        if name == "logical_not":
            band = self.of(value.args[0])
            return band.negated() if isinstance(band, Band) else None
        if name in ("logical_and", "bitwise_and"):
            first, other = map(self.of, value.args)
            if isinstance(first, Band) and isinstance(other, Band):
                return first.common(other)
        if name in ("tril", "triu"):
            k = _integer(value.args[1]) if len(value.args) > 1 else 0
            if self._is_filled(value.args[0]) and k is not None:
                return Band(below=k) if name == "tril" else Band(above=k - 1)
        return None

    def _is_filled(self, expr: Expr) -> bool:
        """Return whether an expression is nothing but a number other than zero, or true."""
        value = self._repeated(expr)
        return op_name(value) == "ones" or is_filled(value)

    def _is_false(self, expr: Expr) -> bool:
        value = self._repeated(expr)
        return isinstance(value, GenericConst) and not np.any(value.value.numpy())

    def _repeated(self, expr: Expr) -> Expr:
        """Return what an expression repeats in views and ``full``."""
        value = self._resolved(expr)
        while op_name(value) in (*_VIEWS, "full"):
            value = self._resolved(value.args[1 if op_name(value) == "full" else 0])
        return value

    def _shifted(self, value: Any, sign: int) -> Fact | None:
        number = _integer(self._resolved(value.args[1]))  # first: a layer adds to its argument
        line = None if number is None else self.of(value.args[0])
        if isinstance(line, Line) and number is not None:
            return _moved(Line(line.dim, line.start + sign * number), value)
        return None

    @staticmethod
    def _compared(name: str, first: Fact | None, other: Fact | None) -> Band | None:
        if not isinstance(first, Line) or not isinstance(other, Line):
            return None
        if (first.dim, other.dim) == (-2, -1):
            first, other, name = other, first, _MIRRORED[name]
        if (first.dim, other.dim) != (-1, -2):
            return None
        return _COMPARISONS[name](other.start - first.start)


def is_scalar(expr: Expr, fits: Callable[[float], bool]) -> bool:
    """Return whether an expression is a constant of a single number that fits."""
    if not isinstance(expr, GenericConst) or math.prod(known_shape(expr.ty) or (1,)) != 1:
        return False
    return fits(float(np.asarray(expr.value.numpy(), "float64").reshape(())))


def _is_zero(expr: Expr) -> bool:
    return is_scalar(expr, lambda x: x == 0)


def is_filled(expr: Expr) -> bool:
    """Return whether an expression is a constant that is true everywhere."""
    return isinstance(expr, GenericConst) and bool(np.all(expr.value.numpy()))


def _is_bool(expr: Expr) -> bool:
    return "bool" in str(expr.ty.dtype)


def _integer(expr: Any) -> int | None:
    if isinstance(expr, GenericConst):
        array = expr.value.numpy()
        return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else None
    number = getattr(expr, "value", expr)
    return number if isinstance(number, int) else None


def _moved(fact: Fact | None, value: Expr) -> Fact | None:
    """Return what is known of a view of what a fact is known of."""
    shape, old = known_shape(value.ty), known_shape(value.args[0].ty)
    if fact is None or shape is None or old is None:
        return None
    if isinstance(fact, Band):
        return fact if len(shape) > 1 and shape[-2:] == old[-2:] else None
    extent = old[fact.dim]
    if op_name(value) in ("broadcast_to", "add", "subtract", "astype"):
        return fact if shape[fact.dim] == extent else None
    positions = [d - len(shape) for d, n in enumerate(shape) if n == extent]
    return Line(positions[0], fact.start) if math.prod(shape) == extent and positions else None


def _constant(const: Any) -> Fact | None:
    array = const.value.numpy()
    if array.dtype.kind in "iu":
        extents = [d - array.ndim for d, n in enumerate(array.shape) if n > 1]
        flat = array.reshape(-1)
        if len(extents) != 1 or not np.array_equal(flat, flat[0] + np.arange(len(flat))):
            return None
        return Line(extents[0], int(flat[0]))
    if array.dtype.kind == "b" and array.ndim > 1 and math.prod(array.shape[:-2]) == 1:
        return _band(array.reshape(array.shape[-2:]))
    return None


def _constant_addend(const: Any) -> Band | None:
    array = const.value.numpy()
    if array.dtype.kind != "f" or array.ndim < 2 or math.prod(array.shape[:-2]) != 1:
        return None
    table = array.reshape(array.shape[-2:])
    return None if not np.all((table == 0) | (table <= LOW)) else _band(table == 0)


def _band(table: np.ndarray) -> Band | None:
    """Return the band that a table of booleans is, with columns that no row limits."""
    below = int(table[0].sum()) - 1
    lower = np.tri(table.shape[0], table.shape[1], below, bool)
    return Band(below=below) if np.array_equal(table, lower) else None
