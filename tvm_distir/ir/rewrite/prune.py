# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Removal of what a local function does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from .nodes import handle
from .substitute import VARIABLES, variables

_pure_ops: dict[int, bool] = {}


def is_pure(value: Any) -> bool:
    """Whether a bound value can be dropped when nobody reads it."""
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
    rows = [(isinstance(block, relax.DataflowBlock), block.bindings[:]) for block in blocks]
    return pruned_bindings(rows, result)


def pruned_bindings(
    blocks: Sequence[tuple[bool, Sequence[Any]]], result: Any
) -> tuple[list[Any], bool]:
    """Write the blocks of a function without pure bindings that nothing reads.

    Parameters
    ----------
    blocks : sequence of (bool, sequence of Binding)
        Of each block whether it is a dataflow block, and what stands in it.
    result : expression
        What the function returns.

    Returns
    -------
    blocks, pure
        As of :func:`pruned`.
    """
    read = set(map(handle, variables(result)))
    pure = True
    out = []
    for dataflow, bindings in reversed(blocks):
        kept = []
        for binding in reversed(bindings):
            value = binding.value
            clean = is_pure(value)
            if clean and handle(binding.var) not in read:
                continue
            pure = pure and clean
            _note_reads(value, read)
            kept.append(binding)
        if kept:
            kept.reverse()
            out.append((relax.DataflowBlock if dataflow else relax.BindingBlock)(kept))
    return out[::-1], pure


def _note_reads(value: Any, read: set[int]) -> None:
    """Add the variables that a value reads, most often a call of some variables."""
    kind = type(value)
    if kind is ir.Call or kind is relax.Tuple:
        for part in (value.args if kind is ir.Call else value.fields)[:]:
            if type(part) in VARIABLES:
                read.add(handle(part))
            else:
                _note_reads(part, read)
    else:
        read.update(map(handle, variables(value)))
