# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open the weights of safetensors, npz and npy files without reading them."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from tvm_distir.execution.runtime.program.sharded import Stored
from tvm_distir.support import file_fault, shortened

from . import safetensors
from .boxes import BROKEN, FileArray, unreadable
from .checkpoint_files import is_checkpoint
from .checkpoint_reading import read_checkpoint

_LOCAL_HEADER = struct.Struct("<26xHH")
"""The header of a zip member: the lengths of its name and of its extra field, 30 bytes in total."""

_MOST_HEADER_BYTES = 1 << 20
INDEX_SUFFIX = ".safetensors.index.json"


def open_weights(path: str | os.PathLike[str]) -> Mapping[str, Stored]:
    """Open weights for reading by shards.

    Parameters
    ----------
    path : str or path
        A ``.safetensors``, ``.npz`` or ``.npy`` file, an index of several safetensors files, or a
        folder that holds such files; or a checkpoint of a run, or a folder of checkpoints, of which
        the last is opened.

    Returns
    -------
    arrays : mapping of str to Stored
        The arrays for :func:`tvm_distir.run` or :func:`tvm_distir.deploy`: every rank reads its
        shard. The array of an ``.npy`` file has the file's name. Of a checkpoint the weights under
        their names in the model, without the state of the optimizer.

    Raises
    ------
    EngineError
        DIST0641 for a file that is missing, broken, or of another kind.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/weights.npz", w=np.ones((4, 2), "float32"))
    ...     weights = td.open_weights(f"{folder}/weights.npz")
    >>> weights["w"].shape
    (4, 2)
    """
    where = Path(os.path.realpath(path))
    if where.is_dir():
        return read_checkpoint(where).weights() if is_checkpoint(where) else _folder(where)
    return _file(where)


def _file(where: Path) -> dict[str, FileArray]:
    fault = file_fault(where)
    if fault is not None:
        raise unreadable(where, fault)
    for suffix, read in _KINDS.items():
        if where.name.endswith(suffix):
            return read(where)
    raise unreadable(where, f"it is not one of {', '.join(_KINDS)}")


def _folder(where: Path) -> dict[str, FileArray]:
    indices = sorted(where.glob(f"*{INDEX_SUFFIX}"))
    if indices:
        return _index(indices[0])
    files = [p for p in sorted(where.iterdir()) if p.suffix in _KINDS]
    if not files:
        raise unreadable(where, "the folder contains no weights")
    result: dict[str, FileArray] = {}
    for file in files:
        for name, array in _file(file).items():
            if name in result:
                raise unreadable(file, f'"{name}" is also in {result[name].path.name}')
            result[name] = array
    return result


def _index(where: Path) -> dict[str, FileArray]:
    try:
        homes = json.loads(where.read_text(encoding="utf-8"))["weight_map"]
        files = {name: where.parent / str(file) for name, file in homes.items()}
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError) as err:
        raise unreadable(where, f"it is not an index of safetensors files: {err}") from err
    for file in sorted(set(files.values())):
        if file.parent != where.parent or file.name in ("", ".."):
            raise unreadable(where, f'"{shortened(file.name)}" is not in the folder of the index')
    opened = {file: safetensors.read_header(file) for file in sorted(set(files.values()))}
    missing = sorted(name for name, file in files.items() if name not in opened[file])
    if missing:
        raise unreadable(where, f"its files lack {', '.join(missing[:5])}")
    return {name: opened[file][name] for name, file in files.items()}


def _npz(where: Path) -> dict[str, FileArray]:
    try:
        with zipfile.ZipFile(where) as archive:
            return {
                info.filename.removesuffix(".npy"): _member(where, archive, info)
                for info in archive.infolist()
            }
    except BROKEN as err:
        raise unreadable(where, f"it is not an npz file: {err}") from err


def _member(where: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> FileArray:
    with archive.open(info) as stream:
        shape, dtype = _npy_header(where, stream, info.filename)
        begin = stream.tell()
    if info.compress_type != zipfile.ZIP_STORED:
        return FileArray(where, shape, dtype, begin, info.filename)
    with open(where, "rb") as file:
        file.seek(info.header_offset)
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    return FileArray(where, shape, dtype, start + begin)


def _npy(where: Path) -> dict[str, FileArray]:
    try:
        with open(where, "rb") as file:
            shape, dtype = _npy_header(where, file, where.name)
            return {where.stem: FileArray(where, shape, dtype, file.tell())}
    except BROKEN as err:
        raise unreadable(where, f"it is not an npy file: {err}") from err


class _Head:
    """The beginning of a stream, limited to the size that a header can have."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, _MOST_HEADER_BYTES

    def read(self, count: int = -1, /) -> bytes:
        """Read ``count`` bytes, fewer at the end."""
        self._left -= count
        if count < 0 or self._left < 0:
            raise ValueError(f"a header of over {_MOST_HEADER_BYTES} bytes")
        content: bytes = self._stream.read(count)
        return content


def _npy_header(
    where: Path, stream: IO[bytes], name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise unreadable(where, f'"{name}" has the unknown version {version}')
    shape, is_fortran, dtype = read(_Head(stream))
    if any(n < 0 for n in shape):
        raise unreadable(where, f'"{name}" has the shape {list(shape)}')
    if dtype.hasobject:
        raise unreadable(where, f'"{name}" contains Python objects')
    if is_fortran and len(shape) > 1:
        raise unreadable(where, f'"{name}" is column-major; save numpy.ascontiguousarray of it')
    return tuple(int(n) for n in shape), dtype


_KINDS: dict[str, Callable[[Path], dict[str, FileArray]]] = {
    ".safetensors": safetensors.read_header,
    INDEX_SUFFIX: _index,
    ".npz": _npz,
    ".npy": _npy,
}
