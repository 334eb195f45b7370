# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""All operators that are translated, and those of them that torch would take apart."""

from __future__ import annotations

from typing import Any

from . import (
    arithmetic,
    backward,
    contraction,
    creation,
    elementwise,
    indexing,
    normalization,
    pieces,
    reductions,
    shapes,
    windows,
)
from .call import Converter

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,
    **elementwise.CONVERTERS,
    **creation.CONVERTERS,
    **shapes.CONVERTERS,
    **pieces.CONVERTERS,
    **indexing.CONVERTERS,
    **reductions.CONVERTERS,
    **contraction.CONVERTERS,
    **normalization.CONVERTERS,
    **windows.CONVERTERS,
    **backward.CONVERTERS,
}
"""Who writes a call, by operator and overload."""

NOTES: tuple[str, ...] = (
    "_assert_tensor_metadata.default",
    "_assert_scalar.default",
    "_assert_async.msg",
)
NOTES += ("sym_constrain_range_for_size.default", "sym_constrain_range.default")
"""Operators that check and compute nothing."""


def overload_name(target: Any) -> str:
    """``add.Tensor`` for ``torch.ops.aten.add.Tensor``; the name of what is no operator of ATen."""
    if getattr(target, "namespace", None) == "aten":
        return str(target.__name__)
    return str(target)


def is_translated(target: Any) -> bool:
    """Whether calls of an overload are written here."""
    return overload_name(target) in CONVERTERS
