# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Numbers as constants of a module."""

from __future__ import annotations

import functools
from typing import Any

from tvm import ir, relax


@functools.cache
def _known(digits: str, dtype: str) -> Any:
    return relax.const(float.fromhex(digits), dtype)


def scalar(value: float, dtype: str) -> Any:
    """Make a constant (), a node of its own; equal ones share their data, which costs most."""
    known = _known(float(value).hex(), dtype)
    return ir.GenericConst(known.value, known.ty)
