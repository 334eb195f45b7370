# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX in: skeletons without weights, shapes and batch, the import, and the weights of a file."""

from __future__ import annotations
