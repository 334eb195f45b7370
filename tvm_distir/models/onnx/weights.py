# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the weights of an ONNX file on demand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from .onnx_file import check_complete, read_model
from .scopes import name_weights
from .skeleton import strip_weights


def load_weights(
    source: onnx.ModelProto | str | Path, *, filled: bool = True
) -> dict[str, npt.NDArray[np.generic]]:
    """Read the weights of a model, by the names that `main`'s parameters have.

    Parameters
    ----------
    source : ModelProto, str or Path
        The ONNX model, or its path.
    filled : bool
        Whether to give weights that the file only describes (ConstantOfShape nodes) too.

    Raises
    ------
    ModelError
        DIST0315 the weights cannot be read; DIST0301, DIST0303 the file cannot.
    """
    if isinstance(source, onnx.ModelProto):
        model, folder = source, ""
    else:
        model, folder = read_model(source), str(Path(source).parent)
        check_complete(model, str(source))
    skeleton = strip_weights(model, folder)
    name_weights(skeleton)
    return {
        name: weight.array(folder)
        for name, weight in skeleton.weights.items()
        if filled or weight.tensor is not None
    }
