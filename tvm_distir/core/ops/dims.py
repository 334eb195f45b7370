# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes with dims, which are ints where static and TVM expressions where symbolic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import tvm_ffi
from tvm import DataType, ir, tirx

from tvm_distir.core.ir.types import known_shape, tensor_type
from tvm_distir.support import Analyzer

#: What an unknown symbolic extent counts in FLOPs and bytes.
NOMINAL_EXTENT = 1024

Shape = tuple[Any, ...]


def plain(value: ir.Expr) -> Any:
    """Return a Python number for an immediate, and anything else unchanged."""
    if isinstance(value, tirx.IntImm):
        return int(value)
    return float(value) if isinstance(value, tirx.FloatImm) else value


def same(a: int | ir.Expr, b: int | ir.Expr) -> bool:
    """Return whether two extents are provably equal."""
    if isinstance(a, int) or isinstance(b, int):
        if isinstance(a, int) and isinstance(b, int):
            return a == b
    elif tvm_ffi.structural_equal(a, b):
        return True
    return bool(Analyzer().can_prove_equal(expr(a), expr(b)))


def expr(value: int | ir.Expr) -> ir.Expr:
    """Convert an int to a TVM expression."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def product(dims: Iterable[Any]) -> int | ir.Expr:
    """Return the product of extents, as an int when all are ints."""
    total: int | ir.Expr = 1
    for n in dims:
        total = n if isinstance(total, int) and total == 1 else total * n
    return total


def symbols(dim: ir.Expr) -> list[ir.Expr]:
    """Return the variables of a symbolic extent, in order of appearance."""
    variables: list[ir.Var] = []
    tvm_ffi.structural_walk(dim, [(ir.Var, variables.append)])
    return list(dict.fromkeys(variables))


def nominal(dim: int | ir.Expr) -> int:
    """Return an int for an extent; every symbol counts :data:`NOMINAL_EXTENT`."""
    if isinstance(dim, int):
        return dim
    analyzer = Analyzer()
    for symbol in symbols(dim):
        analyzer.bind(symbol, tirx.IntImm(symbol.ty.dtype, NOMINAL_EXTENT))
    value = analyzer.simplify(dim)
    return int(value) if isinstance(value, tirx.IntImm) else NOMINAL_EXTENT


def elements(shape: Shape) -> int:
    """Return the number of elements; symbols count nominally."""
    return math.prod(map(nominal, shape))


def size_bytes(shape: Shape, dtype: str) -> int:
    """Return the size of a dense tensor in bytes; sub-byte types are packed."""
    return -(-elements(shape) * _bits(dtype) // 8)


@functools.cache
def _bits(dtype: str) -> int:
    """Return the bits of an element."""
    kind = DataType(dtype)
    return 8 if dtype == "bool" else int(kind.bits) * int(kind.lanes)


class StaticTensor(NamedTuple):
    """Shape, dtype and dense size of the tensors of a type."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


def static_tensor(ty: ir.Type) -> StaticTensor | None:
    """Return what a (D)Tensor type says of its tensors; None if a dim is symbolic or unknown."""
    tensor, shape = tensor_type(ty), known_shape(ty)
    if tensor is None or shape is None:
        return None
    dtype = str(tensor.dtype)
    return StaticTensor(shape, dtype, size_bytes(shape, dtype))
