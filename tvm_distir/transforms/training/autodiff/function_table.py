# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the functions of a training step: those of the model and generated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tvm import ir, relax
from tvm.relax import Binding, BlockBuilder, Expr, Var

from tvm_distir.core.ir import is_private
from tvm_distir.core.ir.operators import free_name
from tvm_distir.core.rewriting import (
    all_bindings,
    callee_of,
    let_out,
    tuple_of,
    typed,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned, pruned_bindings
from tvm_distir.support import ModelError, begin_block, end_block, reachable
from tvm_distir.transforms.training.autodiff.rules.primfuncs import backward_kernel, unmarked

Made = TypeVar("Made")


class NamedFunctions:
    """Functions by name, with their global variables.

    Parameters
    ----------
    mod : IRModule
        The model.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.of = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
        self.variables = {str(gv.name_hint): gv for gv in mod.functions}

    def add(self, wish: str, fn: relax.Function) -> ir.GlobalVar:
        """Add a function under a unique name."""
        name = free_name(wish, self.of)
        gv = self.variables[name] = typed(ir.GlobalVar(name), fn.ty)
        self.of[name] = fn
        return gv

    def called_by(self, value: Expr) -> relax.Function | None:
        """Return the private Relax function that a value calls, or None if it calls none."""
        callee = callee_of(value)
        fn = None if callee is None else self.of.get(str(callee.name_hint))
        return fn if isinstance(fn, relax.Function) and is_private(fn) else None

    def module(self, entries: Mapping[str, relax.Function], attrs: Any) -> ir.IRModule:
        """Build a module of public functions and all that they call, including PrimFuncs."""
        functions: dict[str, ir.BaseFunc] = dict(entries)

        def named_in(name: str) -> list[str]:
            fn = functions[name] = entries[name] if name in entries else self._taken(name)
            return _named_in(fn) if isinstance(fn, relax.Function) else []

        private = sorted(set(reachable(entries, named_in)) - entries.keys())
        others = {self.variables[name]: functions[name] for name in private}
        return ir.IRModule({**entries, **others}, attrs=attrs)

    def _taken(self, name: str) -> ir.BaseFunc:
        """Return a function by name, with the kernels that its gradients call."""
        kernel = None if name in self.of else backward_kernel(name)
        if kernel is not None:
            self.variables[name], self.of[name] = kernel
        fn = self.of[name]
        return unmarked(fn) if isinstance(fn, relax.Function) else fn


def _named_in(fn: relax.Function) -> list[str]:
    """Return the functions that the bindings of a function call or pass to a call."""
    return [
        str(named.name_hint)
        for binding in all_bindings(fn.body)
        if type(binding.value) is ir.Call
        for named in (binding.value.op, *binding.value.args[:])
        if type(named) is ir.GlobalVar
    ]


def write_function(
    params: Sequence[Var], write: Callable[[BlockBuilder], Made]
) -> tuple[list[Binding], Made]:
    """Write into a new dataflow block.

    Parameters
    ----------
    params : sequence of Var
        The variables that may be read; their symbolic sizes are known.
    write : callable
        Emits into the builder that it gets.

    Returns
    -------
    bindings : list of Binding
        The emitted bindings, in normal form.
    result : what ``write`` returned
    """
    builder = relax.BlockBuilder()
    builder.begin_scope(list(params))
    begin_block(builder, dataflow=True)
    result = write(builder)
    block = end_block(builder)
    builder.end_scope()
    return list(block.bindings), result


def only_read(bindings: Sequence[Binding], results: Sequence[Var]) -> list[Binding]:
    """Return the bindings of a dataflow block that contribute to the given results."""
    blocks, _ = pruned_bindings([(True, bindings)], tuple_of(results))
    return [binding for block in blocks for binding in block.bindings]


def without_unread(fn: relax.Function) -> relax.Function:
    """Return a function without unread values, such as unused gradients of an op."""
    blocks, _ = pruned(fn.body.blocks[:], fn.body.body)
    return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))


def private_function(
    name: str, params: Sequence[Var], bindings: Sequence[Binding], result: Expr
) -> relax.Function:
    """Build a private function from bindings, with fresh variables.

    Raises
    ------
    ModelError
        DIST0351 if it has a symbolic size that the types of its parameters do not define.
    """
    blocks, result = let_out([relax.DataflowBlock(list(bindings))], result)
    blocks = [block for block in blocks if len(block.bindings)]
    body = typed(relax.SeqExpr(blocks, result), result.ty)
    fn = relax.Function(list(params), body, result.ty, True)
    free = relax.analysis.free_symbolic_vars(fn)
    if len(free):
        raise ModelError(
            "DIST0351",
            f"its gradient needs the size {free[0].name}, which none of its operands determines",
            location=name,
            remedy="Bind the symbolic dims, or apply InlinePrivateFunctions first.",
        )
    return relax.utils.copy_with_new_vars(fn)
