# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the gradient of look-ups on threads of a GPU; TVM's kernel has serial loops only.

A thread sums the gradients of one column of the table, in the order of the look-ups, so no two
threads write the same element, and the sums are those of a CPU.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import ir, relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .accumulation import WIDE, is_narrow
from .float32_kernels import through_float32
from .parallel_loops import parallel


def te_take_backward(
    grad: Any, table: Any, indices: Any, axis: int | None, on_gpu: bool, dtype: str
) -> Any:
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

    def kernel(grad_buffer: Any, index_buffer: Any, out_buffer: Any) -> Any:
        with IRBuilder() as builder:
            terms, places, out = map(T.buffer_proxy, (grad_buffer, index_buffer, out_buffer))
            with T.seq_scope():
                with parallel(math.prod(shape), on_gpu) as element:
                    out[element] = tirx.const(0, dtype)
                with parallel(before * after, on_gpu) as column:
                    outer, inner = column // after, column % after
                    with T.serial(count) as number:
                        place = (outer * rows + places[number]) * after + inner
                        term = terms[(outer * count + number) * after + inner]
                        out[place] = out[place] + term.astype(dtype)
            return builder.get()

    return te.extern(
        [table.shape],
        [grad, indices],
        lambda operands, results: kernel(operands[0], operands[1], results[0]),
        dtype=dtype,
        out_buffers=[tirx.decl_buffer(table.shape, dtype, "out_buf", layout=None)],
        name="take_backward",
        tag="take_backward",
    )


def take_backward(builder: relax.BlockBuilder, call: ir.Call) -> Any:
    """Write the gradient: TVM's kernel on a CPU, or for dynamic shapes; sums are float32 at least.

    On a GPU iterations are threads.
    """
    target = tvm.target.Target.current(allow_none=True)
    on_gpu = target is not None and "gpu" in target.keys
    dtype = str(call.ty.dtype)
    static = all(isinstance(n, tirx.IntImm) for arg in call.args for n in arg.ty.shape)
    if not static:
        return through_float32(builder, call)
    if not on_gpu and not is_narrow(dtype):
        return call.op.get_attr("FLegalize")(builder, call)
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    wide = WIDE if is_narrow(dtype) else dtype
    name = "take_backward"
    total = builder.call_te(
        te_take_backward, *call.args, axis, on_gpu, wide, primfunc_name_hint=name
    )
    return total if wide == dtype else relax.op.astype(builder.emit(total), dtype)
