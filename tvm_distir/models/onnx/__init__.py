# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import ONNX models: skeletons without weights, shapes, batch and the weights of a file."""

from __future__ import annotations
