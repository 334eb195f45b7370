# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw weights from their names, the same everywhere."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def drawn_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, npt.NDArray[Any]]:
    """Return float32 weights by name: uniform, of a size that keeps activations near 1."""
    weights = {}
    for name, shape in shapes.items():
        seed = 0 if name == "lm_head.weight" else zlib.crc32(name.encode())
        seed = 0 if name.endswith("embed_tokens.weight") else seed  # tied to the head
        values = np.random.default_rng(seed).uniform(-1.0, 1.0, tuple(shape))
        scale = 2.0 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.3
        center = 1.0 if len(shape) == 1 and "norm" in name else 0.0
        weights[name] = np.asarray(values * scale + center, "float32")
    return weights
