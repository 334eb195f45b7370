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

from tvm_distir.support import view_bits

from .io_layout import np_dtype

Array = npt.NDArray[Any]

_SHARED = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("float", (16, 32, 64)),
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
    )
    for bits in sizes
) | {"bool"}
"""Types that both sides know."""
_AS_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Types that DLPack hands over as integers of their bits; others, such as int4, are copied."""
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
    """Return a TVM tensor over the memory of an array that :func:`can_share`."""
    bits = _AS_BITS.get(str(array.dtype))
    source = array if bits is None else array.view(bits)
    tensor = tvm_ffi.from_dlpack(source if source.flags.writeable else np.asarray(_Memory(source)))
    return tensor if bits is None else view_bits(tensor, array.shape, str(array.dtype))


class _Memory:
    """Memory of a read-only array, which DLPack would refuse to hand over."""

    def __init__(self, array: Array) -> None:
        self.array = array  # held as long as the memory is used
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def as_array(value: Any) -> Array:
    """Return the NumPy array of a value, over the memory of tensors of TVM and PyTorch on a CPU.

    Raises
    ------
    TypeError, ValueError, RuntimeError, BufferError
        Where it is no array, such as rows of different lengths, or a sparse tensor.
    """
    if hasattr(value, "detach"):  # a tensor of PyTorch
        value = tvm_ffi.from_dlpack(value.detach().cpu().contiguous())
    if isinstance(value, tvm.runtime.Tensor):
        host: Array = to_array(value.copyto(tvm.cpu()) if value.device != tvm.cpu() else value)
        return host
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


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
        if is_donated and end <= first and last <= following and _is_shared_as_written(array):
            exclusive.add(id(array))
        end = max(end, last)
    return exclusive


def _is_shared_as_written(array: Array) -> bool:
    return array.flags.writeable and can_share(array)


def can_share(array: Array) -> bool:
    """Return whether a tensor can be made over the memory of an array."""
    is_aligned = array.ctypes.data % _ALIGNMENT_BYTES == 0
    is_known = (dtype := str(array.dtype)) in _SHARED or dtype in _AS_BITS
    return is_aligned and array.flags.c_contiguous and is_known and array.size > 0


def to_array(tensor: object) -> Any:
    """Return an array over the tensor's memory, or a copy where the type needs it.

    What is no tensor is an object of a device, and stays.
    """
    if not isinstance(tensor, tvm.runtime.Tensor):
        return tensor
    dtype = str(tensor.dtype)
    if dtype in _SHARED:
        return np.from_dlpack(tensor)
    if dtype in _AS_BITS:
        bits = view_bits(tensor, tensor.shape, _AS_BITS[dtype])
        return np.from_dlpack(bits).view(np_dtype(dtype))
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
