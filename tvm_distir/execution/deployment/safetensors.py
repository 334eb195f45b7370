# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write the safetensors format: a JSON header, then the arrays' bytes.

Read and written here, as it takes a page: boxes of arrays are read without the rest, types that
NumPy lacks included. Format: github.com/huggingface/safetensors, section *Format*.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

from .boxes import FileArray, unreadable

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _TYPES.items()}


def read_header(path: Path, sha256: str | None = None) -> dict[str, FileArray]:
    """Return the arrays of a file by name; none is read.

    Parameters
    ----------
    path : Path
    sha256 : str, optional
        What :func:`write` returned. The header is compared with it, and each array with its
        checksum when it is read.

    Raises
    ------
    EngineError
        DIST0641 for a file that is broken, holds an unknown type, or is not the one expected.
    """
    try:
        with open(path, "rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            (count,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if count > min(size_bytes - _LENGTH.size, _MOST_HEADER_BYTES):
                raise unreadable(path, f"its header has the length {count}")
            text = file.read(count)
            if sha256 is not None and hashlib.sha256(text).hexdigest() != sha256:
                raise unreadable(path, "its header does not have the recorded checksum")
            header = json.loads(text)
    except (OSError, struct.error, ValueError, RecursionError) as err:
        raise unreadable(path, f"it is not a safetensors file: {err}") from err
    start = _LENGTH.size + count
    if not isinstance(header, dict):
        raise unreadable(path, "its header is not a table of arrays")
    checksums = {} if sha256 is None else header.get(_METADATA, {})
    return {
        name: _array(path, name, item, start, size_bytes, checksums.get(name, ""))
        for name, item in header.items()
        if name != _METADATA
    }


def _array(path: Path, name: str, item: Any, start: int, size_bytes: int, sha256: str) -> FileArray:
    try:
        code, shape = str(item["dtype"]), tuple(int(n) for n in item["shape"])
        begin, end = (int(n) for n in item["data_offsets"])
    except (KeyError, TypeError, ValueError) as err:
        raise unreadable(path, f'"{name}" has an invalid description: {err}') from err
    if code not in _TYPES:
        raise unreadable(path, f'"{name}" has the unknown type {code}')
    dtype = np_dtype(_TYPES[code])
    if begin < 0 or min(shape, default=0) < 0:
        raise unreadable(path, f'"{name}" has a negative size or offset')
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > size_bytes:
        raise unreadable(
            path, f'the byte range of "{name}" does not match its shape, or exceeds the file'
        )
    return FileArray(path, shape, dtype, start + begin, sha256=sha256)


def write(
    path: Path,
    described: Mapping[str, tuple[tuple[int, ...], str]],
    make: Callable[[str], Array],
    checksums: Mapping[str, str] | None = None,
) -> str:
    """Write a file, one array at a time; see :func:`write_to`."""
    with open(path, "wb") as file:
        return write_to(file, described, make, checksums)


def write_to(
    file: BinaryIO,
    described: Mapping[str, tuple[tuple[int, ...], str]],
    make: Callable[[str], Array],
    checksums: Mapping[str, str] | None = None,
) -> str:
    """Write the content of a file, one array at a time.

    Parameters
    ----------
    file : binary stream
    described : mapping of name to shape and dtype name
    make : callable
        Gives the array of a name; called once for each, in order.
    checksums : mapping of name to str, optional
        The SHA-256 of the bytes of each array, which become metadata of the file.

    Returns
    -------
    sha256 : str
        The SHA-256 of the header.

    Raises
    ------
    EngineError
        DIST0642 for a type that safetensors files lack.
    """
    header: dict[str, Any] = {} if checksums is None else {_METADATA: dict(checksums)}
    end = 0
    for name, (shape, dtype) in described.items():
        if dtype not in _CODES:
            problem = f'"{name}" has the type {dtype}, which safetensors files lack'
            location = str(getattr(file, "name", "safetensors"))
            remedy = "Convert it to another type."
            raise EngineError("DIST0642", problem, location=location, remedy=remedy)
        begin, end = end, end + math.prod(shape) * np_dtype(dtype).itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(_LENGTH.pack(len(text)) + text)
    for name in described:
        file.write(np.ascontiguousarray(make(name)).reshape(-1).view(np.uint8).data)
    return hashlib.sha256(text).hexdigest()
