# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe the passes of a function before the values that it saves are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.transforms.training.autodiff.tape import CallGradient

from .frontier import Frontier

DEEPEST_SAVED = 32
"""Tuples that are nested more deeply are saved by field."""


@dataclass(frozen=True)
class DraftPair:
    """Forward and backward pass of a function, before the saved values are chosen.

    Attributes
    ----------
    params : list of Var
    given : tuple of int
        Parameters whose gradients are returned.
    before, after : list of Binding
        The forward and the backward pass.
    grad, result : expression
        The gradient of the result, and the result.
    read : list of Var
        The values that the backward pass reads.
    gradients : list of Var
    frontier : Frontier
        The choices of saved values.
    calls : tuple of CallGradient
        Calls of private functions in both parts.
    """

    params: list[Var]
    given: tuple[int, ...]
    before: list[Binding]
    after: list[Binding]
    grad: Expr
    result: Expr
    read: list[Var]
    gradients: list[Var]
    frontier: Frontier
    calls: tuple[CallGradient, ...]


def without_deep_tuples(stash: Sequence[Var]) -> tuple[list[Var], dict[Var, list[Binding]]]:
    """Replace saved tuples that are nested deeply by their fields.

    What a function saves holds what the functions that it calls save: in a long chain of calls
    tuples would be nested as deeply as the calls are.

    Returns
    -------
    stash : list of Var
        The saved values.
    fields_of : dict of Var to list of VarBinding
        The bindings of the fields of each tuple that is replaced.
    """
    values, fields_of = [], dict[Var, list[Binding]]()
    for var in stash:
        if _nesting(var.ty) < DEEPEST_SAVED:
            values.append(var)
            continue
        fields_of[var] = [
            relax.VarBinding(relax.Var(f"{var.name}_{k}", ty), relax.TupleGetItem(var, k))
            for k, ty in enumerate(var.ty.fields)
        ]
        values += [binding.var for binding in fields_of[var]]
    return values, fields_of


def _nesting(ty: ir.Type) -> int:
    """Return how deeply the tuples of a type are nested."""
    if not isinstance(ty, relax.TupleType):
        return 0
    return 1 + max(map(_nesting, ty.fields), default=0)
