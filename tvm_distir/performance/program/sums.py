# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derive running sums over micro-batches from the first sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.rewriting import typed
from tvm_distir.transforms import ContinuedAccumulation


@dataclass(frozen=True)
class NextSums:
    """Bindings that accumulate into existing sums.

    Attributes
    ----------
    bindings : list of VarBinding
    results : list of Var
        The results, in the order of the bindings that begin them.
    before : dict of Var to Var
        The sum so far, which is a parameter, by the variable that begins the sum.
    functions : dict of GlobalVar to relax.Function
        Called by the bindings.
    """

    bindings: list[Any]
    results: list[Any]
    before: dict[Any, Any]
    functions: dict[Any, Any]


def next_sums(mod: ir.IRModule, bindings: Sequence[Any], each: Collection[Any]) -> NextSums:
    """Write the bindings for micro-batches after the first.

    Parameters
    ----------
    mod : IRModule
    bindings : sequence of VarBinding
        Calls that begin sums.
    each : collection of Var
        The variables among them that are not summed.
    """
    sums = NextSums([], [], {}, {})
    going_on = ContinuedAccumulation()
    for binding in bindings:
        value, ty = binding.value, binding.var.ty
        if binding.var not in each:
            function = going_on.of(mod, value.op)
            before = sums.before[binding.var] = relax.Var("before", ty)
            fields = [relax.Var(f"sum{k}", field) for k, field in enumerate(ty.fields)]
            sums.bindings.extend(
                relax.VarBinding(var, relax.TupleGetItem(before, k)) for k, var in enumerate(fields)
            )
            value = typed(ir.Call(function, [*fields, *value.args]), ty)
        sums.results.append(relax.Var(binding.var.name, ty))
        sums.bindings.append(relax.VarBinding(sums.results[-1], value))
    sums.functions.update(going_on.functions.values())
    return sums
