# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect all translated operators, and those among them that torch would decompose."""

from __future__ import annotations

from . import (
    arithmetic,
    backward,
    contraction,
    creation,
    elementwise,
    grouped_products,
    indexing,
    normalization,
    pieces,
    reductions,
    views,
    windows,
)
from .aten_call import Converter

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,
    **elementwise.CONVERTERS,
    **creation.CONVERTERS,
    **views.CONVERTERS,
    **pieces.CONVERTERS,
    **indexing.CONVERTERS,
    **reductions.CONVERTERS,
    **contraction.CONVERTERS,
    **grouped_products.CONVERTERS,
    **normalization.CONVERTERS,
    **windows.CONVERTERS,
    **backward.CONVERTERS,
}
"""The converter of each call, by operator and overload."""

DECOMPOSED = ("grid_sampler_2d",)
"""Core operators of ATen that are not translated, and that torch decomposes if it is asked to."""

NOTES: tuple[str, ...] = (
    "_assert_tensor_metadata.default",
    "_assert_scalar.default",
    "_assert_async.msg",
)
NOTES += ("sym_constrain_range_for_size.default", "sym_constrain_range.default")
"""Operators that check and compute nothing."""


def overload_name(target: object) -> str:
    """Return ``add.Tensor`` for ``torch.ops.aten.add.Tensor``, or the name of other targets."""
    is_aten = getattr(target, "namespace", None) == "aten"
    return str(getattr(target, "__name__", target) if is_aten else target)


def is_translated(target: object) -> bool:
    """Return whether calls of an overload are translated."""
    return overload_name(target) in CONVERTERS
