# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-3 modules of one call under given factors, lowered, run, compared with the whole call."""

from __future__ import annotations

import itertools

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.placement import R, placement_of
from tvm_distir.core.ir.types import as_dtensor, flat_types
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.support import GenericConst, update_type


def whole_module(specs, make):
    """``main(*inputs) -> make(*inputs)`` at level 1, and the call."""
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(list(s), d)) for n, s, d, *_ in specs]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(make(*params))
        builder.emit_func_output(out)
    mod = builder.get()
    return mod, mod["main"].body.blocks[-1].bindings[-1].value


def draw(specs, seed=0):
    """Exact values from {-2..2}; integers below the bound given."""
    rng = np.random.default_rng(seed)
    out = []
    for _, shape, dtype, *bound in specs:
        if dtype == "bool":
            out.append(rng.integers(0, 2, shape).astype(bool))
        elif bound:
            out.append(rng.integers(0, bound[0], shape).astype(dtype))
        else:
            out.append(rng.integers(-2, 3, shape).astype(dtype))
    return out


def operand_leaves(call):
    return [t for a in call.args for t in flat_types(a.ty) if isinstance(t, relax.TensorType)]


def distributed(specs, call, mesh, factors, gather=True, functions=None):
    """Level-3 module in which the call follows ``factors[axis]`` along each mesh axis.

    Inputs are the call's variables in order; constants stay. Results are redistributed to R
    when ``gather``. ``functions`` holds the PrimFuncs called.
    """
    sizes = [int(n) for n in mesh.shape]
    at = itertools.count()
    params, env = [], {}

    bindings = []

    def moved(item, labels, name):
        """Bind a redistribute."""
        call = relax.op.distributed.redistribute(item, mesh, placement_of(labels))
        ty = as_dtensor(item.ty, mesh, labels)
        update_type(call, ty)
        var = relax.Var(name, ty)
        bindings.append(relax.VarBinding(var, call))
        return var

    def convert(arg):
        if isinstance(arg, relax.Tuple) and any(
            isinstance(t, relax.TensorType) for t in flat_types(arg.ty)
        ):
            return relax.Tuple([convert(f) for f in arg.fields])
        if not isinstance(arg.ty, relax.TensorType):
            return arg
        number = next(at)
        labels = [R if f is None or f.ins[number] is None else f.ins[number] for f in factors]
        if isinstance(arg, GenericConst):
            whole = GenericConst(arg.value, as_dtensor(arg.ty, mesh, [R] * len(sizes)))
            return whole if max(labels) < 0 else moved(whole, labels, "constant")
        if arg not in env:
            env[arg] = relax.Var(arg.name, as_dtensor(arg.ty, mesh, labels))
            params.append((arg.name, env[arg]))
        return env[arg]

    args = [a if isinstance(a, ir.GlobalVar) else convert(a) for a in call.args]
    order = [n for n, *_ in specs]
    params = [v for _, v in sorted(params, key=lambda p: order.index(p[0]))]
    outs = []
    for number, ty in enumerate(flat_types(call.ty)):
        labels = [R if f is None or f.outs[number] is None else f.outs[number] for f in factors]
        outs.append(as_dtensor(ty, mesh, labels))
    ty = relax.TupleType(outs) if isinstance(call.ty, relax.TupleType) else outs[0]
    new = ir.Call(call.op, args, call.attrs, [ty] if call.ty_args else [])
    update_type(new, ty)
    value = relax.Var("value", ty)
    bindings.append(relax.VarBinding(value, new))
    results = []
    for i in range(len(outs)):
        item = value
        if isinstance(ty, relax.TupleType):
            item = relax.Var(f"item{i}", outs[i])
            bindings.append(relax.VarBinding(item, relax.TupleGetItem(value, i)))
        if gather:
            item = moved(item, [R] * len(sizes), f"result{i}")
        results.append(item)
    result = results[0] if len(results) == 1 else relax.Tuple(results)
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    result_ty = result.ty if len(results) == 1 else relax.TupleType([r.ty for r in results])
    if type(result.ty) is ir.Type:
        update_type(result, result_ty)
    update_type(body, result_ty)
    fn = relax.Function(
        params, body, result_ty, True, tvm.ir.make_node("ir.DictAttrs", global_symbol="main")
    )
    names = [str(i) for i in range(len(sizes))]
    others = {} if functions is None else functions.functions
    return ir.IRModule(
        {ir.GlobalVar("main"): fn, **{g: f for g, f in others.items() if g.name_hint != "main"}},
        attrs={"mesh_axes": [names]},
        global_infos={"mesh": [mesh]},
    )


def fits(factor, count):
    """Whether an axis of ``count`` devices may follow a factor."""
    return factor.size % count == 0 or (factor.uneven and factor.size > count)


def lower(mod, check_legalized=True):
    """Legalize and lower, checking form, round trip and that the input stays as it is."""
    for level, step in ((4, LegalizeRedistribute()), (5, LowerDistIR())):
        before = tvm_ffi.structural_hash(mod)
        mod, inputs = step(mod), mod
        assert tvm_ffi.structural_hash(inputs) == before
        if check_legalized or "dist.io" in mod.script():
            check_module(mod)
        check_level(mod, level)
    return mod


def check_module(mod):
    """Well formed, and its text parses back to the same module."""
    relax.analysis.well_formed(mod)
    again = tvm.script.from_source(mod.script(show_meta=True))
    tvm.ir.assert_structural_equal(mod, again)


def run_virtual(mod, inputs):
    return VirtualEngine().run(mod, inputs)


def reference(mod, inputs):
    return Reference(mod).run(inputs)


def mesh_of(*sizes):
    return td.device_mesh({str(i): n for i, n in enumerate(sizes)})


def rule_for(call):
    return rule_of(call)


def without_wraps(mod):
    """Module of level 3 in which every reduction is completed at once."""
    functions = dict(mod.functions.items())
    for gv, fn in mod.functions.items():
        if not isinstance(fn, relax.Function):
            continue
        env, blocks = {}, []
        for block in fn.body.blocks:
            remaining = []
            for binding in block.bindings:
                value = substitute(binding.value, env)
                if dist_op_name(value) == "partial":
                    env[binding.var] = value.args[0]
                else:
                    remaining.append(relax.VarBinding(binding.var, value))
            blocks.append(type(block)(remaining))
        result = substitute(fn.body.body, env)
        functions[gv] = with_body(fn, fn.params, blocks, result, bool(fn.is_pure))
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
