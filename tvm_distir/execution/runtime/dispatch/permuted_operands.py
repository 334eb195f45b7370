# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let packed functions read and write permuted tensors as views, instead of copies.

A packed function of a library gets, after its other arguments, the order of the dims of each
tensor operand and of its result. Operands that are a ``permute_dims`` of a variable are passed as
that variable, and a result that is only permuted is written in its last order.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tvm import ir, relax, tirx

from tvm_distir.core.ir import handle
from tvm_distir.core.rewriting import (
    bindings_in,
    map_functions,
    op_name,
    permutation,
    typed,
    variables,
    with_body,
    with_branches,
)

from .packed_names import library_named

PERMUTE = "permute_dims"


def ints(values: Sequence[int]) -> relax.ShapeExpr:
    """Return integers as an argument of a packed function."""
    return relax.ShapeExpr([tirx.IntImm("int64", int(v)) for v in values])


def _source(
    builder: relax.BlockBuilder, operand: ir.Expr, order: Sequence[int]
) -> tuple[ir.Expr, Sequence[int]]:
    """Return what an operand permutes, and the order of its dims that gives ``order`` of it."""
    while isinstance(operand, relax.Var):
        value = builder.lookup_binding(operand)
        if op_name(value) != PERMUTE or not isinstance(value.args[0], relax.Var):
            break
        axes = permutation(value)
        operand, order = value.args[0], [axes[dim] for dim in order]
    return operand, order


def viewed(
    builder: relax.BlockBuilder, operand: ir.Expr, order: Sequence[int]
) -> tuple[ir.Expr, relax.ShapeExpr]:
    """Return the tensor and the order of dims that a packed function gets for an operand."""
    source, dims = _source(builder, operand, order)
    return source, ints(dims)


def composed(builder: relax.BlockBuilder, call: ir.Call) -> ir.Expr | None:
    """Return a permutation of a permutation as one, or as the tensor itself."""
    source, dims = _source(builder, call.args[0], permutation(call))
    if source.same_as(call.args[0]):
        return None
    if list(dims) == sorted(dims):
        return source
    return relax.op.permute_dims(source, list(dims))


def packed_function(value: object) -> str:
    """Return the packed function of a library that a value calls, else an empty text."""
    if op_name(value) != "call_dps_packed":
        return ""
    name = str(value.args[0].global_symbol)  # type: ignore[attr-defined]
    return name if library_named(name) else ""


def _written_permuted(packed: ir.Call, permute: ir.Call) -> ir.Call:
    """Return the call of a packed function that writes its result permuted."""
    *args, order = packed.args[1].fields
    axes = permutation(permute)
    last = ints([axes.index(int(dim)) for dim in order.values])
    name = str(packed.args[0].global_symbol)
    return typed(relax.op.call_dps_packed(name, [*args, last], out_ty=permute.ty), permute.ty)


class _Merging:
    """Writes results in their last order, and removes what nobody reads, from the last binding."""

    def __init__(self, fn: relax.Function) -> None:
        self.fn = fn
        self.values = {handle(var): value for var, value in bindings_in(fn.body)}
        self.reads = collections.Counter(
            handle(v) for value in (*self.values.values(), fn.body.body) for v in variables(value)
        )

    def run(self, merge: bool) -> relax.Function:
        """Return the function without dead permutations and, with ``merge``, without others."""
        blocks = []
        for block in self.fn.body.blocks[::-1]:
            bindings = []
            for b in block.bindings[::-1]:
                value = b.value
                if self._is_dead(b):
                    self.reads.subtract(map(handle, variables(value)))
                    continue
                if merge and op_name(value) == PERMUTE:
                    b = relax.VarBinding(b.var, self._merged(value))
                bindings.append(b)
            blocks.append(type(block)(bindings[::-1]))
        fn = self.fn
        return with_body(fn, fn.params, blocks[::-1], fn.body.body, bool(fn.is_pure))

    def _is_dead(self, b: relax.Binding) -> bool:
        ours = op_name(b.value) == PERMUTE or packed_function(b.value)
        return bool(ours) and not self.reads[handle(b.var)]

    def _merged(self, permute: ir.Call) -> ir.Call:
        source = permute.args[0]
        packed = self.values.get(handle(source)) if isinstance(source, relax.Var) else None
        if self.reads[handle(source)] != 1 or not packed_function(packed):
            return permute
        merged = _written_permuted(packed, permute)
        self.reads.update(map(handle, variables(merged)))
        self.reads[handle(source)] -= 1
        return merged


def _without_permutations(fn: relax.Function) -> relax.Function:
    """Return a function, and its branches, without the permutations that views replace."""
    if any(op_name(value) == PERMUTE for _, value in bindings_in(fn.body)):
        fn = _Merging(_Merging(fn).run(merge=False)).run(merge=True)
    return with_branches(fn, _without_permutations)


def merge_permutations(mod: ir.IRModule) -> ir.IRModule:
    """Return a module whose packed functions write permuted results themselves.

    Permutations that only packed functions read, who see their operands through views, are
    removed.
    """
    return map_functions(mod, _without_permutations)
