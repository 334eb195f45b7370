# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the weights of a checkpoint, or of a session, to one file under the names of the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.execution.runtime.program.sharded import Stored
from tvm_distir.execution.runtime.program.tensors import Array, as_array
from tvm_distir.support import EngineError, write_atomically

from . import safetensors
from .checkpoint import open_weights


def export_weights(
    weights: Mapping[str, Any] | str | os.PathLike[str], path: str | os.PathLike[str]
) -> None:
    """Write weights to a safetensors file, which ``load_state_dict`` of a PyTorch module takes.

    Parameters
    ----------
    weights : mapping of str to array, str or path
        Full arrays by name, such as :meth:`.Session.state_dict` returns; or a checkpoint of a run,
        a folder of checkpoints, of which the last is read, or another file of weights
        (:func:`open_weights`). Of a checkpoint one array at a time is in memory.
    path : str or path
        The file, which is replaced when all is written.

    Raises
    ------
    EngineError
        DIST0641 for weights that cannot be read, DIST0642 for a file that cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     td.export_weights({"fc.weight": np.ones((4, 2), "float32")}, f"{folder}/w.safetensors")
    ...     list(td.open_weights(f"{folder}/w.safetensors"))
    ['fc.weight']
    """
    opened = open_weights(weights) if isinstance(weights, str | os.PathLike) else weights
    values = {n: v if isinstance(v, Stored) else as_array(v) for n, v in opened.items()}
    described = {n: (tuple(map(int, v.shape)), str(v.dtype)) for n, v in values.items()}

    def full(name: str) -> Array:
        value = values[name]
        if isinstance(value, np.ndarray):
            return value
        return value.read(tuple((0, n) for n in value.shape))

    where = Path(os.path.realpath(path))
    try:
        write_atomically(where, lambda file: safetensors.write_to(file, described, full))
    except OSError as error:
        problem = f"it cannot be written: {error.strerror or error}"
        remedy = "Free disk space, or give another path."
        raise EngineError("DIST0642", problem, location=str(where), remedy=remedy) from error
