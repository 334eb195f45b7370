# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define WriteAttention, which lowers the op of attention to products and a softmax."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import calls_op, replaced_calls
from tvm_distir.transforms.kernels.written_attention import ATTENTION_PRODUCTS


@module_pass("local")
def WriteAttention() -> Rewrite:
    """Replace ``R.dist.attention`` and its gradients by products, exponentials and sums.

    The scores of a call, ``(batch, heads, queries, keys)``, are then in memory, in float32 at
    least, and the gradients compute them again. Products read operands of the type of the queries.

    Returns
    -------
    pass : tvm.transform.Pass
    """

    def write_attention(mod: ir.IRModule) -> ir.IRModule:
        if not calls_op(mod, tuple(ATTENTION_PRODUCTS)):
            return mod
        return replaced_calls(mod, ATTENTION_PRODUCTS)

    return write_attention
