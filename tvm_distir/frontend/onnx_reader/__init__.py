# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX in: skeletons without weights, shapes and batch, the import, and the weights of a file."""

from __future__ import annotations

from .importer import from_onnx
from .resolve import with_batch
from .weights import load_weights

__all__ = ["from_onnx", "load_weights", "with_batch"]
