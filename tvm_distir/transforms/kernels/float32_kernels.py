# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize ops on narrow floats whose kernels in TVM do not compute in float32 throughout.

:mod:`.accumulation` changes the arithmetic of a kernel from its TIR. It cannot do so where TVM
has no kernel for bfloat16 (layer and group norm), where a kernel rounds inside (float16), mixes
types (batch norm, attention), or adds in its result, in loops written by hand (scatter, scan).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from tvm import ir, relax, s_tir, te, tirx
from tvm.relax import BlockBuilder, Expr

from tvm_distir.core.ir import flat_types

from .accumulation import WIDE, is_narrow

_OPERAND, _RESULT = "operand_in_float32", "result_rounded"
_CAST = re.compile(rf"({_OPERAND}|{_RESULT})(_\d+)?")
"""Names of the blocks that cast: TE numbers them, and names reductions of them after them."""


def _is_narrow_tensor(value: Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and is_narrow(str(value.ty.dtype))


def _te_cast(x: te.Tensor, dtype: str, name: str) -> te.Tensor:
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *at: x(*at).astype(dtype), name=name, tag="elemwise")


def _wide_operand(x: Any) -> Any:
    is_tensor = isinstance(x, te.Tensor) and is_narrow(str(x.dtype))
    return _te_cast(x, WIDE, _OPERAND) if is_tensor else x


class _WideKernels:
    """A builder whose kernels take narrow operands, compute in float32 and round their results."""

    def __init__(self, builder: BlockBuilder, dtypes: list[str]) -> None:
        self._builder, self._dtypes = builder, dtypes

    def call_te(self, compute: Callable[..., Any], *args: Any, **options: Any) -> ir.Call:
        """Write the call of a kernel, as the method of a builder does."""

        @functools.wraps(compute)
        def wide(*operands: Any, **named: Any) -> Any:
            named = {name: _wide_operand(x) for name, x in named.items()}
            outputs = compute(*map(_wide_operand, operands), **named)
            outputs = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
            results = [_te_cast(x, t, _RESULT) for x, t in zip(outputs, self._dtypes, strict=True)]
            return results if len(results) > 1 else results[0]

        call = self._builder.call_te(wide, *args, **options)
        kernel = call.args[0]
        self._builder.update_func(kernel, _without_copies(self._builder.get()[kernel]))
        return call


def _without_copies(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline the casts of operands and results, so that a kernel has no copies in float32."""
    sch = s_tir.Schedule(ir.IRModule({"main": kernel}))
    for rv in sch.get_child_blocks(sch.get_sblock("root", func_name="main")):
        cast = _CAST.fullmatch(str(sch.get(rv).name_hint))
        if cast and cast[1] == _OPERAND:
            sch.compute_inline(rv)
        elif cast:
            sch.reverse_compute_inline(rv)
    return sch.mod["main"]


def kernel_in_float32(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Legalize a call by the kernel that TVM has for float32, with casts inside of it."""
    stock = call.op.get_attr("FLegalize")
    if not any(map(_is_narrow_tensor, call.args)):
        return stock(builder, call)
    return stock(_WideKernels(builder, [str(ty.dtype) for ty in flat_types(call.ty)]), call)


def through_float32(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Legalize a call as casts to float32, the op in float32, and the cast of its result."""
    stock = call.op.get_attr("FLegalize")
    if not any(map(_is_narrow_tensor, call.args)):
        return stock(builder, call)
    args = [
        builder.emit(relax.op.astype(arg, WIDE)) if _is_narrow_tensor(arg) else arg
        for arg in call.args
    ]
    wide = builder.normalize(ir.Call(call.op, args, call.attrs))
    return relax.op.astype(builder.emit(stock(builder, wide)), str(call.ty.dtype))


def scatter_in_float32(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Legalize a scatter: where it adds or multiplies, in float32."""
    a = call.attrs
    adds = bool(a.accumulate) if hasattr(a, "accumulate") else str(a.reduction) != "update"
    return (through_float32 if adds else call.op.get_attr("FLegalize"))(builder, call)


def scan_in_float32(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Legalize a cumulative sum or product of narrow floats, for a later pass to dispatch."""
    dtype, a = str(call.ty.dtype), call.attrs
    if not is_narrow(dtype):
        return call
    op = relax.op.cumsum if str(call.op.name) == "relax.cumsum" else relax.op.cumprod
    axis = None if a.axis is None else int(a.axis)
    wide = op(call.args[0], axis, WIDE, bool(a.exclusive))
    return relax.op.astype(builder.emit(wide), dtype)
