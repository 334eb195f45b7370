# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the types of translated values, and refuse what has no translation."""

from __future__ import annotations

from tvm.relax import Expr

from tvm_distir.core.ir import known_shape

HALVES = ("bfloat16", "float16")
"""Types in which norms and sums are computed in float32, and for which TVM lacks some kernels."""


class Unsupported(Exception):
    """An operation with a form that is not translated, which the message names."""


def dtype_of(value: Expr) -> str:
    """Return the element type of a tensor."""
    return str(value.ty.dtype)


def shape_of(value: Expr) -> tuple[int, ...]:
    """Return the static shape of a tensor.

    Raises
    ------
    Unsupported
        Where a dim is not known.
    """
    shape = known_shape(value.ty)
    if shape is None:
        raise Unsupported("a tensor of unknown shape")
    return shape
