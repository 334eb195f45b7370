# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Append to donated caches in place (level 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.operators import kv_append
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import is_pattern, match_name
from tvm_distir.core.rewriting import (
    BlockWriter,
    all_bindings,
    callees_first,
    let_out,
    op_name,
    variables,
    with_body,
)
from tvm_distir.support import UsageError

CACHES = ("*_cache",)
"""Names of the caches of serving steps of the zoo."""


@module_pass("local")
def DonateInputs(inputs: Sequence[str] = CACHES) -> Rewrite:
    """Append to donated caches in place: a step may overwrite the memory of these inputs.

    The result of the append then is the memory of the input, as with ``donate_argnums`` of JAX:
    the caller passes the result to the next step and reads the old value no more. Caches that
    reach an append through calls of private functions are followed. Where something else reads the
    cache too, it is copied as before.

    Parameters
    ----------
    inputs : sequence of str
        Names, or patterns of names, of inputs.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises UsageError DIST0152 if no input has a name, as opposed to a pattern.
    """

    def donate_inputs(mod: ir.IRModule) -> ir.IRModule:
        functions = dict(mod.functions.items())
        for gv, numbers in _donated(mod, inputs).items():
            functions[gv] = _with_appends(functions[gv], numbers)
        if all(functions[gv].same_as(fn) for gv, fn in mod.functions.items()):
            return mod
        return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return donate_inputs


def _donated(mod: ir.IRModule, patterns: Sequence[str]) -> dict[Any, set[int]]:
    """Return the numbers of the parameters that may be overwritten, by function."""
    members = dict(relax_functions(mod))
    donated: dict[Any, set[int]] = {gv: set() for gv in members}
    names: list[str] = []
    for gv, fn in members.items():
        if is_private(fn) or not fn.attrs or IO_ATTR not in fn.attrs:
            continue
        ports = [str(port["name"]) for port in fn.attrs[IO_ATTR]["inputs"][:]]
        names += ports
        donated[gv] = {
            i for i, name in enumerate(ports) if any(match_name(p, name) for p in patterns)
        }
    for pattern in patterns:
        if not is_pattern(pattern) and not any(match_name(pattern, name) for name in names):
            raise UsageError(
                "DIST0152",
                f'no input is called "{pattern}"',
                place="DonateInputs",
                remedy=f"The inputs are {', '.join(sorted(set(names)))}.",
            )
    calls = _calls(members)
    for gv, fn in reversed(callees_first(mod)):
        if is_private(fn) and gv in calls:
            handed_on = [
                _handed_on(members[caller], donated[caller], args) for caller, args in calls[gv]
            ]
            donated[gv] = set.intersection(*handed_on)
    return {gv: numbers for gv, numbers in donated.items() if numbers}


def _calls(members: dict[Any, relax.Function]) -> dict[Any, list[tuple[Any, list[Any]]]]:
    """Return the callers and arguments of each function."""
    calls: dict[Any, list[tuple[Any, list[Any]]]] = {}
    for caller, fn in members.items():
        for binding in all_bindings(fn.body):
            value = binding.value
            if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                calls.setdefault(value.op, []).append((caller, list(value.args)))
    return calls


def _handed_on(fn: relax.Function, donated: set[int], args: Sequence[Any]) -> set[int]:
    """Return the numbers of the arguments that are donated and read nowhere else."""
    tensors = _read_once(fn, donated)
    return {i for i, arg in enumerate(args) if arg in tensors}


def _read_once(fn: relax.Function, donated: set[int]) -> set[Any]:
    """Return the donated parameters that are read once."""
    reads = Counter(v for b in all_bindings(fn.body) for v in variables(b.value))
    reads.update(variables(fn.body.body))
    return {fn.params[i] for i in donated if reads[fn.params[i]] == 1}


def _with_appends(fn: relax.Function, donated: set[int]) -> relax.Function:
    """Return a function whose appends to donated parameters are in place."""
    caches, changed, blocks = _read_once(fn, donated), False, []
    for block in fn.body.blocks:
        writer = BlockWriter(relax.BlockBuilder(), isinstance(block, relax.DataflowBlock))
        for binding in block.bindings:
            value: Any = binding.value
            if op_name(value) == "dist.kv_append" and value.args[0] in caches:
                new = kv_append(*value.args, page_size=int(value.attrs["page_size"]), in_place=True)
                writer.bind(binding.var, writer.builder.normalize(new))
                changed = True
            else:
                writer.bindings.append(binding)
        blocks.append(writer.block())
    if not changed:
        return fn
    blocks, result = let_out(blocks, fn.body.body)
    return with_body(fn, fn.params, blocks, result, bool(fn.is_pure))
