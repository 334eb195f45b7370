# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write functions that continue sums over micro-batches started by other functions."""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax import Expr, Var
from tvm.relax.op import add

from tvm_distir.core.rewriting import substitute, typed


class ContinuedAccumulation:
    """Builder that writes each function once.

    Attributes
    ----------
    functions : dict of str to (GlobalVar, Function)
        The functions made so far, by name.
    """

    def __init__(self) -> None:
        self.functions: dict[str, tuple[ir.GlobalVar, relax.Function]] = {}

    def of(self, mod: ir.IRModule, gv: ir.GlobalVar) -> ir.GlobalVar:
        """Return the function that continues the sums started by a function of a module."""
        name = f"{gv.name_hint}_on"
        if name not in self.functions:
            fn = _going_on(mod[gv], name)
            self.functions[name] = typed(ir.GlobalVar(name), fn.ty), fn
        return self.functions[name][0]


def _going_on(fn: relax.Function, name: str) -> relax.Function:
    """Turn a function that starts sums into ``(*sums, *terms) -> (*sums + terms,)``."""
    fn = relax.utils.copy_with_new_vars(fn)
    builder = relax.BlockBuilder()
    sums = [relax.Var(f"sum{k}", ty) for k, ty in enumerate(fn.ret_ty.fields)]
    with builder.function(name, [*sums, *fn.params]):
        with builder.dataflow():
            env: dict[Var, Expr] = {}
            for block in fn.body.blocks:
                for b in block.bindings:
                    env[b.var] = builder.emit(substitute(b.value, env), str(b.var.name))
            result = substitute(fn.body.body, env)
            fields = (
                list(result.fields)
                if isinstance(result, relax.Tuple)
                else [relax.TupleGetItem(result, k) for k in range(len(sums))]
            )
            new = [
                builder.emit_output(add(s, f), f"{s.name}_on")
                for s, f in zip(sums, fields, strict=True)
            ]
        builder.emit_func_output(relax.Tuple(new))
    return builder.get()[name].without_attr("global_symbol")
