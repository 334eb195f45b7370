# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create Relax constants from numbers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax


@functools.cache
def _known(digits: str, dtype: str) -> Any:
    return relax.const(float.fromhex(digits), dtype)


def scalar(value: float, dtype: str) -> Any:
    """Make a constant (), a separate node; equal ones share their data, which costs most."""
    known = _known(float(value).hex(), dtype)
    return ir.GenericConst(known.value, known.ty)


@functools.lru_cache(maxsize=1 << 10)
def _known_bytes(data: bytes, dtype: str) -> Any:
    return relax.const(np.frombuffer(data, dtype).reshape(()), dtype)


def scalar_of(array: npt.NDArray[Any]) -> Any:
    """Return a constant as :func:`scalar` does, from a NumPy array of shape ()."""
    known = _known_bytes(array.tobytes(), str(array.dtype))
    return ir.GenericConst(known.value, known.ty)
