# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the elements of ``dense<...>`` as arrays."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tvm_distir.models.common.hlo_names import ELEMENTS

_ELEMENT = re.compile(
    r"[+-]?0x[0-9A-Fa-f]+|true|false|[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?inf|nan"
)
_TYPES = {word: np.dtype(getattr(ml_dtypes, name, name)) for name, word in ELEMENTS.items()}
_TYPES["index"] = np.dtype("int64")  # of attributes, such as the layouts of a custom call


def dense_elements(body: str, shape: tuple[int, ...], word: str) -> npt.NDArray[np.generic]:
    """Read the content of ``dense<...>``.

    Returns
    -------
    ndarray
        An array of the shape, or of a single element where all are equal.

    Raises
    ------
    ValueError
        Saying in words what does not fit.
    """
    dtype = _TYPES.get(word)
    if dtype is None:
        raise ValueError(f"elements of the type {word}")
    count = math.prod(shape)
    text = body.strip()
    if text.startswith('"'):
        return _from_bytes(text.strip('"'), dtype, count).reshape(shape)
    words = _ELEMENT.findall(text)
    if re.sub(_ELEMENT, "", text).strip("[], \n\t"):
        raise ValueError(f"elements that are not numbers: {text[:40]}")
    if len(words) not in (1, count):
        raise ValueError(f"{len(words)} elements, the type requires {count}")
    elements = np.array([_element(item, dtype) for item in words], dtype)
    return elements.reshape(shape) if len(words) == count else elements.reshape(1)


def _element(word: str, dtype: np.dtype[np.generic]) -> Any:
    if word in ("true", "false"):
        return word == "true"
    if "0x" not in word:
        return int(word) if dtype.kind in "iub" else float(word)
    bits = int(word, 16)
    if dtype.kind in "iub":
        return bits
    return np.array(bits, dtype=f"uint{8 * dtype.itemsize}").view(dtype)[()]


def _from_bytes(text: str, dtype: np.dtype[np.generic], count: int) -> npt.NDArray[np.generic]:
    """Read elements from their bytes; booleans may be packed, eight in a byte."""
    data = bytes.fromhex(text.removeprefix("0x"))
    if dtype.kind == "b" and len(data) == -(-count // 8) != count:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[:count].astype(np.bool_)
    if len(data) == dtype.itemsize != count * dtype.itemsize:
        return np.full(count, np.frombuffer(data, dtype)[0])
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for {count} elements")
    return np.frombuffer(data, dtype).copy()
