# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Format types, numbers and attributes as MLIR does."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from tvm_distir.models.common.hlo_names import ELEMENTS

_BARE = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)
_NO_POINT = re.compile(r"^(-?\d+)e")


class Unwritable(Exception):
    """Signal for a value that has no form in StableHLO, with the reason."""


def tensor_text(shape: Sequence[int], dtype: str) -> str:
    """Return the type of a tensor.

    Examples
    --------
    >>> tensor_text((4, 8), "float32")
    'tensor<4x8xf32>'
    """
    if dtype not in ELEMENTS:
        raise Unwritable(f"elements of the type {dtype}")
    return "tensor<" + "".join(f"{n}x" for n in shape) + ELEMENTS[dtype] + ">"


def is_float(dtype: str) -> bool:
    """Return whether an element type is a float."""
    return "float" in dtype


def integers(values: Iterable[SupportsInt]) -> str:
    """Format a list of integers as an attribute, ``array<i64: 1, 2>``."""
    items = ", ".join(str(int(v)) for v in values)
    return f"array<i64: {items}>" if items else "array<i64>"


def table(rows: Sequence[Sequence[int]]) -> str:
    """Format rows of integers of equal length as an attribute."""
    listed = [[int(v) for v in row] for row in rows]
    width = len(listed[0]) if listed else 0
    return f"dense<{listed}> : tensor<{len(listed)}x{width}xi64>"


def array_text(array: npt.NDArray[np.generic], dtype: str) -> str:
    """Format the content of ``dense<...>``, with a single element if all are equal."""
    flat = array.reshape(-1)
    if flat.size == 1 or (flat.size and (flat == flat[0]).all()):
        return number_text(flat[0], dtype)
    if dtype == "bool":
        return str(array.tolist()).replace("True", "true").replace("False", "false")
    return '"0x' + np.ascontiguousarray(array).tobytes().hex().upper() + '"'


def number_text(value: Any, dtype: str) -> str:
    """Format a single element; floats have a point, and infinities are written as bits."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return str(int(value))
    number = float(value)
    if math.isfinite(number):
        return _NO_POINT.sub(r"\1.0e", repr(number))
    return f"0x{_bits(number, dtype)}"


def _bits(number: float, dtype: str) -> str:
    if dtype == "bfloat16":
        return f"{int(np.float32(number).view(np.uint32)) >> 16:04X}"
    kinds: dict[str, tuple[Any, Any]] = {
        "float16": (np.float16, np.uint16),
        "float32": (np.float32, np.uint32),
        "float64": (np.float64, np.uint64),
    }
    if dtype not in kinds:
        raise Unwritable(f"{number} as {dtype}")
    floats, holder = kinds[dtype]
    width = np.dtype(holder).itemsize * 2
    return f"{int(floats(number).view(holder)):0{width}X}"


def string(text: str) -> str:
    """Format a quoted string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def symbol(name: str) -> str:
    """Format a symbol reference, quoted if it is no identifier.

    Examples
    --------
    >>> symbol("mesh0"), symbol("first mesh")
    ('@mesh0', '@"first mesh"')
    """
    return "@" + (name if _BARE.fullmatch(name) else string(name))
