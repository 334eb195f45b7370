# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert losses of a softmax, and their gradients.

Logits are (samples, classes, ...), labels (samples, ...). Classes are last where labels are
distributions.
"""

from __future__ import annotations

import math

from onnx import helper
from tvm.relax import Expr
from tvm.relax.op import add, divide, exp, mean, multiply, negative, subtract
from tvm.relax.op import sum as sum_op
from tvm.relax.op.nn import log_softmax, nll_loss

from tvm_distir.models.common.translation import dtype_of, shape_of

from .gradient_nodes import gradients
from .node_call import Converter, NodeCall

IGNORED = -100
"""A label that no operator may have, unless it is the one that is ignored."""


def _ignored(call: NodeCall, operand: int) -> int:
    """Return the label that is ignored."""
    if call.get(operand) is not None:
        return int(call.numbers(operand).reshape(-1)[0])
    return int(call.number("ignore_index", IGNORED))


def _loss(call: NodeCall, logs: Expr, labels: Expr, weights: Expr | None, ignored: int) -> Expr:
    reduction = call.text("reduction", "mean")
    return nll_loss(logs, labels, weights, reduction=reduction, ignore_index=ignored)


def _in_type(call: NodeCall, values: list[Expr]) -> list[Expr]:
    """Cast results to the attribute ``output_type``."""
    kind = call.attributes.get("output_type")
    if kind is None:
        return values
    name = helper.tensor_dtype_to_np_dtype(int(kind)).name
    return [call.cast(value, name) for value in values]


def _cross_entropy(call: NodeCall) -> list[Expr]:
    logs = call.emit(log_softmax(call[0], 1))
    loss = call.emit(_loss(call, logs, call[1], call.get(2), _ignored(call, 3)))
    return _in_type(call, [loss, logs])


def _likelihood(call: NodeCall) -> list[Expr]:
    return [_loss(call, call[0], call[1], call.get(2), _ignored(call, 3))]


def _cross_entropy_gradient(call: NodeCall) -> list[Expr]:
    """Convert the gradient of the logits by the rules of both steps, given the logarithms."""
    gradient, logs, labels = call[0], call[1], call[2]
    loss = call.builder.normalize(_loss(call, logs, labels, call.get(3), _ignored(call, 4)))
    gradient = call.cast(call.shaped(gradient, shape_of(loss)), dtype_of(loss))
    by_logs = gradients(call, loss, gradient)[0]
    (result,) = _in_type(call, gradients(call, log_softmax(logs, 1), by_logs, logs)[:1])
    return [result if call.get(5) is None else add(result, call[5])]


def _dense(call: NodeCall) -> list[Expr]:
    """Convert the loss of labels that are distributions, with classes last."""
    logs = call.emit(log_softmax(call[0], -1))
    each = call.emit(negative(sum_op(call.emit(multiply(logs, call[1])), [-1])))
    reduction = call.text("reduction", "mean")
    return [{"none": lambda x: x, "sum": sum_op, "mean": mean}[reduction](each), logs]


def _dense_gradient(call: NodeCall) -> list[Expr]:
    """Convert the gradient of :func:`_dense`, for labels that sum to 1."""
    gradient, logs, labels = call[0], call[1], call[2]
    reduction, samples = call.text("reduction", "mean"), shape_of(logs)[:-1]
    if reduction == "mean":
        gradient = call.emit(divide(gradient, call.constant(math.prod(samples), logs)))
    gradient = call.shaped(gradient, [*samples, 1] if reduction == "none" else [])
    return [multiply(gradient, call.emit(subtract(exp(logs), labels)))]


CONVERTERS: dict[str, Converter] = {
    "NegativeLogLikelihoodLoss": _likelihood,
    "NegativeLogLikelihoodLossInternal": _likelihood,
    "NegativeLogLikelihoodLossInternal2": _likelihood,
    "SoftmaxCrossEntropy": _dense,
    "SoftmaxCrossEntropyGrad": _dense_gradient,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "SoftmaxCrossEntropyLossGrad": _cross_entropy_gradient,
    "SoftmaxCrossEntropyLossInternal": _cross_entropy,
    "SoftmaxCrossEntropyLossInternalGrad": _cross_entropy_gradient,
}
