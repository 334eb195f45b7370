# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Models in: ONNX files, TVMScript, the zoo, and the MODEL strings of the command line."""

from __future__ import annotations

from . import zoo
from .tvmscript import from_tvmscript

__all__ = ["from_tvmscript", "zoo"]
