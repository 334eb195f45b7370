# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The pass ``OptimizeCollectives``: share, cancel, fuse, drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import ir, relax

from ...ir import mesh_key, ops
from ...ir.ops import IMPURE, dist_op_name
from ...ir.types import relax_functions
from ..legalize.emit import BlockWriter, bindings_of, substitute, variables, with_body
from ..legalize.passes import has_dtensor

#: Pairs of collectives along one axis and dim of which the second undoes the first.
INVERSES = {"local_slice": "all_gather", "all_gather": "local_slice"}


def OptimizeCollectives() -> Any:
    """Remove collectives that need not be, level 4 to level 4.

    Within a block: identical ones are shared, an ``all_gather`` and a ``local_slice`` that undo
    each other are cancelled, an ``all_reduce`` read by one ``local_slice`` only becomes a
    ``reduce_scatter``, and what nobody reads is dropped.

    Returns
    -------
    pass : tvm.transform.Pass
    """

    @tvm.transform.module_pass(  # type: ignore[untyped-decorator]
        opt_level=0, name="tvm_distir.OptimizeCollectives"
    )
    def optimize_collectives(mod: ir.IRModule, _: Any) -> ir.IRModule:
        functions = dict(mod.functions.items())
        for gv, fn in relax_functions(mod):
            if not has_dtensor(fn):
                continue
            name = str(gv.name_hint)
            for step in (_share, _fuse, _drop):
                fn = step(fn, name)
            functions[gv] = fn
        return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return optimize_collectives


def collective_kind(value: Any) -> str | None:
    """Name of a pure collective with one operand, else None."""
    kind = dist_op_name(value)
    return kind if kind not in (None, *IMPURE) and len(value.args) == 1 else None


def signature(value: ir.Call) -> Any:
    """What two equal collectives have in common: op, operand, attributes."""
    attrs = [
        (str(k), mesh_key(v) if str(k).endswith("mesh") else str(v)) for k, v in value.attrs.items()
    ]
    operand = value.args[0]
    if isinstance(operand, ir.GenericConst):  # equal when they share their data
        operand = (operand.value, str(operand.ty))
    return (str(value.op.name), operand, tuple(sorted(attrs)))


def undoes(second: ir.Call, first: ir.Call) -> bool:
    """Whether ``second`` (applied to the result of ``first``) gives back the operand."""
    if INVERSES.get(dist_op_name(second) or "") != dist_op_name(first):
        return False
    return all(int(second.attrs[k]) == int(first.attrs[k]) for k in ("mesh_axis", "dim"))


@dataclass
class Scope:
    """One block being rewritten.

    Attributes
    ----------
    writer : BlockWriter
    known : dict
        Values bound so far, by variable.
    seen : dict
        First variable bound to a collective, by its signature.
    """

    writer: BlockWriter
    known: dict[Any, Any] = field(default_factory=dict)
    seen: dict[Any, Any] = field(default_factory=dict)


Rewrite = Callable[[Scope, Any, Any], Any]


def _rewritten(fn: relax.Function, rewrite: Rewrite) -> relax.Function:
    """Pass every binding through ``rewrite(scope, var, value)``.

    It returns the value to bind, or a variable that ``var`` is to be replaced by.
    """
    builder = relax.BlockBuilder()
    env: dict[Any, Any] = {}
    blocks = []
    for block in fn.body.blocks:
        scope = Scope(BlockWriter(builder, isinstance(block, relax.DataflowBlock)))
        for binding in block.bindings:
            var, old = binding.var, substitute(binding.value, env)
            new = rewrite(scope, var, old)
            hidden = isinstance(new, relax.DataflowVar) and not isinstance(var, relax.DataflowVar)
            if isinstance(new, ir.Var) and not new.same_as(old) and not hidden:
                env[var] = new
                continue
            scope.writer.bind(var, new)
            scope.known[var] = new
        blocks.append(scope.writer.block())
    return with_body(fn, fn.params, blocks, substitute(fn.body.body, env), bool(fn.is_pure))


def _share(fn: relax.Function, _: str) -> relax.Function:
    def rewrite(scope: Scope, var: Any, value: Any) -> Any:
        if collective_kind(value) is None:
            return value
        source: Any = scope.known.get(value.args[0])
        if dist_op_name(source) and undoes(value, source):
            return source.args[0]
        first = scope.seen.setdefault(signature(value), var)
        return value if first.same_as(var) else first

    return _rewritten(fn, rewrite)


def _readers(fn: relax.Function, name: str) -> Counter[Any]:
    count: Counter[Any] = Counter(variables(fn.body.body))
    for _, value in bindings_of(fn, name):
        count.update(variables(value))
    return count


def _fuse(fn: relax.Function, name: str) -> relax.Function:
    readers = _readers(fn, name)

    def rewrite(scope: Scope, var: Any, value: Any) -> Any:
        if dist_op_name(value) != "local_slice":
            return value
        source = value.args[0]
        first: Any = scope.known.get(source)
        if dist_op_name(first) != "all_reduce" or readers[source] != 1:
            return value
        axis, axes = int(value.attrs["mesh_axis"]), [int(a) for a in first.attrs["mesh_axes"]]
        if axis not in axes:
            return value
        mesh, op = value.attrs["device_mesh"], str(first.attrs["op"])
        new = ops.reduce_scatter(first.args[0], mesh, axis, int(value.attrs["dim"]), op)
        rest = [a for a in axes if a != axis]
        if rest:
            new = ops.all_reduce(scope.writer.emit(new, str(var.name)), mesh, rest, op)
        return scope.writer.builder.normalize(new)

    return _rewritten(fn, rewrite)


def _drop(fn: relax.Function, _: str) -> relax.Function:
    read = set(variables(fn.body.body))
    blocks = []
    for block in reversed(fn.body.blocks):
        kept = []
        for binding in reversed(block.bindings):
            if collective_kind(binding.value) is not None and binding.var not in read:
                continue
            read.update(variables(binding.value))
            kept.append(binding)
        dataflow = isinstance(block, relax.DataflowBlock)
        kind = relax.DataflowBlock if dataflow else relax.BindingBlock
        blocks.append(kind(kept[::-1]))
    return with_body(fn, fn.params, blocks[::-1], fn.body.body, bool(fn.is_pure))
