# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write and read checkpoints: the state of each rank as a safetensors file, readable on any mesh.

A checkpoint is a folder ``step-<n>`` with ``rank-<device>.safetensors`` of every rank, and
``checkpoint.json``, which lists the box of the full tensor that each part holds. Files get their
names when they are complete, and the list is written last: a folder without it is no checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core import plain_name
from tvm_distir.execution.deployment import safetensors
from tvm_distir.execution.deployment.boxes import FileArray, unreadable
from tvm_distir.execution.runtime.program.io_layout import Bounds, EntryFunction, Port, np_dtype
from tvm_distir.support import EngineError, write_whole

Array = npt.NDArray[Any]

LIST = "checkpoint.json"
SCHEMA_VERSION = 1
_FOLDER = re.compile(r"step-(\d+)")


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a number of steps."""
    return folder / f"step-{step:08d}"


def _unwritable(place: Path, error: OSError) -> EngineError:
    return EngineError(
        "DIST0642",
        f"it cannot be written: {error.strerror or error}",
        place=str(place),
        remedy="Free disk space, or give another folder.",
    )


def write_part(
    folder: Path,
    step: int,
    entry: EntryFunction,
    rank: int,
    state: Mapping[int, Array],
) -> None:
    """Write the state of a rank.

    Parameters
    ----------
    folder : Path
        The folder of all checkpoints.
    step : int
        The number of steps that are done.
    entry : EntryFunction
        The entry of the rank.
    rank : int
        The device id.
    state : mapping of int to array
        The local arrays by position of the input; padding is not written.

    Raises
    ------
    EngineError
        DIST0642 where the folder cannot be written.
    """
    target = checkpoint_folder(folder, step) / f"rank-{rank}.safetensors"
    arrays = {plain_name(p.name): _content(entry, p, rank, state) for p in _kept(entry, state)}
    described = {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            safetensors.write(part, described, arrays.__getitem__)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as err:
        raise _unwritable(target, err) from err


def _kept(entry: EntryFunction, state: Mapping[int, Any]) -> list[Port]:
    return [port for port in entry.inputs if port.index in state]


def _content(entry: EntryFunction, port: Port, rank: int, state: Mapping[int, Array]) -> Array:
    box = entry.bounds(port, rank)
    return np.asarray(state[port.index][tuple(slice(0, b - a) for a, b in box)])


def write_list(
    folder: Path, step: int, entries: Sequence[EntryFunction], state: Sequence[int]
) -> None:
    """Complete a checkpoint whose parts are all written.

    Parameters
    ----------
    folder, step
        See :func:`write_part`.
    entries : sequence of EntryFunction
    state : sequence of int
        The positions of the inputs that are state.
    """
    arrays: dict[str, Any] = {}
    for entry in entries:
        for port in (p for p in entry.inputs if p.index in set(state)):
            item = arrays.setdefault(
                plain_name(port.name),
                {"shape": list(port.shape), "dtype": port.dtype, "parts": []},
            )
            item["parts"] += [
                {"rank": rank, "box": [list(extent) for extent in entry.bounds(port, rank)]}
                for rank in entry.ranks
            ]
    content = {"schema_version": SCHEMA_VERSION, "step": step, "arrays": arrays}
    target = checkpoint_folder(folder, step) / LIST
    try:
        write_whole(target, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as err:
        raise _unwritable(target, err) from err


@dataclass(frozen=True)
class CheckpointArray:
    """An array of a checkpoint, of which any box can be read.

    Attributes
    ----------
    path : Path
        The folder of the checkpoint, for messages.
    shape : tuple of int
    dtype : numpy dtype
    parts : tuple of (box, FileArray)
        The boxes of the full tensor that files hold.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[tuple[Bounds, FileArray], ...]

    def read(self, bounds: Bounds) -> Array:
        """Read a box from the parts that overlap it.

        Raises
        ------
        EngineError
            DIST0641 where the parts do not cover it.
        """
        for box, file in self.parts:
            if box == bounds:
                return file.read(tuple((0, n) for n in file.shape))
        out = np.zeros([b - a for a, b in bounds], self.dtype)
        seen = np.zeros(out.shape, np.bool_)
        for box, file in self.parts:
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, bounds)]
            if any(a >= b for a, b in common):
                continue
            source = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, bounds))
            if not seen[source].all():
                target = tuple((a - c, b - c) for (a, b), (c, _) in zip(common, box))
                out[source] = file.read(target)
                seen[source] = True
        if not seen.all():
            raise unreadable(self.path, f"its parts lack some of {list(map(list, bounds))}")
        return out


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes
    ----------
    step : int
        The number of steps that were done.
    arrays : mapping of str to CheckpointArray
    """

    step: int
    arrays: Mapping[str, CheckpointArray]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint, or the last one of a folder of checkpoints; no array is read yet.

    Files of ranks that are not on this host are left out.

    Raises
    ------
    EngineError
        DIST0641 where there is none, or its list cannot be read.
    """
    where = folder if (folder / LIST).is_file() else _last(folder)
    try:
        content = json.loads((where / LIST).read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise unreadable(where / LIST, f"it has the schema {content['schema_version']}")
        arrays = {name: _array(where, name, item) for name, item in content["arrays"].items()}
        return Checkpoint(int(content["step"]), arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise unreadable(where / LIST, f"it is not a list of a checkpoint: {err}") from err


def _last(folder: Path) -> Path:
    checkpoints = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _FOLDER.fullmatch(path.name)) and (path / LIST).is_file()
    ]
    if not checkpoints:
        raise unreadable(folder, "it contains no complete checkpoint")
    return max(checkpoints)[1]


def _array(where: Path, name: str, item: Mapping[str, Any]) -> CheckpointArray:
    parts: list[tuple[Bounds, FileArray]] = []
    for part in item["parts"]:
        path = where / f"rank-{int(part['rank'])}.safetensors"
        if not path.is_file():
            continue
        header = safetensors.read_header(path)
        if name not in header:
            raise unreadable(path, f'it lacks "{name}"')
        box = tuple((int(a), int(b)) for a, b in part["box"])
        if header[name].shape != tuple(b - a for a, b in box):
            raise unreadable(path, f'"{name}" does not have the shape that {LIST} says')
        parts.append((box, header[name]))
    shape = tuple(int(n) for n in item["shape"])
    return CheckpointArray(where, shape, np_dtype(str(item["dtype"])), tuple(parts))
