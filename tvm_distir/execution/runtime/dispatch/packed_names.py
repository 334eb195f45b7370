# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the kernels of other libraries that programs call; needs TVM's runtime alone."""

from __future__ import annotations

from tvm_distir.support import EngineError, nearest

DISPATCHES = ("torch",)
"""The libraries whose kernels a program can call."""

TORCH_PREFIX = "tvm_distir.torch."
"""Prefix of the packed functions of PyTorch's kernels."""
PREFIXES = (TORCH_PREFIX,)
"""Prefixes of the packed functions of all libraries."""
CAUSAL = (None, "TopLeft", "BottomRight")
"""Causal masks of ``nn.attention``, by the number that a packed function gets."""


def check_dispatch(dispatch: str | None) -> None:
    """Refuse (DIST0623) a library that is not in :data:`DISPATCHES`."""
    if dispatch is not None and dispatch not in DISPATCHES:
        problem = f'there are no kernels of "{dispatch}"'
        remedy = nearest(str(dispatch), DISPATCHES)
        raise EngineError("DIST0623", problem, location="dispatch", remedy=remedy)
