# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Save activations sharded for the backward pass, and gather them again there.

Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2: of a value that is
gathered in front of a product each device saves its part, and the backward pass has a further
gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    BlockWriter,
    callee_of,
    let_out,
    make_var,
    rebuild,
    retyped,
    substitute,
    typed,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.core.rewriting.native import pruned, read_module

from .kept_gathers import GatheredValue, KeptGathers
from .named_axes import numbers_of_axes


@module_pass("legalized")
def RegatherActivations(axes: Sequence[str] = ()) -> Rewrite:
    """Save activations before their gather, and re-gather them in the backward pass.

    Before, in a step whose layer gathers a norm's result along ``tp`` for its products::

        def layer_forward(x, w):
            n = R.nn.rms_norm(x, ...)             # S[1]
            g = R.dist.all_gather(n, mesh, 0, 1)  # R
            y = R.matmul(g, w)
            return (y, (g,))

        def layer_backward(grad, saved):
            g = saved[0]
            w_grad = R.einsum((g, grad), ...)

    After: the forward pass returns ``(y, (n,))``, and the backward pass begins with
    ``g_again = R.dist.all_gather(g, ...)`` where ``g`` is first computed with. So of what is kept
    each device has its part, and one gather more is sent for each value that was gathered. Values
    are followed through calls, tuples and results of private functions; in a step without them,
    what follows the loss gathers anew. What the forward pass computes with outside of the function
    that gathered it stays gathered. No number changes.

    Parameters
    ----------
    axes : sequence of str
        Names of the mesh axes; without any, nothing changes.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises MeshError DIST0206 if no mesh has such an axis.
    """

    def gather_again(mod: ir.IRModule) -> ir.IRModule:
        numbers = numbers_of_axes(mod, axes, "RegatherActivations")
        members = read_module(mod) if axes else []
        kept_gathers = KeptGathers(members, numbers)
        if not kept_gathers:
            return mod
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        for gv, fn, _ in members:
            ends = [(p.ty, kept_gathers.of(p)) for p in fn.params]
            ends.append((fn.ret_ty, kept_gathers.of_result(str(gv.name_hint))))
            if any(is_kept for _, leaves in ends for is_kept in leaves):
                *params, result = (_type(ty, iter(leaves)) for ty, leaves in ends)
                renamed[gv] = retyped(gv, relax.FuncType(params, result, bool(fn.is_pure)))
        functions = dict(mod.functions.items())
        for gv, fn, _ in members:
            del functions[gv]
            functions[renamed.get(gv, gv)] = _Regathering(fn, kept_gathers, renamed).run()
        return with_functions(mod, functions)

    return gather_again


def _type(ty: ir.Type, leaves: Iterator[GatheredValue | None]) -> ir.Type:
    """Return the type of the saved value."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_type(field, leaves) for field in ty.fields])
    gather = next(leaves)
    return ty if gather is None else gather.source.ty


class _Regathering:
    """Rewriter of a function that passes on ungathered values and gathers them for compute.

    ``kept`` is what represents a variable where it is passed on.
    """

    def __init__(
        self, fn: relax.Function, gathers: KeptGathers, renamed: Mapping[ir.GlobalVar, ir.GlobalVar]
    ) -> None:
        self.fn, self.gathers, self.renamed = fn, gathers, renamed
        self.gathered_values: dict[Var, Var] = {}
        self._again: dict[Var, Var] = {}
        self._builder = relax.BlockBuilder()

    def run(self) -> relax.Function:
        """Return the function, or the given function if nothing changes."""
        fn = self.fn
        params = [self._held(p) for p in fn.params]
        blocks = BlockWriter.rewritten(self._builder, fn.body.blocks, self._write)
        if not self.gathered_values:
            return fn
        blocks, result = let_out(blocks, substitute(fn.body.body, self.gathered_values))
        blocks, _ = pruned(blocks, result)
        return with_body(fn, params, blocks, result, bool(fn.is_pure))

    def _held(self, var: Var) -> Var:
        """Return the variable, or the saved variable that replaces it."""
        leaves = self.gathers.of(var)
        if not any(leaves):
            return var
        dataflow = isinstance(var, relax.DataflowVar)
        self.gathered_values[var] = make_var(str(var.name), _type(var.ty, iter(leaves)), dataflow)
        return self.gathered_values[var]

    def _write(self, writer: BlockWriter, binding: Binding) -> None:
        var, value = binding.var, binding.value
        gathered = self.gathers.gathered.get(var)
        if gathered is not None:
            writer.bindings.append(binding)
            if any(self.gathers.of(var)):
                self.gathered_values[var] = gathered.source
        elif isinstance(value, ir.Var) and value in self.gathered_values:
            self.gathered_values[var] = self.gathered_values[value]
        elif isinstance(value, relax.Tuple | relax.TupleGetItem) or callee_of(value) is not None:
            gathered_value = self._held(var)
            new = self._handed_on(value, gathered_value.ty)
            writer.bindings.append(binding) if new is value else writer.bind(gathered_value, new)
        else:
            env = {v: self._gathered(writer, v) for v in self._computed(var, value)}
            writer.bindings.append(binding) if not env else writer.bind(var, substitute(value, env))

    def _handed_on(self, value: Expr, ty: ir.Type) -> Expr:
        """Rewrite a tuple, a field of a tuple, or a call of a function, of saved values."""
        if isinstance(value, relax.Tuple):
            return substitute(value, self.gathered_values)
        if isinstance(value, relax.TupleGetItem):
            source = self.gathered_values.get(value.tuple_value)
            return value if source is None else typed(relax.TupleGetItem(source, value.index), ty)
        callee = self.renamed.get(value.op)
        if callee is None:
            return value
        return rebuild(
            value, callee, [substitute(arg, self.gathered_values) for arg in value.args], ty
        )

    def _computed(self, var: Var, value: Expr) -> list[Var]:
        """Return the operands of a value that must be gathered for it."""
        late = var in self.gathers.late
        return [
            v
            for v in variables(value)
            if v in self.gathered_values and (late or v not in self.gathers.gathered)
        ]

    def _gathered(self, writer: BlockWriter, var: Var) -> Var:
        """Return the gathered variable, computed once per function."""
        shard = self.gathered_values[var]
        if shard not in self._again:
            (way,) = self.gathers.of(var)
            value = shard
            for step in way.steps if way else ():
                value = writer.add(rebuild(step, step.op, [value], step.ty), f"{var.name}_again")
            self._again[shard] = value
        return self._again[shard]
