# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write and read the files of one checkpoint, which is readable on any mesh.

A complete checkpoint is a folder ``step-<n>`` with ``rank-<device>.safetensors`` of every rank, and
``checkpoint.json``, which lists the box of the full tensor that each part holds. The list has a
checksum of itself and of each file's header, and the header those of the arrays, so that every
byte that is read is compared with what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.core.plan import plain_name
from tvm_distir.execution.runtime.program.io_layout import Bounds, Entries, EntryFunction, np_dtype
from tvm_distir.execution.runtime.program.tensors import Array

from . import safetensors
from .boxes import FileArray, sha256_of, unreadable

LIST = "checkpoint.json"
SCHEMA_VERSION = 2
_FOLDER = re.compile(r"step-(\d+)")


def step_name(step: int) -> str:
    """Return the name of the folder of the checkpoint after a number of steps."""
    return f"step-{step:08d}"


def complete_steps(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints of a folder: their paths by number of steps, in order."""
    steps = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _FOLDER.fullmatch(path.name))
    }
    return dict(sorted(steps.items()))


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_part(folder: Path, entry: EntryFunction, rank: int, state: Mapping[int, Array]) -> str:
    """Write the state of a rank.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoint.
    entry : EntryFunction
        The entry of the rank.
    rank : int
        The device id.
    state : mapping of int to array
        The local arrays by position of the input; padding is not written.

    Returns
    -------
    sha256 : str
        The checksum for :func:`write_list`.

    Raises
    ------
    OSError
        Where it cannot be written.
    """
    arrays = {}
    for port in (p for p in entry.inputs if p.index in state):
        box = tuple(slice(0, b - a) for a, b in entry.bounds(port, rank))
        arrays[plain_name(port.name)] = np.asarray(state[port.index][box])
    described = {key: (array.shape, str(array.dtype)) for key, array in arrays.items()}
    checksums = {key: sha256_of(array) for key, array in arrays.items()}
    path = folder / f"rank-{rank}.safetensors"
    header = safetensors.write(path, described, arrays.__getitem__, checksums)
    sync(path)
    return header


@dataclass(frozen=True)
class CheckpointHead:
    """The statements of a checkpoint besides its arrays.

    Attributes
    ----------
    run : str
        The run that wrote it; a run that is resumed keeps its name.
    step : int
        The number of steps that were done.
    data : mapping of str to str
        Checksums of the inputs of the last step that are no state, by name.
    """

    run: str
    step: int
    data: Mapping[str, str]


def write_list(
    folder: Path,
    head: CheckpointHead,
    entries: Entries,
    state: Sequence[int],
    headers: Mapping[int, str],
) -> None:
    """Write the list of a checkpoint whose parts are all written.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoint.
    head : CheckpointHead
    entries : sequence of EntryFunction
    state : sequence of int
        The positions of the inputs that are state.
    headers : mapping of int to str
        What :func:`write_part` returned, by rank.
    """
    arrays: dict[str, Any] = {}
    for entry in entries:
        for port in (p for p in entry.inputs if p.index in set(state)):
            item = arrays.setdefault(
                plain_name(port.name), {"shape": list(port.shape), "dtype": port.dtype, "parts": []}
            )
            item["parts"] += [
                {"rank": rank, "box": [list(extent) for extent in entry.bounds(port, rank)]}
                for rank in entry.ranks
            ]
    content = {
        "schema_version": SCHEMA_VERSION,
        "run": head.run,
        "step": head.step,
        "data": dict(head.data),
        "headers": {str(rank): header for rank, header in headers.items()},
        "arrays": arrays,
    }
    text = json.dumps({**content, "sha256": _checksum(content)}, indent=1) + "\n"
    (folder / LIST).write_text(text, encoding="utf-8")
    sync(folder / LIST)


def _checksum(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    dtype: np.dtype[np.generic]
    parts: tuple[tuple[Bounds, FileArray], ...]

    def read(self, bounds: Bounds) -> Array:
        """Read a box from the parts that overlap it.

        Raises
        ------
        EngineError
            DIST0641 where the parts do not cover it, or are damaged.
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
    """A checkpoint that was opened.

    Attributes
    ----------
    path : Path
    head : CheckpointHead
    arrays : mapping of str to CheckpointArray
    """

    path: Path
    head: CheckpointHead
    arrays: Mapping[str, CheckpointArray]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint, or the last one of a folder of checkpoints; no array is read yet.

    Files of ranks that are not on this host are left out.

    Raises
    ------
    EngineError
        DIST0641 where there is none, or its list or a header is damaged.
    """
    steps = {} if (folder / LIST).is_file() else complete_steps(folder)
    if not steps and not (folder / LIST).is_file():
        raise unreadable(folder, "it contains no complete checkpoint")
    where = steps[max(steps)] if steps else folder
    content = _read_list(where)
    try:
        headers = {int(rank): str(text) for rank, text in content["headers"].items()}
        files = {
            rank: safetensors.read_header(where / f"rank-{rank}.safetensors", header)
            for rank, header in headers.items()
            if (where / f"rank-{rank}.safetensors").is_file()
        }
        arrays = {
            name: _array(where, name, item, files) for name, item in content["arrays"].items()
        }
        data = {str(name): str(text) for name, text in content["data"].items()}
        head = CheckpointHead(str(content["run"]), int(content["step"]), data)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise unreadable(where / LIST, f"it is not a list of a checkpoint: {err}") from err
    return Checkpoint(where, head, arrays)


def _read_list(where: Path) -> dict[str, Any]:
    try:
        content = json.loads((where / LIST).read_text(encoding="utf-8"))
        version, checksum = content["schema_version"], content.pop("sha256", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise unreadable(where / LIST, f"it is not a list of a checkpoint: {err}") from err
    if version != SCHEMA_VERSION:
        raise unreadable(where / LIST, f"it has the schema {version}")
    if checksum != _checksum(content):
        raise unreadable(where / LIST, "it does not have its own checksum")
    result: dict[str, Any] = content
    return result


def _array(
    where: Path, name: str, item: Mapping[str, Any], files: Mapping[int, Mapping[str, FileArray]]
) -> CheckpointArray:
    parts: list[tuple[Bounds, FileArray]] = []
    for part in item["parts"]:
        file = files.get(int(part["rank"]))
        if file is None:
            continue
        if name not in file:
            raise unreadable(where, f'the part of rank {part["rank"]} lacks "{name}"')
        box = tuple((int(a), int(b)) for a, b in part["box"])
        if file[name].shape != tuple(b - a for a, b in box):
            raise unreadable(
                file[name].path, f'"{name}" does not have the shape that {LIST} states'
            )
        parts.append((box, file[name]))
    shape = tuple(int(n) for n in item["shape"])
    return CheckpointArray(where, shape, np_dtype(str(item["dtype"])), tuple(parts))
