# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the inputs of a program whose memory it may overwrite; all others can be shared with it."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, relax

from tvm_distir.core.analysis import param_aliases
from tvm_distir.core.ir.attributes import donated_params
from tvm_distir.core.ir.operators import overwrites_cache
from tvm_distir.core.rewriting import all_bindings, called_name, callees_first, variables

from .io_layout import Entries

_MUTATING_CALLS = ("call_tir_inplace", "call_inplace_packed")


def overwritten_inputs(mod: ir.IRModule, entries: Entries) -> frozenset[int]:
    """Return the positions of the inputs that a run may overwrite.

    These are the donated ones, and those that share memory with an operand that a call overwrites;
    a packed function that is called for its effect may write to all its arguments.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    entries : sequence of EntryFunction
        Its entry functions.
    """
    written: dict[str, set[int]] = {}
    aliases = param_aliases(mod)
    for gv, fn in callees_first(mod):
        overwritten = set(donated_params(fn))
        for binding in all_bindings(fn.body):
            for operand in _written_operands(binding.value, written):
                overwritten |= aliases[gv].union(variables(operand))
        written[str(gv.name_hint)] = overwritten
    return frozenset(
        entry.inputs[number].index for entry in entries for number in written[entry.function]
    )


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
    return [value.args[0]] if name == "dist.kv_append" and overwrites_cache(value) else []
