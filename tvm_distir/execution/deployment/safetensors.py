# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write the safetensors format: a JSON header, then the arrays' bytes.

Read and written here, as it takes a page: boxes of arrays are read without the rest, types that
NumPy lacks included. Format: github.com/huggingface/safetensors, section *Format*.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.execution.runtime.program.io_layout import np_dtype

from .boxes import FileArray, unreadable

Array = npt.NDArray[Any]

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 100_000_000
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


def read_header(path: Path) -> dict[str, FileArray]:
    """Return the arrays of a file by name; none is read.

    Raises
    ------
    EngineError
        DIST0641 for a file that is broken, or holds an unknown type.
    """
    try:
        with open(path, "rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            head = file.read(_LENGTH.size)
            (count,) = _LENGTH.unpack(head)
            if count > min(size_bytes - _LENGTH.size, _MOST_HEADER_BYTES):
                raise unreadable(path, f"its header has the length {count}")
            header = json.loads(file.read(count))
    except (OSError, struct.error, ValueError, RecursionError) as err:
        raise unreadable(path, f"it is not a safetensors file: {err}") from err
    start = _LENGTH.size + count
    if not isinstance(header, dict):
        raise unreadable(path, "its header is not a table of arrays")
    return {
        name: _array(path, name, item, start, size_bytes)
        for name, item in header.items()
        if name != "__metadata__"
    }


def _array(path: Path, name: str, item: Any, start: int, size_bytes: int) -> FileArray:
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
    return FileArray(path, shape, dtype, start + begin)


def write(
    path: Path, described: Mapping[str, tuple[tuple[int, ...], str]], make: Callable[[str], Array]
) -> None:
    """Write a file, one array at a time.

    Parameters
    ----------
    path : Path
    described : mapping of name to shape and dtype name
    make : callable
        Gives the array of a name; called once for each, in order.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, (shape, dtype) in described.items():
        begin, end = end, end + math.prod(shape) * np_dtype(dtype).itemsize
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        for name in described:
            file.write(np.ascontiguousarray(make(name)).reshape(-1).view(np.uint8).data)
