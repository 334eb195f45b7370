# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the files of one checkpoint, of which any rank of any mesh reads the boxes that it needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.core.ir import Segments
from tvm_distir.execution.runtime.program.io_layout import Bounds, np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

from . import safetensors
from .boxes import FileArray, unreadable
from .checkpoint_files import LIST, SCHEMA_VERSION, CheckpointHead, complete_steps, list_checksum


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
    name : str
        The name in the model.
    is_optimizer : bool
        Whether it is state of the optimizer.
    segments : Segments, optional
        How its segments are interleaved in the parts.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    parts: tuple[tuple[Bounds, FileArray], ...]
    name: str = ""
    is_optimizer: bool = False
    segments: Segments | None = None

    def read(self, bounds: Bounds) -> Array:
        """Read a box from the parts that overlap it.

        Raises
        ------
        EngineError
            DIST0641 where the parts do not cover it, or are damaged.
        """
        if self.segments is None:
            return self._box(bounds)
        dim = self.segments.dim
        pieces = self.segments.targets(*bounds[dim])
        boxes = [(*bounds[:dim], piece, *bounds[dim + 1 :]) for piece in pieces]
        return np.concatenate([self._box(box) for box in boxes], axis=dim)

    def _box(self, bounds: Bounds) -> Array:
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

    def weights(self) -> dict[str, CheckpointArray]:
        """Return the arrays that are no state of the optimizer, by their names in the model."""
        return {a.name: a for a in self.arrays.values() if not a.is_optimizer}

    def values(self, names: Mapping[str, int], needed: Collection[int]) -> dict[int, Any]:
        """Return the arrays of a program by position.

        Parameters
        ----------
        names : mapping of str to int
            The positions of its weights and state, by their names in checkpoints.
        needed : collection of int
            Those that have to be there; others may be frozen.

        Raises
        ------
        EngineError
            DIST0641 where one of these is not there, or a weight is none of the program's.
        """
        lacking = [name for name, index in names.items() if index in needed]
        lacking = [name for name in lacking if name not in self.arrays]
        unknown = [n for n, a in self.arrays.items() if n not in names and not a.is_optimizer]
        if lacking or unknown:
            problem = f'the checkpoint lacks "{lacking[0]}"' if lacking else ""
            problem = problem or f'the program has no weight "{unknown[0]}" of the checkpoint'
            remedy = "Give a checkpoint of the same model and optimizer."
            raise EngineError("DIST0641", problem, location=str(self.path), remedy=remedy)
        return {names[name]: array for name, array in self.arrays.items() if name in names}


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
    if checksum != list_checksum(content):
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
    return CheckpointArray(
        where,
        tuple(int(n) for n in item["shape"]),
        np_dtype(str(item["dtype"])),
        tuple(parts),
        str(item.get("name", name)),
        bool(item.get("optimizer", False)),
        Segments.from_list(item["segments"]) if "segments" in item else None,
    )
