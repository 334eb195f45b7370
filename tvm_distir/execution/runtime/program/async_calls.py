# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile the starts and dones of collectives to two calls, between which an engine may overlap.

``<collective>_start`` may write its result later, and ``done(result, operand)`` waits for it.
Engines that cannot overlap run the collective in the start, and nothing in the done.

A done is a call for its effect: TVM's memory planner does not know of packed functions that return
an alias of an argument, so what reads the result of a done reads that of the start after it. The
done takes the operand because the planner frees a tensor after its last reader, and would hand out
its storage while it is sent. Where the done of a start is in another function, the start copies its
operand.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, tirx

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.ir.operators import is_done, started_op
from tvm_distir.core.rewriting import callers_closure, retyped, substitute, typed, with_body

from .async_names import DONE, START


def split_starts(mod: ir.IRModule) -> ir.IRModule:
    """Replace starts and dones by packed calls; functions that hold or call such are impure.

    Parameters
    ----------
    mod : IRModule
        A module at level 5, or parts of it, whose branches are outlined.
    """
    functions = relax_functions(mod)
    first = {str(gv.name_hint) for gv, fn in functions if _has_pairs(fn)}
    if not first:
        return mod
    impure = callers_closure(mod, first)
    names = {
        gv: retyped(gv, relax.FuncType([p.ty for p in fn.params], fn.ret_ty, False))
        for gv, fn in functions
        if str(gv.name_hint) in impure
    }
    changed = {
        names.get(gv, gv): _split(fn, names) if gv in names else fn
        for gv, fn in mod.functions.items()
    }
    return ir.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)


def _has_pairs(fn: relax.Function) -> bool:
    values = (binding.value for block in fn.body.blocks for binding in block.bindings)
    return any(started_op(value) is not None or is_done(value) for value in values)


def _split(fn: relax.Function, names: dict[relax.Var, relax.Expr]) -> relax.Function:
    """Return an impure function whose starts and dones are packed calls."""
    bindings = [binding for block in fn.body.blocks for binding in block.bindings]
    awaited = {b.value.args[0] for b in bindings if is_done(b.value)}
    env: dict[relax.Var, relax.Expr] = dict(names)
    operands: dict[relax.Var, relax.Expr] = {}
    out: list[Any] = []
    for binding in bindings:
        value = substitute(binding.value, env)
        if is_done(value):
            begun = value.args[0]
            operand = [operands[begun]] if begun in operands else []
            nothing = relax.TupleType([])
            call = ir.Call(relax.ExternFunc(DONE), [begun, *operand], ty_args=[nothing])
            out.append(relax.VarBinding(relax.Var("waited", nothing), typed(call, nothing)))
            env[binding.var] = begun
            continue
        var = binding.var
        if isinstance(var, relax.DataflowVar):
            var = relax.Var(str(var.name), var.ty)
            env[binding.var] = var
        if started_op(value) is not None:
            is_here = binding.var in awaited
            # The legalization of a start is the packed call of its collective.
            packed, arguments = value.op.get_attr("FLegalize")(None, value).args
            copies = tirx.IntImm("int64", int(not is_here))
            start_call = relax.op.call_dps_packed(
                f"{packed.global_symbol}{START}", [*arguments.fields, copies], out_ty=value.ty
            )
            operands |= {var: value.args[0]} if is_here else {}
            value = typed(start_call, value.ty)
        if isinstance(binding, relax.MatchCast):
            out.append(relax.MatchCast(var, value, binding.ty))
        else:
            out.append(relax.VarBinding(var, value))
    result = substitute(fn.body.body, env)
    return with_body(fn, fn.params, [relax.BindingBlock(out)], result, False)
