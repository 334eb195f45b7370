# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write functions that continue sums over micro-batches started by other functions."""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import add

from tvm_distir.core.rewriting import all_bindings, substitute, tuple_of, typed
from tvm_distir.transforms.training.autodiff.function_table import private_function, write_function


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
    sums = [relax.Var(f"sum{k}", ty) for k, ty in enumerate(fn.ret_ty.fields)]
    params = [*sums, *fn.params]

    def write(builder: BlockBuilder) -> list[Var]:
        env: dict[Var, Expr] = {}
        for b in all_bindings(fn.body):
            env[b.var] = builder.emit(substitute(b.value, env), str(b.var.name))
        result = substitute(fn.body.body, env)
        terms = [relax.TupleGetItem(result, k) for k in range(len(sums))]
        if isinstance(result, relax.Tuple):
            terms = list(result.fields)
        pairs = zip(sums, terms, strict=True)
        return [builder.emit(add(s, term), f"{s.name}_on") for s, term in pairs]

    bindings, new = write_function(params, write)
    return private_function(name, params, bindings, tuple_of(new))
