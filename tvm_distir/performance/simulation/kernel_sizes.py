# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the sizes of products and attention by which tables of measured kernels are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm_distir.core.ir.operators import EXPERT_MATMUL_OP
from tvm_distir.hardware import EXPERTS, KernelSizes
from tvm_distir.performance.program.parts import Op

_PRODUCT = "relax.matmul"
_CLASSES = ("matmul", "vocabulary", "unaligned")
_ATTENTION = "relax.dist.paged_attention"


def sizes_of(
    op: Op,
    flops: Any,
    inputs: Sequence[Sequence[Any]],
    outputs: Sequence[Sequence[Any]],
    dtypes: Sequence[str],
) -> KernelSizes | None:
    """Return the sizes of a kernel; None for one that tables do not list.

    Parameters
    ----------
    op : Op
    flops : int, or int64 array of many steps
    inputs, outputs : sequence of shapes
        Shapes of the operands and results, whose dims are numbers or arrays of many steps.
    dtypes : sequence of str
        The dtypes of the operands.
    """
    if op.model_op == _PRODUCT and op.kernel_class in _CLASSES and outputs:
        columns = sum(shape[-1] for shape in outputs)
        rows = math.prod(outputs[0][:-1])
        return KernelSizes(op.dtype, (rows, columns, flops // (2 * rows * columns)))
    if op.op == EXPERT_MATMUL_OP and op.selects and outputs:
        past, _, columns = outputs[0]
        inner = inputs[0][-1]
        rows = flops // (2 * inner * columns * len(outputs))
        return KernelSizes(op.dtype, (rows, past, inner, columns, *op.selects), EXPERTS)
    latent = len(op.inputs) > 2 and op.inputs[1] == op.inputs[2]  # kernels of its own
    if op.op == _ATTENTION and len(inputs) > 3 and not latent:
        batch, new, kv_heads, shared, width = inputs[0]
        past = inputs[-2][1] * inputs[1][2]
        sizes = (batch, new, past, kv_heads * shared, kv_heads, width)
        return KernelSizes(dtypes[1], sizes)
    return None
