# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent values during translation, with broadcasts and rows kept symbolic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.hlo_names import ELEMENTS
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.models.mlir.tree import OtherType, TensorType
from tvm_distir.support import GenericConst

_DTYPES = {word: name for name, word in ELEMENTS.items()}


def typed(kind: TensorType | OtherType) -> tuple[tuple[int, ...], str]:
    """Return the shape and TVM's element type of a type.

    Raises
    ------
    Unsupported
        For what is no tensor of known sizes and of numbers that TVM has.
    """
    if not isinstance(kind, TensorType):
        raise Unsupported(f"a value of the type {kind}")
    if None in kind.shape:
        raise Unsupported(f"{kind}, whose sizes are dynamic")
    if kind.element not in _DTYPES:
        raise Unsupported(f"elements of the type {kind.element}")
    return tuple(n for n in kind.shape if n is not None), _DTYPES[kind.element]


@dataclass(frozen=True, eq=False)
class TranslatedTensor:
    """Translated tensor.

    Attributes
    ----------
    expr : relax.Expr
        A scalar, or of the rank of ``shape``: where a dim is 1, it represents all of that dim.
    shape : tuple of int
        The tensor's shape.
    rows : tuple of TranslatedTensor or None
        The rows (of size 1 along dim 0) that replace those of ``expr``: a loop writes a row into an
        array in each round.
    counts : int or None
        The dim along which it counts from 0, where it is known to.
    base : relax.Expr or None
        The tensor that was spread along dims in front of its dims: an operation with a tensor of
        full rank reads it in place of ``expr``.
    """

    expr: Expr
    shape: tuple[int, ...]
    rows: tuple[TranslatedTensor | None, ...] | None = None
    counts: int | None = None
    base: Expr | None = None

    @property
    def dtype(self) -> str:
        """Return the element type."""
        return dtype_of(self.expr)

    @property
    def is_full(self) -> bool:
        """Return whether ``expr`` is the tensor itself."""
        return self.rows is None and shape_of(self.expr) == self.shape

    @property
    def scalar(self) -> Any:
        """Return the number that all elements of a constant equal, or None."""
        if self.rows is not None or not is_constant(self.expr) or shape_of(self.expr):
            return None
        return self.expr.value.numpy()[()].item()

    @property
    def integer(self) -> int | None:
        """Return the value of an integer scalar constant, or None."""
        number = None if self.shape else self.scalar
        return int(number) if isinstance(number, (bool, int)) else None


Tensors = Sequence[TranslatedTensor]


def is_constant(expr: Expr) -> bool:
    """Return whether an expression is a constant."""
    return isinstance(expr, GenericConst)


def array_type(dtype: str) -> np.dtype[Any]:
    """Return NumPy's type of a TVM type name."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def constant(value: npt.ArrayLike, dtype: str) -> GenericConst:
    """Return a constant, with its elements converted as NumPy does."""
    array: npt.NDArray[np.generic] = np.asarray(value).astype(array_type(dtype))
    return relax.const(array, dtype)


def cleaned(name: str) -> str:
    """Convert a JAX path to a weight name: ``p['layers'][0]['q']`` gives ``p.layers.0.q``."""
    return re.sub(r"\.+", ".", re.sub(r"[\[\]'\"]+", ".", name)).strip(".")


def identifier(name: str) -> str:
    """Convert a name to a Relax variable name."""
    return re.sub(r"\W+", "_", name).strip("_")


def integers(values: Any) -> list[int]:
    """Return an attribute that is a list of integers, empty by default."""
    items: Sequence[Any] = [] if values is None else values
    return [int(v) for v in items]
