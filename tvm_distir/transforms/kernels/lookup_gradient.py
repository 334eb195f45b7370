# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the gradient of look-ups on threads of a GPU; TVM's kernel has serial loops only.

A thread sums the gradients of one column of the table, in the order of the look-ups, so no two
threads write the same element, and the sums are those of a CPU.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.relax import BlockBuilder, Expr
from tvm.script.ir_builder import tirx as T

from .accumulation import WIDE, is_narrow
from .float32_kernels import through_float32
from .parallel_loops import is_on_gpu, parallel, written_kernel


def te_take_backward(
    grad: te.Tensor,
    table: te.Tensor,
    indices: te.Tensor,
    axis: int | None,
    on_gpu: bool,
    dtype: str,
) -> te.Tensor:
    """Sum the rows of ``grad`` into a tensor of zeros like ``table``, along an axis.

    Parameters
    ----------
    grad : te.Tensor
        Of the shape of ``table``, but as long as ``indices`` along the axis.
    table, indices : te.Tensor
        ``indices`` has one dim.
    axis : int, optional
        None: the table is flattened.
    on_gpu : bool
        Whether iterations are threads.
    dtype : str
        The type of the sums.
    """
    shape = [int(n) for n in table.shape]
    before = math.prod(shape[:axis]) if axis is not None else 1
    after = math.prod(shape[axis + 1 :]) if axis is not None else 1
    rows, count = math.prod(shape) // (before * after), int(indices.shape[0])

    def write(terms: Any, positions: Any, out: Any) -> None:
        with parallel(math.prod(shape), on_gpu) as element:
            out[element] = tirx.const(0, dtype)
        with parallel(before * after, on_gpu) as column:
            outer, inner = column // after, column % after
            with T.serial(count) as number:
                position = (outer * rows + positions[number]) * after + inner
                term = terms[(outer * count + number) * after + inner]
                out[position] = out[position] + term.astype(dtype)

    result = "out_buf", table.shape, dtype
    return written_kernel("take_backward", [grad, indices], result, write, tag="take_backward")


def take_backward(builder: BlockBuilder, call: ir.Call) -> Expr:
    """Write the gradient: TVM's kernel on a CPU, or for dynamic shapes; sums are float32 at least.

    On a GPU iterations are threads.
    """
    on_gpu, dtype = is_on_gpu(), str(call.ty.dtype)
    if not all(isinstance(n, tirx.IntImm) for arg in call.args for n in arg.ty.shape):
        return through_float32(builder, call)
    if not on_gpu and not is_narrow(dtype):
        return call.op.get_attr("FLegalize")(builder, call)
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    wide = WIDE if is_narrow(dtype) else dtype
    args = (*call.args, axis, on_gpu, wide)
    total = builder.call_te(te_take_backward, *args, primfunc_name_hint="take_backward")
    return total if wide == dtype else relax.op.astype(builder.emit(total), dtype)
