# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Numbers as constants of a module."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.op import astype


@functools.cache
def _known(digits: str, dtype: str) -> Any:
    return relax.const(float.fromhex(digits), dtype)


def scalar(value: float, dtype: str) -> Any:
    """Make a constant (), a node of its own; equal ones share their data, which costs most."""
    known = _known(float(value).hex(), dtype)
    return ir.GenericConst(known.value, known.ty)


def array_like(values: np.ndarray, like: Any, builder: relax.BlockBuilder) -> Any:
    """A constant of the type of a tensor."""
    dtype = str(like.ty.dtype)
    if dtype in ("float32", "float64"):
        return relax.const(values.astype(dtype), dtype)
    return builder.emit(astype(relax.const(values.astype("float32"), "float32"), dtype))
