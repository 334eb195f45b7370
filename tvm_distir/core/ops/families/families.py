# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists the op families; an op outside of these modules has no hand-written rule."""

from __future__ import annotations

from typing import Final

from tvm_distir.core.ops.registration import Family

from . import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    grouped,
    indexing,
    joining,
    layout,
    looking_up,
    losses,
    norms,
    ordering,
    pad,
    paged_attention,
    pooling,
    pooling_back,
    reductions,
    reshape,
    resize,
    softmax,
    transposed,
    triangles,
    vision,
)

_MODULES = (
    attention, contraction, convolution, creation, elementwise, grouped, indexing, joining,
    layout, looking_up, losses, norms, ordering, pad, paged_attention, pooling, pooling_back,
    reductions, reshape, resize, softmax, transposed, triangles, vision,
)  # fmt: skip
FAMILIES: Final[tuple[Family, ...]] = tuple(module.FAMILY for module in _MODULES)
