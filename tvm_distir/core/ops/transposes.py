# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Detects transposes that only matrix products read: BLAS libraries read such operands in place."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.rewriting.calls import permutation
from tvm_distir.core.rewriting.native.function_index import FunctionView

from .class_memo import class_facts

_PERMUTE = "relax.permute_dims"
_MATMUL = "relax.matmul"


def transposed_operands(reading: FunctionView) -> set[int]:
    """Return the variables bound to a swap of the last two dims that only products read.

    Such a transpose moves no data: every BLAS takes a flag for it, and TVM fuses it into the
    product, a ``relax.matmul`` (``FuseTransposeMatmul``).
    """
    candidates: set[int] = set()
    others: set[int] = set(reading.result)
    hidden: set[Any] = set()  # what is read where the reading does not tell
    kinds = class_facts(reading, "products and swaps", lambda n: _use(reading.values[n]))
    for number, (like, kind) in enumerate(zip(reading.like, kinds, strict=True)):
        if kind == _PERMUTE:
            candidates.add(reading.params + number)
        if kind == _MATMUL:
            continue
        others.update(reading.used(number))
        if like < 0:
            hidden.update(_read(reading.values[number]))
    others.update(number for number in candidates if reading.variables[number] in hidden)
    return candidates - others


def _use(value: ir.Expr) -> str:
    """Return the op of a product, or of a swap of the last two dims; nothing of other values."""
    name = str(value.op.name) if isinstance(value, ir.Call) and type(value.op) is ir.Op else ""
    return name if name == _MATMUL or (name == _PERMUTE and _swaps_last_two(value)) else ""


def _swaps_last_two(call: ir.Call) -> bool:
    shape = static_shape(call.args[0].ty)
    if shape is None or len(shape) < 2:
        return False
    count = len(shape)
    return permutation(call, count) == [*range(count - 2), count - 1, count - 2]


def _read(value: Any) -> list[Any]:
    """Return the variables that an expression reads."""
    return [value] if isinstance(value, relax.Var) else list(relax.analysis.free_vars(value))
