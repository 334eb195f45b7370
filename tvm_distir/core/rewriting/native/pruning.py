# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Drop the bindings that nobody reads, in a native walk."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.support import native_function

_pure_ops: dict[int, bool] = {}


def is_pure(value: ir.Expr) -> bool:
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


def pruned(blocks: Sequence[relax.BindingBlock], result: ir.Expr) -> tuple[list[Any], bool]:
    """Drop pure bindings that nothing reads.

    Parameters
    ----------
    blocks : sequence of BindingBlock
    result : expression
        The result of the function.

    Returns
    -------
    blocks : list of BindingBlock
        The blocks, without empty ones.
    pure : bool
        Whether all that is left is pure.
    """
    rows = [(isinstance(block, relax.DataflowBlock), block.bindings) for block in blocks]
    return pruned_bindings(rows, result)


def pruned_bindings(
    blocks: Sequence[tuple[bool, Sequence[Any]]], result: ir.Expr
) -> tuple[list[Any], bool]:
    """Write the blocks of a function without pure bindings that nothing reads.

    Parameters
    ----------
    blocks : sequence of (bool, sequence of Binding)
        A pair for each block: whether it is a dataflow block, and its bindings.
    result : expression
        The result of the function.

    Returns
    -------
    blocks, pure
        The blocks and whether they are pure, as of :func:`pruned`.
    """
    hides = tuple([int(dataflow) for dataflow, _ in blocks])
    bindings = [some for _, some in blocks]
    blocks_left, pure = native_function("prune")(bindings, hides, result, *_questions())
    return unpack(blocks_left), bool(pure)


@functools.cache
def _questions() -> tuple[Any, Any]:
    """Return the callbacks of the native library about calls and the contents of an ``If``."""
    return tvm_ffi.convert(is_pure), tvm_ffi.convert(lambda value: list(variables(value)))
