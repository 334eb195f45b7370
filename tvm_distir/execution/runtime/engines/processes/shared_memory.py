# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Store a run's inputs and outputs in nameless shared memory.

The memory is a file without a name (memfd): processes get it as an open file, and it is gone
with the last of them, so that nothing is left behind however they end.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import to_tensor
from tvm_distir.support import EngineError

Array = npt.NDArray[Any]

_ALIGNMENT = 64
_ZERO_COPY = frozenset("iuf")


@dataclass(frozen=True)
class ArraySlot:
    """The position of an array in a :class:`Memory`.

    Attributes
    ----------
    offset : int
        The offset in bytes.
    shape : tuple of int
    dtype : str
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the array."""
        return math.prod(self.shape) * np_dtype(self.dtype).itemsize

    def to_list(self) -> list[Any]:
        """Return the fields as a list for a message."""
        return [self.offset, list(self.shape), self.dtype]

    @classmethod
    def from_list(cls, parts: Sequence[Any]) -> ArraySlot:
        """Read the array out of a message."""
        offset, shape, dtype = parts
        return cls(int(offset), tuple(int(n) for n in shape), str(dtype))


class MemoryLayout:
    """Places one array after the other."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def place(self, shape: Sequence[int], dtype: str) -> ArraySlot:
        """Return the place of a further array."""
        slot = ArraySlot(self.size_bytes, tuple(shape), dtype)
        self.size_bytes += -(-slot.size_bytes // _ALIGNMENT) * _ALIGNMENT
        return slot


class Memory:
    """A mapping of nameless shared memory.

    Parameters
    ----------
    file : int
        Open file; it stays the caller's.
    size_bytes : int
    private : bool
        Whether writes stay in this process.
    """

    def __init__(self, file: int, size_bytes: int, private: bool = False) -> None:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        self._bytes = np.frombuffer(mmap.mmap(file, max(size_bytes, 1), access=access), np.uint8)

    def array(self, place: ArraySlot) -> Array:
        """Return the array over the memory itself."""
        part = self._bytes[place.offset : place.offset + place.size_bytes]
        return part.view(np_dtype(place.dtype)).reshape(place.shape)

    def tensor(self, place: ArraySlot) -> Any:
        """Return the TVM tensor, over the memory itself where NumPy and TVM share the type."""
        result = self.array(place)
        return tvm_ffi.from_dlpack(result) if result.dtype.kind in _ZERO_COPY else to_tensor(result)


def make_file(size_bytes: int) -> int:
    """Open nameless memory of that size, zeroed; the caller closes it.

    Raises
    ------
    EngineError
        DIST0616 where there is none to be had.
    """
    if not hasattr(os, "memfd_create"):
        raise EngineError(
            "DIST0616",
            "anonymous shared memory is available on Linux only",
            place="engine processes",
            remedy="Use the engine threads.",
        )
    try:
        file = os.memfd_create("tvm_distir", os.MFD_CLOEXEC)
        os.ftruncate(file, max(size_bytes, 1))
    except OSError as err:
        raise EngineError(
            "DIST0616",
            f"no shared memory of {size_bytes} bytes can be allocated: {err}",
            place="engine processes",
            remedy="Give the process more memory, or use the engine threads.",
        ) from err
    return file
