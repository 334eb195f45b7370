# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert between TVM's tensors and NumPy's arrays, without copies where possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

Array = npt.NDArray[Any]

_SHARED = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("float", (16, 32, 64)),
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
    )
    for bits in sizes
)
"""Types that both sides know; the others (bool, bfloat16, ...) are copied."""
_ALIGNMENT_BYTES = 64
"""Compiled kernels take the memory of tensors to be so aligned."""


def to_tensor(array: object) -> Any:
    """Return the TVM tensor with a copy of the array's values, shape () included.

    What is no array is an object of a device, and stays.
    """
    if not isinstance(array, np.ndarray | np.generic):
        return array
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def share_tensor(array: Array) -> tvm_ffi.Tensor:
    """Return a TVM tensor over the array's memory."""
    return tvm_ffi.from_dlpack(array)


def exclusive_arrays(arrays: Iterable[tuple[object, bool]]) -> set[int]:
    """Return the ids of donated arrays that a tensor can share and no other array overlaps.

    Parameters
    ----------
    arrays : iterable of (array, bool)
        The arrays of all ranks, and whether each is donated.
    """
    spans = []
    for array, is_donated in arrays:
        if isinstance(array, np.ndarray) and array.size:
            first = array.ctypes.data
            spans.append((first, first + array.nbytes, is_donated, array))
    spans.sort(key=lambda span: span[:2])
    exclusive: set[int] = set()
    end = 0
    for number, (first, last, is_donated, array) in enumerate(spans):
        following = spans[number + 1][0] if number + 1 < len(spans) else last
        if is_donated and end <= first and last <= following and _can_share(array):
            exclusive.add(id(array))
        end = max(end, last)
    return exclusive


def _can_share(array: Array) -> bool:
    flags = array.flags
    aligned = array.ctypes.data % _ALIGNMENT_BYTES == 0
    return aligned and flags.writeable and flags.c_contiguous and str(array.dtype) in _SHARED


def to_array(tensor: object) -> Any:
    """Return a read-only array over the tensor's memory, or a copy where the type needs it.

    What is no tensor is an object of a device, and stays.
    """
    if not isinstance(tensor, tvm.runtime.Tensor):
        return tensor
    if str(tensor.dtype) in _SHARED:
        return np.from_dlpack(tensor)
    copied: Array = tensor.numpy()
    return copied


def is_nested(value: object) -> bool:
    """Return whether a value is a tuple of values; TVM's shapes, tuples of numbers, are none."""
    nested = isinstance(value, tvm_ffi.Array | list | tuple)
    return nested and not isinstance(value, tvm_ffi.Shape)


def flat_tensors(value: Any) -> list[Any]:
    """Return the leaves of a (nested) tuple or FFI array of tensors and objects, in order."""
    leaves, pending = [], [value]
    while pending:
        item = pending.pop()
        if is_nested(item):
            pending += reversed(item)
        else:
            leaves.append(item)
    return leaves
