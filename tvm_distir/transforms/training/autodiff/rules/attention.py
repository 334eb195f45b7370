# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the gradient of attention: one op that reads the result and its log-sum-exp.

Only these two are saved beside the operands (Dao et al. 2022, "FlashAttention", appendix B).
``nn.attention`` has no log-sum-exp: :func:`tvm_distir.transforms.FuseAttention` turns it
into ``R.dist.attention`` before a training step is made, and what is differentiated otherwise
computes it again.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var, op

from tvm_distir.core.ir.operators import (
    ATTENTION_OP,
    AttentionOptions,
    attention,
    attention_backward,
    attention_bias_gradient,
    attention_operands,
    attention_sinks,
    nn_attention_options,
)
from tvm_distir.core.rewriting import op_name

from .registry import Gradients, fitted, item, refuse, register_gradient


def _gradients(
    builder: BlockBuilder, call: ir.Call, results: tuple[Var, Var], grad: Expr
) -> list[Expr]:
    """Return the gradients of the operands of ``R.dist.attention``."""
    tensors, bias, shift = attention_operands(call)
    more = [x for x in (bias, shift) if x is not None]
    operands = [*tensors, results[0], grad, results[1], *more]
    options = vars(AttentionOptions.of(call))
    back = builder.emit(attention_backward(*operands, **options))
    gradients = [item(back, i) for i in range(3)]
    if bias is not None:
        gradients.append(attention_bias_gradient(*operands, **options))
    sinks = attention_sinks(call)
    if sinks is not None:
        gradients.append(_of_sinks(builder, sinks, results, grad))
    return gradients


def _of_sinks(builder: BlockBuilder, sinks: Any, results: tuple[Any, Any], grad: Expr) -> ir.Call:
    """Return the gradient of the sinks: ``-sum(exp(sink - lse) rowsum(do o))`` for each head.

    The weight of a sink takes its share from the weights of all keys.
    """
    out, lse = results
    wide = str(lse.ty.dtype)
    heads = sinks.ty.shape[0]
    emit = builder.emit
    scores = emit(op.reshape(emit(op.astype(sinks, wide)), (1, heads, 1)))
    weights = emit(op.exp(emit(op.subtract(scores, lse))))
    products = emit(op.multiply(*(emit(op.astype(x, wide)) for x in (out, grad))))
    along = emit(op.permute_dims(emit(op.sum(products, [3])), [0, 2, 1]))
    total = emit(op.sum(emit(op.multiply(weights, along)), [0, 2]))
    return op.astype(emit(op.negative(total)), str(sinks.ty.dtype))


@register_gradient(ATTENTION_OP.removeprefix("relax."))
def _attention(var: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    fields = builder.lookup_binding(grad) if isinstance(grad, relax.Var) else grad
    if not isinstance(fields, relax.Tuple) or not _is_zero(fields.fields[1], builder):
        raise refuse(call, "its log-sum-exp has a gradient, which is not known")
    results = builder.emit(item(var, 0)), builder.emit(item(var, 1))
    return _gradients(builder, call, results, fields.fields[0])


def _is_zero(value: Expr, builder: BlockBuilder) -> bool:
    definition = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    return op_name(definition) == "zeros"


@register_gradient("nn.attention", "nn.attention_bias")
def _nn_attention(result: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate the op without log-sum-exp, which is computed again."""
    options, bias = nn_attention_options(call, builder)
    if options is None:
        raise refuse(call, "TVM has no kernel for attention with a window alone")
    recomputed_call = builder.normalize(attention(*call.args[:3], *bias, **vars(options)))
    lse = builder.emit(item(builder.emit(recomputed_call), 1))
    gradients = _gradients(builder, recomputed_call, (result, lse), grad)
    if bias:
        gradients[3] = fitted(builder, builder.emit(gradients[3]), call.args[3])
    return gradients
