# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Look up and apply the gradient of an op.

It is that of this package (:mod:`.rules.gradients`) or of TVM (``FPrimalGradient``).
"""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.support import ModelError, register_gradients

from .rules import convolutions, gradients, norms  # noqa: F401 (they register theirs)
from .rules.registry import GRADIENTS, Gradient

register_gradients()


def gradient_rule(call: ir.Call, location: str) -> Gradient:
    """Return the gradient of an op, that of this package or of TVM.

    Raises
    ------
    ModelError
        DIST0350 where there is none.
    """
    if not isinstance(call.op, ir.Op):
        problem = f"a call of {getattr(call.op, 'name_hint', call.op)} cannot be differentiated"
        remedy = "Register a gradient for the kernel."
        raise ModelError("DIST0350", problem, location=location, remedy=remedy)
    name = str(call.op.name)
    rule = GRADIENTS.get(name) or call.op.get_attr("FPrimalGradient")
    if rule is None:
        problem = "the op has no gradient"
        remedy = f'Register one: tvm.relax.op.base.register_gradient("{name}", fn).'
        raise ModelError("DIST0350", problem, location=f"{location} ({name})", remedy=remedy)
    return rule


def argument_gradients(
    builder: BlockBuilder, call: ir.Call, gradient: Expr, result: Var | None = None
) -> list[Any]:
    """Write the gradients of the arguments of one call.

    Parameters
    ----------
    builder : BlockBuilder
        The builder, inside a block.
    call : Call
        A call of an op.
    gradient : Expr
        The gradient of its result.
    result : Var, optional
        Its result, which some rules read; None: the call is emitted.

    Returns
    -------
    gradients : list of Expr or None
        One per argument, not emitted yet; None where there is none.
    """
    call = builder.normalize(call)
    result = builder.emit(call) if result is None else result
    return list(gradient_rule(call, "gradient")(result, call, gradient, builder))
