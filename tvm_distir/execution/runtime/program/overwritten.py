# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the inputs of a program whose memory it may overwrite; all others can be shared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import overwrites_cache
from tvm_distir.core.rewriting import all_bindings, called_name, callees_first, variables

from .io_layout import Entries

_MUTATING_CALLS = ("call_tir_inplace", "call_inplace_packed")


def overwritten_inputs(mod: ir.IRModule, entries: Entries) -> frozenset[int]:
    """Return the positions of the inputs that a run may overwrite.

    Conservative: every value may be a view of any value that it is computed from, and a packed
    function that is called for its effect may write to all its arguments.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    entries : sequence of EntryFunction
        Its entry functions.
    """
    written: dict[str, set[int]] = {}
    for gv, fn in callees_first(mod):
        written[str(gv.name_hint)] = _written_params(fn, written)
    return frozenset(
        entry.inputs[number].index for entry in entries for number in written[entry.function]
    )


def _written_params(fn: relax.Function, written: Mapping[str, set[int]]) -> set[int]:
    """Return the numbers of the parameters that a function may overwrite."""
    roots: dict[Any, frozenset[int]] = {
        param: frozenset({number}) for number, param in enumerate(fn.params)
    }
    overwritten = set[int]()

    def sources(value: relax.Expr) -> frozenset[int]:
        return frozenset().union(*(roots.get(var, frozenset()) for var in variables(value)))

    for binding in all_bindings(fn.body):
        roots[binding.var] = sources(binding.value)
        for operand in _written_operands(binding.value, written):
            overwritten |= sources(operand)
    return overwritten


def _written_operands(value: relax.Expr, written: Mapping[str, set[int]]) -> list[relax.Expr]:
    if not isinstance(value, ir.Call):
        return []
    name = called_name(value).removeprefix("relax.")
    if isinstance(value.op, ir.GlobalVar):
        return [value.args[number] for number in written.get(str(value.op.name_hint), ())]
    if isinstance(value.op, relax.ExternFunc):
        return list(value.args)
    if name in _MUTATING_CALLS:
        operands = value.args[1].fields if name == _MUTATING_CALLS[0] else value.args[1:]
        return [operands[int(i)] for i in value.attrs["inplace_indices"] if int(i) >= 0]
    if name == "dist.kv_append" and overwrites_cache(value):
        return [value.args[0]]
    return []
