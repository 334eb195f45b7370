# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose which values a function saves for its backward pass, and which are recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tvm import ir
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ir import flat_types, known_shape
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.rewriting import variables

VIEWS = frozenset(
    f"relax.{name}"
    for name in ("astype", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
)
"""Ops that show a single value in another form."""

NO_OPERANDS: Mapping[Var, Var] = MappingProxyType({})


def view_source(value: Expr) -> Any:
    """Return the variable that a bound value is a view of, or None if it computes."""
    if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
        if str(value.op.name) in VIEWS and isinstance(value.args[0], ir.Var):
            return value.args[0]
    return None


def kept_and_again(
    forward: Sequence[Binding],
    read: Sequence[Var],
    params: Sequence[Var],
    operands: Mapping[Any, Any] = NO_OPERANDS,
) -> tuple[list[Var], list[Binding]]:
    """Divide the values that the backward pass reads into saved and recomputed ones.

    Views of parameters and of kept values are recomputed, and so is what no variable is needed
    for; all else is kept.

    Parameters
    ----------
    forward : sequence of Binding
        The forward pass, in order.
    read : sequence of Var
        The values that the backward pass reads.
    params : sequence of Var
        The parameters, which are available to either pass.
    operands : mapping of Var to Var
        Values that are recomputed from another one, which is saved instead.

    Returns
    -------
    saved : list of Var
    again : list of Binding
        The bindings that are recomputed, in order.
    """
    needed, at_hand = {*read, *(operands[v] for v in read if v in operands)}, set(params)
    values = {binding.var: binding.value for binding in forward}
    saved: list[Var] = []
    recomputed: dict[Var, None] = {}
    for binding in forward:
        if binding.var not in needed:
            continue
        chain = _chain(binding.var, values, at_hand, operands)
        if chain is None:
            saved.append(binding.var)
            at_hand.add(binding.var)
        else:
            recomputed.update(dict.fromkeys(chain))
    return saved, [binding for binding in forward if binding.var in recomputed]


def _chain(
    var: Var, values: Mapping[Var, Expr], at_hand: set[Var], operands: Mapping[Any, Any]
) -> list[Any] | None:
    """Return the views that lead from an available value to a variable, or None."""
    chain: list[Var] = []
    while var not in at_hand:
        value = values[var]
        chain.append(var)
        if not any(True for _ in variables(value)) and isinstance(value, ir.Call):
            return chain
        source = operands.get(var, view_source(value))
        if source is None:
            return None
        var = source
    return chain


def type_bytes(ty: ir.Type) -> int:
    """Return the bytes of a tensor type, with symbolic sizes counted as 1."""
    shape = tuple(n if isinstance(n, int) else 1 for n in known_shape(ty) or ())
    return size_bytes(shape, str(ty.dtype))


def kept_bytes(saved: Sequence[Var]) -> int:
    """Return the bytes of some variables."""
    return sum(type_bytes(ty) for var in saved for ty in flat_types(var.ty))
