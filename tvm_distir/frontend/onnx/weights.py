# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The weights of an ONNX file, read when they are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import ir

from ...errors import ModelError
from ...ir import FRONTEND_ATTR
from .reading import check_complete, read_model
from .scopes import name_weights
from .skeleton import strip_weights


def load_weights(
    source: ir.IRModule | onnx.ModelProto | str | Path, *, filled: bool = True
) -> dict[str, npt.NDArray[np.generic]]:
    """Read the weights of a model, by the names that `main`'s parameters have.

    Parameters
    ----------
    source : IRModule, ModelProto, str or Path
        A module that `from_onnx` made of a file (the file must still be there), the ONNX model,
        or its path.
    filled : bool
        Whether to give weights that the file only describes (ConstantOfShape nodes) too.

    Raises
    ------
    ModelError
        DIST0315 the weights cannot be read, or the module does not come from a file;
        DIST0301, DIST0303 the file cannot be read.
    """
    if isinstance(source, ir.IRModule):
        source = _source_of(source)
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


def _source_of(mod: ir.IRModule) -> str:
    attrs: Any = mod.attrs or {}
    about = attrs.get(FRONTEND_ATTR)
    if about is None or about["format"] != "onnx" or not about["source"]:
        raise ModelError(
            "DIST0315",
            "the module does not say which file its weights are in",
            place="module",
            remedy="Give the ONNX file to load_weights.",
        )
    return str(about["source"])
