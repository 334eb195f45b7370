# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read boxes of arrays in files, a run of neighboring elements at a time."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tvm_distir.execution.runtime.program.io_layout import Bounds
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

_PIECE_BYTES = 1 << 18
Reader = Callable[[int, int], bytes]
"""Reads a number of bytes from a position on."""
BROKEN = (
    *(OSError, EOFError, LookupError, MemoryError, NotImplementedError, RuntimeError),
    *(SyntaxError, ValueError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""The errors that readers of archives and of NumPy's headers raise for damaged files."""


@dataclass(frozen=True)
class FileArray:
    """An array in a file, row-major.

    Attributes
    ----------
    path : Path
    shape : tuple of int
    dtype : numpy dtype
    start : int
        Position of its first byte in the file, or in the archive's member.
    member : str
        Name of a compressed member of a zip archive; empty for plain bytes.
    sha256 : str
        The checksum of its bytes; empty where none is known.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    start: int
    member: str = ""
    sha256: str = ""

    def read(self, bounds: Bounds) -> Array:
        """Read a box; unless there is a checksum, no other element is held in memory.

        Raises
        ------
        EngineError
            DIST0641 when the file has gone, has become shorter, or has another checksum.
        """
        if not self.sha256:
            return self._read(bounds)
        full = self._read(tuple((0, n) for n in self.shape))
        if sha256_of(full) != self.sha256:
            raise unreadable(self.path, "an array does not have the recorded checksum")
        return full[tuple(slice(a, b) for a, b in bounds)]

    def _read(self, bounds: Bounds) -> Array:
        try:
            if not self.member:
                descriptor = os.open(self.path, os.O_RDONLY)
                try:
                    return self._box(lambda at, count: os.pread(descriptor, count, at), bounds)
                finally:
                    os.close(descriptor)
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:

                def read_packed(at: int, count: int) -> bytes:
                    stream.seek(at)  # earlier bytes are unpacked and dropped
                    return stream.read(count)

                return self._box(read_packed, bounds)
        except BROKEN as err:
            raise unreadable(self.path, str(err)) from err

    def _box(self, read: Reader, bounds: Bounds) -> Array:
        sizes = [b - a for a, b in bounds]
        out = np.empty(sizes, self.dtype)
        if not out.size:
            return out
        # Dims after the last dim that is cut are read in a single run with it.
        cut = [i for i, ((a, b), n) in enumerate(zip(bounds, self.shape)) if (a, b) != (0, n)]
        last = cut[-1] if cut else 0
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        flat = out.reshape(-1, math.prod(sizes[last:]))
        first = sum(a * s for (a, _), s in zip(bounds[last:], strides[last:]))
        for row, index in zip(flat, itertools.product(*(range(a, b) for a, b in bounds[:last]))):
            element = first + sum(i * s for i, s in zip(index, strides))
            self._fill(read, element, row.view(np.uint8))
        return out

    def _fill(self, read: Reader, element: int, out: npt.NDArray[np.uint8]) -> None:
        """Read neighboring elements, a piece at a time."""
        begin = self.start + element * self.dtype.itemsize
        for position in range(0, out.nbytes, _PIECE_BYTES):
            piece = out[position : position + _PIECE_BYTES]
            data = read(begin + position, piece.nbytes)
            if len(data) != piece.nbytes:
                raise unreadable(self.path, f"it ends {piece.nbytes - len(data)} bytes too early")
            piece[:] = np.frombuffer(data, np.uint8)


def sha256_of(array: Array) -> str:
    """Return the SHA-256 of the bytes of an array, row-major."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(content.data).hexdigest()


def unreadable(path: Path, problem: str) -> EngineError:
    """Return the error DIST0641 for a file that cannot be read."""
    return EngineError(
        "DIST0641", problem, location=str(path), remedy="Check the file, or write it again."
    )
