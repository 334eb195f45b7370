# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A training step of a zoo model by TVM's ``Gradient``, with the gradients that it lacks."""

from __future__ import annotations

import functools
import math
from typing import Any

from tvm import ir, relax
from tvm.relax.op import add, multiply, subtract, tanh
from tvm.relax.op.base import register_gradient
from tvm.relax.training import AppendLoss
from tvm.relax.training.loss import MSELoss

from tvm_distir.ir.attributes import PARAM_NAMES_ATTR, param_names

LEARNING_RATE = 1e-3
UPDATED_SUFFIX = "_updated"
"""Ends the names of the values that are the new weights."""


def _constant(value: float, like: Any) -> Any:
    return relax.const(value, str(like.ty.dtype))


def _gelu_tanh(_: Any, call: Any, grad: Any, builder: Any) -> list[Any]:
    """d/dx of x/2 (1 + tanh u), u = k (x + c x^3): (1 + t)/2 + x/2 (1 - t^2) k (1 + 3 c x^2)."""
    x = call.args[0]
    k, c = math.sqrt(2 / math.pi), 0.044715
    half, one = _constant(0.5, x), _constant(1.0, x)
    squared = builder.emit(multiply(x, x))
    inner = add(x, multiply(_constant(c, x), multiply(x, squared)))
    t = builder.emit(tanh(multiply(_constant(k, x), inner)))
    outer = multiply(half, add(one, t))
    slope = multiply(_constant(k, x), add(one, multiply(_constant(3 * c, x), squared)))
    bell = subtract(one, multiply(t, t))
    local = add(outer, multiply(multiply(multiply(half, x), bell), slope))
    return [multiply(grad, local)]


@functools.cache
def register_gradients() -> None:
    """Register what the graphs of ``zoo.gpt`` need and TVM 0.27 has no gradient for."""
    register_gradient("relax.nn.gelu_tanh", _gelu_tanh)


def training_step(mod: ir.IRModule) -> ir.IRModule:
    """Make ``main(x, *weights) -> y`` a step of gradient descent on the mean squared error.

    Parameters
    ----------
    mod : IRModule
        One function ``main`` of one dataflow block, whose first parameter is the data.

    Returns
    -------
    IRModule
        ``main(x, *weights, targets) -> (loss, *updated weights)``; targets have y's shape.
    """
    register_gradients()
    names = [*param_names(mod["main"]), "targets"]
    output = mod["main"].ret_ty
    loss = MSELoss("mean")(relax.Var("y", output), relax.Var("targets", output))
    mod = AppendLoss("main", loss)(mod)
    mod = relax.transform.DecomposeOpsForTraining("main_loss")(mod)
    weights = list(mod["main_loss"].params)[1:-1]
    mod = relax.transform.Gradient("main_loss", require_grads=weights)(mod)
    adjoint = mod["main_loss_adjoint"]
    return _with_update(adjoint, names)


def _with_update(adjoint: relax.Function, names: list[str]) -> ir.IRModule:
    """Return ``main``: the adjoint, its gradients taken off the weights."""
    adjoint = relax.utils.copy_with_new_vars(adjoint)
    params = list(adjoint.params)
    loss, gradients = adjoint.body.body.fields
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs={PARAM_NAMES_ATTR: names}):
        with builder.dataflow():
            for block in adjoint.body.blocks:
                for binding in block.bindings:
                    builder.emit_normalized(binding)
            updated = [
                builder.emit(
                    subtract(weight, multiply(gradient, _constant(LEARNING_RATE, weight))),
                    f"{weight.name}{UPDATED_SUFFIX}",
                )
                for weight, gradient in zip(params[1:-1], gradients.fields, strict=True)
            ]
            outputs = [builder.emit_output(value) for value in (loss, *updated)]
        builder.emit_func_output(relax.Tuple(outputs))
    return relax.transform.DeadCodeElimination()(builder.get())
