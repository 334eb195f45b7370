# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the policy ``checkpoint``, which runs a function again in its backward pass.

As in ``torch.utils.checkpoint``, and in Megatron-LM's full recomputation, values that no gradient
reads are recomputed too, such as the last product and the last collective. ``full`` leaves these
out.
"""

from __future__ import annotations

import dataclasses

from tvm import ir, relax
from tvm.relax import Binding, Var

from tvm_distir.core.ir.attributes import COMPLETE_ATTR
from tvm_distir.core.plan import CHECKPOINT
from tvm_distir.core.rewriting import field_of, tuple_of, typed
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions, private_function
from tvm_distir.transforms.training.autodiff.tape import ForwardBackward


def checkpointed(pair: ForwardBackward, functions: NamedFunctions) -> ForwardBackward:
    """Return a pair that runs the forward pass twice and saves nothing.

    Parameters
    ----------
    pair : ForwardBackward
        A pair that saves some values.
    functions : NamedFunctions
        New ones are added: ``layer_checkpoint(*params) -> y`` and
        ``layer_backward_checkpoint(grad, *params)``. Both call ``layer_forward``, which is marked
        to run whole.

    Returns
    -------
    ForwardBackward
    """
    suffix, name = f"_{CHECKPOINT}", str(pair.forward.name_hint)
    functions.of[name] = functions.of[name].with_attr(COMPLETE_ATTR, True)
    params, both, bindings = _run(pair, functions)
    first = private_function(pair.name, params, bindings, field_of(both, 0))
    return dataclasses.replace(
        pair,
        forward=functions.add(pair.name + suffix, first),
        backward=functions.add(str(pair.backward.name_hint) + suffix, _backward(pair, functions)),
        saves=False,
        needed=tuple(range(len(pair.params))),
    )


def _backward(pair: ForwardBackward, functions: NamedFunctions) -> relax.Function:
    """Write the backward pass, which begins with the forward pass."""
    params, both, bindings = _run(pair, functions)
    fn = functions.of[str(pair.backward.name_hint)]
    grad = relax.Var(str(fn.params[0].name), fn.params[0].ty)
    saved = relax.Var("saved", fn.params[1].ty)
    bindings.append(relax.VarBinding(saved, field_of(both, 1)))
    gradients = relax.Var("gradients", fn.ret_ty)
    call = ir.Call(pair.backward, [grad, saved, *[params[i] for i in pair.needed]])
    bindings.append(relax.VarBinding(gradients, typed(call, fn.ret_ty)))
    # Each gradient by itself: what splits a step's backward pass reads them individually.
    each = tuple_of([field_of(gradients, i) for i in range(len(fn.ret_ty.fields))])
    return private_function(pair.name, [grad, *params], bindings, each)


def _run(pair: ForwardBackward, functions: NamedFunctions) -> tuple[list[Var], Var, list[Binding]]:
    """Return parameters, and a call of the forward pass with them."""
    fn = functions.of[str(pair.forward.name_hint)]
    params = [relax.Var(str(param.name), param.ty) for param in fn.params]
    both = relax.Var("again", fn.ret_ty)
    return params, both, [relax.VarBinding(both, typed(ir.Call(pair.forward, params), fn.ret_ty))]
