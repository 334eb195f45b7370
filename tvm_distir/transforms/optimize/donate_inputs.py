# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Append to donated caches, and update donated weights, in place (level 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.analysis import ParamAliases, param_aliases
from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.ir.attributes import DONATED_ATTR, IO_ATTR
from tvm_distir.core.ir.operators import kv_append
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import is_pattern, match_name
from tvm_distir.core.rewriting import (
    all_bindings,
    callees_first,
    let_out,
    op_name,
    variables,
    with_body,
    with_functions,
    with_values,
)
from tvm_distir.support import UsageError

from .call_sites import CallSites

CACHES = ("*_cache",)
"""Names of the caches of serving steps of the zoo."""


@module_pass("local")
def DonateInputs(inputs: Sequence[str] = CACHES) -> Rewrite:
    """Write results in place: a step may overwrite the memory of these inputs.

    The result of an append, or of an elementwise kernel such as an optimizer's update, then is in
    the memory of the input, as with ``donate_argnums`` of JAX: the caller passes the result to the
    next step and reads the old value no more. Inputs are followed into private functions; the
    attribute ``dist.donated`` of a function has the numbers of the parameters. Where something
    reads the old value later, the result takes memory of its own; an append also where something
    else reads the cache.

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
            fn = _with_appends(functions[gv], numbers)
            functions[gv] = fn.with_attr(DONATED_ATTR, sorted(numbers))
        return with_functions(mod, functions)

    return donate_inputs


def _donated(mod: ir.IRModule, patterns: Sequence[str]) -> dict[ir.GlobalVar, set[int]]:
    """Return the numbers of the parameters that may be overwritten, by function."""
    members = dict(relax_functions(mod))
    donated: dict[ir.GlobalVar, set[int]] = {gv: set() for gv in members}
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
            problem = f'no input is called "{pattern}"'
            remedy = f"The inputs are {', '.join(sorted(set(names)))}."
            raise UsageError("DIST0152", problem, location="DonateInputs", remedy=remedy)
    sites, aliases = CallSites(mod), param_aliases(mod)
    for gv, fn in reversed(callees_first(mod)):
        if is_private(fn) and gv in sites.of and gv not in sites.barred:
            handed_on = []
            for caller, call in sites.of[gv]:
                params = {members[caller].params[i]: i for i in donated[caller]}
                handed_on.append(_handed_on(call.value, params, aliases[caller]))
            donated[gv] = set.intersection(*handed_on)
    return {gv: numbers for gv, numbers in donated.items() if numbers}


def _handed_on(call: ir.Call, donated: Mapping[Var, int], aliases: ParamAliases) -> set[int]:
    """Return the arguments that are donated and that nothing reads besides and behind the call."""
    number = aliases.call_numbers.get(call)
    result = set[int]()
    for position, arg in enumerate(call.args):
        others = [v for n, other in enumerate(call.args) if n != position for v in variables(other)]
        param = donated.get(arg)
        if param is not None and param not in aliases.union(others):
            if aliases.last_read.get(param) == number:
                result.add(position)
    return result


def _read_once(fn: relax.Function, donated: set[int]) -> set[Var]:
    """Return the donated parameters that are read once."""
    reads = Counter(v for b in all_bindings(fn.body) for v in variables(b.value))
    reads.update(variables(fn.body.body))
    return {fn.params[i] for i in donated if reads[fn.params[i]] == 1}


def _with_appends(fn: relax.Function, donated: set[int]) -> relax.Function:
    """Return a function whose appends to donated parameters are in place."""
    caches, builder = _read_once(fn, donated), relax.BlockBuilder()

    def appended(_: Var, value: Expr) -> Expr:
        if op_name(value) != "dist.kv_append" or value.args[0] not in caches:
            return value
        new = kv_append(*value.args, page_size=int(value.attrs["page_size"]), in_place=True)
        return builder.normalize(new)

    new_fn = with_values(fn, appended)
    if new_fn is fn:
        return fn
    blocks, result = let_out(new_fn.body.blocks, fn.body.body)
    return with_body(fn, fn.params, blocks, result, bool(fn.is_pure))
