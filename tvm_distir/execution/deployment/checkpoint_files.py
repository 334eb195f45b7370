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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.core.plan import plain_name
from tvm_distir.execution.runtime.program.io_layout import Entries, EntryFunction
from tvm_distir.execution.runtime.program.tensors import Array

from . import safetensors
from .boxes import sha256_of

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


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or holds complete ones."""
    return (folder / LIST).is_file() or bool(complete_steps(folder))


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
    optimizer: Collection[int] = (),
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
    optimizer : collection of int
        The positions of state of the optimizer.
    """
    arrays: dict[str, Any] = {}
    for entry in entries:
        for port in (p for p in entry.inputs if p.index in set(state)):
            item = arrays.setdefault(
                plain_name(port.name),
                {
                    "name": port.name,
                    "shape": list(port.shape),
                    "dtype": port.dtype,
                    "optimizer": port.index in optimizer,
                    **({"segments": port.segments.to_list()} if port.segments else {}),
                    "parts": [],
                },
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
    text = json.dumps({**content, "sha256": list_checksum(content)}, indent=1) + "\n"
    (folder / LIST).write_text(text, encoding="utf-8")
    sync(folder / LIST)


def list_checksum(content: Mapping[str, object]) -> str:
    """Return the checksum of a list of a checkpoint."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
