# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide whether a binding can be dropped when it has no readers."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.handles import handle

_pure_ops: dict[int, bool] = {}


def is_pure(value: Any) -> bool:
    """Return whether a bound value can be dropped when nobody reads it."""
    kind = type(value)
    if kind is relax.If:
        bodies = (value.true_branch, value.false_branch)
        return all(is_pure(b.value) for seq in bodies for k in seq.blocks for b in k.bindings)
    if kind is not ir.Call:
        return True
    op = value.op
    if type(op) is ir.Op:
        key = handle(op)  # an op lives as long as the process
        if key not in _pure_ops:
            pure = str(op.name) == "relax.call_pure_packed" or bool(op.get_attr("FPurity"))
            _pure_ops[key] = pure
        return _pure_ops[key]
    if type(op) is ir.GlobalVar and isinstance(op.ty, relax.FuncType):
        return bool(op.ty.purity)
    return False
