# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Models in: ONNX files, TVMScript, the zoo, and the MODEL strings of the command line."""

from __future__ import annotations

from . import zoo
from .draw import draw_inputs
from .inputs import InputSpec, input_specs
from .model import Model, from_onnx, load_model, load_weights
from .tvmscript import from_tvmscript

__all__ = [
    "InputSpec",
    "Model",
    "draw_inputs",
    "from_onnx",
    "from_tvmscript",
    "input_specs",
    "load_model",
    "load_weights",
    "zoo",
]
