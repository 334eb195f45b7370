# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Removal of what a local function does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ..legalize.emit import variables


def is_pure(value: Any) -> bool:
    """Whether a bound value can be dropped when nobody reads it."""
    if isinstance(value, relax.If):
        bodies = (value.true_branch, value.false_branch)
        return all(is_pure(b.value) for seq in bodies for k in seq.blocks for b in k.bindings)
    if not isinstance(value, ir.Call):
        return True
    if isinstance(value.op, ir.Op):
        if str(value.op.name) == "relax.call_pure_packed":
            return True
        return bool(value.op.get_attr("FPurity"))
    if isinstance(value.op, ir.GlobalVar) and isinstance(value.op.ty, relax.FuncType):
        return bool(value.op.ty.purity)
    return False


def pruned(blocks: Sequence[Any], result: Any) -> tuple[list[Any], bool]:
    """Drop pure bindings that nothing reads.

    Parameters
    ----------
    blocks : sequence of BindingBlock
    result : expression
        What the function returns.

    Returns
    -------
    blocks : list of BindingBlock
        Without empty ones.
    pure : bool
        Whether all that is left is pure.
    """
    read = set(variables(result))
    pure = True
    out = []
    for block in reversed(blocks):
        kept = []
        for binding in reversed(block.bindings):
            clean = is_pure(binding.value)
            if clean and binding.var not in read:
                continue
            pure = pure and clean
            read.update(variables(binding.value))
            kept.append(binding)
        if kept:
            kept.reverse()
            dataflow = isinstance(block, relax.DataflowBlock)
            out.append((relax.DataflowBlock if dataflow else relax.BindingBlock)(kept))
    return out[::-1], pure
