# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules derived from TIR: for ``call_tir`` and for ops without a hand-written rule."""

from __future__ import annotations

from typing import Any

from tvm import ir

from .draft import CallShape, Draft
from .factor import Rule


def derive_primfunc(func: Any, shape: CallShape) -> Rule:
    """Derive the rule of a ``call_tir``."""
    draft = Draft(shape, "derived")
    return draft.rule()


def derive_call(call: ir.Call, shape: CallShape) -> Rule:
    """Derive the rule of an op call."""
    draft = Draft(shape, "derived")
    return draft.rule()
