# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the files that register gradients where TVM has none, or a wrong or costly gradient."""

from __future__ import annotations

from . import (  # noqa: F401 (they register theirs)
    activations,
    attention,
    contractions,
    convolutions,
    elementwise,
    layout,
    lookups,
    norms,
    ordering,
    padding,
    pools,
    primfuncs,
    reductions,
    resampling,
    sampling,
    unmoved,
    writes,
)
