# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Re-export the core passes as part of the public names of :mod:`tvm_distir.transforms`."""

from __future__ import annotations

from tvm_distir.core.passes import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    PassInfo,
    PropagateSharding,
    Rewrite,
    module_pass,
)

__all__ = [
    "AnnotateSharding",
    "LegalizeRedistribute",
    "LowerDistIR",
    "PassInfo",
    "PropagateSharding",
    "Rewrite",
    "module_pass",
]
