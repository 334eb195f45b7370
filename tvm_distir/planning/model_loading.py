# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load the model of a step, with the samples of a single micro-batch."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tvm_distir.core.plan import data_positions
from tvm_distir.core.rewriting import entry_of
from tvm_distir.models import Model, load_model, model_file, zoo_spec
from tvm_distir.support import UsageError
from tvm_distir.transforms import OutlineRepeatedLayers

from .stage_memo import StageMemo


def load_part(
    spec: str | Path,
    batch: int | None,
    dims: Mapping[str, int] | None,
    parts: int,
    memo: StageMemo | None,
) -> Model:
    """Load a model with the samples of one of several micro-batches.

    Parameters
    ----------
    spec : str or Path
        MODEL string.
    batch : int, optional
        The samples of all micro-batches; None: those of the model, for each.
    dims : mapping of str to int, optional
        Sizes of symbolic dims.
    parts : int
        The number of micro-batches.
    memo : StageMemo, optional
        Keeps loaded models.

    Raises
    ------
    UsageError
        DIST0152 where the batch is no multiple of the micro-batches.
    """

    def load(batch: int | None) -> Model:
        if memo is None:
            return _load(spec, batch, dims)
        inputs = str(spec), _stamps(spec), batch, dims
        return memo.result("load", inputs, lambda: _load(spec, batch, dims))

    if batch is None or parts == 1:
        model = load(batch)
        if parts == 1 or model.is_text:
            return model
        entry = model.mod[entry_of(model.mod)]
        batch = int(entry.params[data_positions(entry)[0]].ty.shape[0])
    if batch % parts:
        raise UsageError(
            "DIST0152", f"the batch {batch} is not a multiple of the {parts} micro-batches",
            location="batch", remedy="Give the batch of a full step, a multiple of them.",
        )  # fmt: skip
    return load(batch // parts)


def _load(spec: str | Path, batch: int | None, dims: Mapping[str, int] | None) -> Model:
    """Load a model, its repeated layers as functions."""
    model = load_model(spec, batch=batch, dims=dims)
    if model.kind in ("onnx", "torch"):
        return replace(model, mod=OutlineRepeatedLayers()(model.mod))
    return model


def _stamps(spec: str | Path) -> list[tuple[str, int, int, int]]:
    """Return the name, inode, size and time of change of the files in the folder of a model.

    ONNX has weights there. Files in folders below, which have values of weights only, are left out.
    """
    path = model_file(zoo_spec(str(spec)))
    if path is None:
        return []
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if not folder.is_dir():
        return []
    stamps = []
    with contextlib.suppress(OSError):  # the loader says what cannot be read
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # another process has removed it
                at = entry.stat()
                if stat.S_ISREG(at.st_mode):
                    stamps.append((entry.name, at.st_ino, at.st_size, at.st_mtime_ns))
    return sorted(stamps)
