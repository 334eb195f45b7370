# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the safetensors files beside a ``config.json`` as weights of the zoo's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.zoo.configs import Config
from tvm_distir.support import ModelError, read_json

from .weights import convert_weights

INDEX = "model.safetensors.index.json"
"""The file that says which file of a checkpoint holds which tensor."""
_PATTERN = "*.safetensors"


def holds_checkpoint(folder: Path) -> bool:
    """Return whether a folder has weights."""
    return (folder / INDEX).is_file() or any(folder.glob(_PATTERN))


def read_checkpoint(folder: Path, config: Config) -> dict[str, npt.NDArray[np.generic]]:
    """Return the weights in a folder by the names of the model's parameters.

    Files that the index does not name, such as those of another precision, are not read.

    Raises
    ------
    ModelError
        DIST0304 without safetensors; DIST0315 for an index or a file that cannot be read; DIST0335
        for a tensor that belongs to no weight of the model.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise ModelError(
            "DIST0304",
            "reading safetensors files requires the package safetensors, which is not installed",
            location=str(folder),
            remedy='Install the extra: pip install "tvm_distir[huggingface]".',
        )
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    state: dict[str, npt.NDArray[np.generic]] = {}
    for file in _files(folder):
        try:
            state.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise _unreadable(str(file), str(error)) from error
    weights = convert_weights(config, state)
    dtype = str(getattr(config, "dtype", "float32"))
    return {name: _as_type(value, dtype) for name, value in weights.items()}


def _as_type(value: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.generic]:
    """Cast weights of half precision, or to it, where the model was given another type."""
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    is_float = value.dtype.kind == "f" or value.dtype == ml_dtypes.bfloat16
    return value.astype(kind) if is_float and value.dtype != kind else value


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob(_PATTERN))
    data: Any = read_json(index, _unreadable)
    files = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(files, dict):
        raise _unreadable(str(index), "it has no weight_map")
    return [folder / Path(str(name)).name for name in sorted(set(files.values()))]


def _unreadable(
    location: str, problem: str, remedy: str = "Download the file again."
) -> ModelError:
    return ModelError("DIST0315", problem, location=location, remedy=remedy)
