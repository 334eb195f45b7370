# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the forward pass of a training step: the bindings that its loss depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.readers import training_notes
from tvm_distir.core.ir.types import is_number, static_shape, tensor_type

from .scopes import all_bindings
from .substitute import variables


def forward_bindings(fn: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a function; of a training step those that its loss depends on."""
    bindings = list(all_bindings(fn.body))
    loss = _loss(fn, _resolved(fn.body.body, bindings))
    if loss is None:
        return bindings
    needed = {loss}
    forward = []
    for binding in reversed(bindings):
        if binding.var in needed:
            forward.append(binding)
            needed.update(variables(binding.value))
    return forward[::-1]


def loss_position(fn: relax.Function) -> int | None:
    """Return the index of the loss among the results of a training step; None otherwise."""
    if not training_notes(fn, "updated"):
        return None
    positions = set(map(int, training_notes(fn, "places").values()))
    if not positions:
        return 0
    return next(i for i, ty in enumerate(fn.ret_ty.fields) if i not in positions and is_number(ty))


def _loss(fn: relax.Function, result: ir.Expr) -> ir.Expr:
    """Return the loss among a function's results.

    A step without notes that was written elsewhere returns a single number, and gradients or new
    values of parameters, all of the type of a parameter. The result is None for other functions.
    """
    fields = result.fields[:] if isinstance(result, relax.Tuple) else []
    position = loss_position(fn)
    if position is not None:
        return fields[position] if fields else result
    losses = [field for field in fields if is_number(field.ty)]
    known = {_shape_and_type(p.ty) for p in fn.params} - {None}
    others = [_shape_and_type(field.ty) for field in fields if not is_number(field.ty)]
    return losses[0] if len(losses) == 1 and others and known.issuperset(others) else None


def _shape_and_type(ty: ir.Type) -> tuple[Any, str] | None:
    """Return a key that is equal for tensors of known shape that are interchangeable."""
    tensor, shape = tensor_type(ty), static_shape(ty)
    return None if tensor is None or shape is None else (shape, str(tensor.dtype))


def _resolved(result: ir.Expr, bindings: Sequence[relax.Binding]) -> ir.Expr:
    """Resolve a variable that is bound to the tuple of results."""
    if not isinstance(result, relax.Var):
        return result
    values = {b.var: b.value for b in bindings}
    while isinstance(result, relax.Var) and isinstance(values.get(result), relax.Var | relax.Tuple):
        result = values[result]
    return result
