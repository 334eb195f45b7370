# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build numeric constants of a module."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.op import astype


def array_like(values: np.ndarray, like: Any, builder: relax.BlockBuilder) -> Any:
    """Return a constant of the type of a tensor."""
    dtype = str(like.ty.dtype)
    if dtype in ("float32", "float64"):
        return relax.const(values.astype(dtype), dtype)
    return builder.emit(astype(relax.const(values.astype("float32"), "float32"), dtype))
