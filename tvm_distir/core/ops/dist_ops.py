# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists the ``R.dist`` ops of a function; equal bindings are inspected once."""

from __future__ import annotations

from typing import Any

from tvm_distir.core.ir.ops import dist_op_name
from tvm_distir.core.rewriting.native.function_index import OP_CALL, FunctionView

from .class_memo import learned

_UNKNOWN: Any = object()


def dist_ops(reading: FunctionView) -> list[str | None]:
    """Return per binding the name of the ``R.dist`` op that it calls, or None."""
    known: dict[int, str | None] = learned("R.dist ops")
    names = [known.get(like, _UNKNOWN) for like in reading.like]
    if _UNKNOWN in names:
        for number, name in enumerate(names):
            if name is _UNKNOWN:
                is_op = reading.kinds[number] == OP_CALL
                names[number] = dist_op_name(reading.values[number]) if is_op else None
                if reading.like[number] >= 0:
                    known[reading.like[number]] = names[number]
    return names
