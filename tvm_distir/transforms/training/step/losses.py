# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the loss of a training step from a model's output and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import mean, reshape, square, subtract
from tvm.relax.op.nn import log_softmax, nll_loss

from tvm_distir.core.ir import static_shape, tensor_type
from tvm_distir.support import ModelError
from tvm_distir.transforms.training.autodiff.tape import Tape

Emitter: TypeAlias = BlockBuilder | Tape
"""What emits values, recorded by a tape or not."""
Write: TypeAlias = Callable[[Emitter, Expr, Expr], Expr]


@dataclass(frozen=True)
class Loss:
    """Definition of a loss.

    Attributes
    ----------
    name : str
    targets : callable
        A function from the type of the output to that of the targets.
    write : callable
        ``(builder, output, targets)`` to the scalar; intermediate values are emitted.
    """

    name: str
    targets: Callable[[ir.Type], ir.Type]
    write: Write


def _classes(output: ir.Type) -> ir.Type:
    shape = static_shape(output)
    if shape is None or len(shape) < 2:
        problem = (
            f"the output {output} is not a tensor of logits of the shape (samples, ..., classes)"
        )
        raise ModelError(
            "DIST0351", problem, location="loss cross_entropy", remedy='Use loss="mse".'
        )
    return relax.TensorType(list(shape[:-1]), "int32")


def _cross_entropy(builder: Emitter, output: Expr, targets: Expr) -> Expr:
    """Return the mean of ``-log softmax(output)[target]``, with classes along the last dim."""
    shape = static_shape(output.ty) or ()
    if len(shape) > 2:
        samples = math.prod(shape[:-1])
        output = builder.emit(reshape(output, (samples, shape[-1])), "flat_logits")
        targets = builder.emit(reshape(targets, (samples,)), "flat_targets")
    return nll_loss(builder.emit(log_softmax(output), "log_probs"), targets)


def _squares(builder: Emitter, output: Expr, targets: Expr) -> Expr:
    """Return the mean of the squared differences."""
    difference = builder.emit(subtract(output, targets), "apart")
    return mean(builder.emit(square(difference), "squares"))


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("cross_entropy", _classes, _cross_entropy),
        Loss("mse", lambda output: output, _squares),
    )
}


def is_trained_on(output: ir.Type) -> bool:
    """Return whether an output has a loss: a tensor of floats."""
    tensor = tensor_type(output)
    shape = static_shape(output)
    known = shape is not None and math.prod(n for n in shape if isinstance(n, int)) > 0
    return tensor is not None and "float" in str(tensor.dtype) and known
