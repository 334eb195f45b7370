# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write calls of kernels that overwrite an operand as calls that return a new tensor.

Before, as ``DataflowUseInplaceCalls`` and MLC LLM write them::

    y = R.call_tir_inplace(cls.scale, (x,), inplace_indices=[0], out_ty=...)

After, with a kernel that copies ``x`` into its result and then does the same to that::

    y = R.call_tir(cls.scale_copy, (x,), out_ty=...)

What a device overwrites may be a shard that another value is a view of, or a copy that a
redistribution made, which propagation decides later: a new tensor is right for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, s_tir, tirx

from tvm_distir.support import PropagationError, SBlock, SBlockRealize

from .functions import calls_op
from .replacing import replaced_calls

CALL_INPLACE = "relax.call_tir_inplace"


def without_inplace_calls(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with ``call_tir`` for each ``call_tir_inplace``; it is not changed.

    Raises
    ------
    PropagationError
        DIST0401 for a kernel whose body has no root block.
    """
    if not calls_op(mod, (CALL_INPLACE,)):
        return mod

    def written(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call:
        target = call.args[0]
        indices = [int(i) for i in call.attrs.inplace_indices]
        kernel = copying(mod[target], len(call.args[1].fields), indices, target.name_hint)
        copy = builder.add_func(kernel, f"{target.name_hint}_copy")
        return ir.Call(ir.Op.get("relax.call_tir"), [copy, *call.args[1:]], None, call.ty_args)

    return replaced_calls(mod, {CALL_INPLACE: written})


def copying(
    kernel: tirx.PrimFunc, operands: int, indices: Sequence[int], name: str
) -> tirx.PrimFunc:
    """Return a kernel that leaves its operands as they are.

    Parameters
    ----------
    kernel : PrimFunc
    operands : int
        The number of its operands, which are its first parameters.
    indices : sequence of int
        Per result the operand that it overwrites, -1 for a result with a parameter of its own.
    name : str
        The name of the kernel, for messages.
    """
    root = kernel.body
    if not isinstance(root, SBlockRealize):
        raise PropagationError(
            "DIST0401",
            "its kernel overwrites an operand, and has no root block",
            location=f"call_tir_inplace {name}",
            remedy="Give the kernel a parameter for its result, and call it by R.call_tir.",
        )
    params: list[Any] = list(kernel.params[:operands])
    rest: list[Any] = list(kernel.params[operands:])
    results, copies = [], []
    for index in indices:
        result = rest.pop(0) if index < 0 else params[index]
        results.append(result)
        if index >= 0:
            shape, scope = list(result.ty.shape), str(result.ty.storage_scope)
            old_name = f"{result.name}_before"
            params[index] = tirx.decl_buffer(shape, result.ty.dtype, old_name, scope=scope)
            copies.append(_copy(params[index], result))
    block = root.block
    body = tirx.SeqStmt([*copies, block.body])
    title, allocations = str(block.name_hint), list(block.alloc_buffers)
    new_block = SBlock([], [], [], title, body, None, allocations, [], block.annotations)
    new_root = SBlockRealize([], root.predicate, new_block)
    new = tirx.PrimFunc([*params, *results, *rest], new_root, kernel.ret_type, kernel.attrs)
    return s_tir.renew_defs(new).without_attr("global_symbol")


def _copy(source: Any, target: Any) -> tirx.Stmt:
    """Return loops that copy a buffer."""
    extents = list(target.ty.shape)
    kinds = [str(n.ty.dtype) for n in extents]
    loops = [tirx.Var(f"i{d}", kind) for d, kind in enumerate(kinds)]
    iters = [
        tirx.IterVar(ir.Range(tirx.const(0, kind), n), tirx.Var(f"v{d}", kind), 0)
        for d, (n, kind) in enumerate(zip(extents, kinds))
    ]
    positions = [iterator.var for iterator in iters]
    regions = [
        [tirx.BufferRegion(buffer, [ir.Range.from_min_extent(p, 1) for p in positions])]
        for buffer in (source, target)
    ]
    store = tirx.BufferStore(target, tirx.BufferLoad(source, positions), positions)
    stmt: tirx.Stmt = SBlockRealize(loops, True, SBlock(iters, *regions, "copy", store))
    for loop, extent, kind in reversed(list(zip(loops, extents, kinds))):
        stmt = tirx.For(loop, tirx.const(0, kind), extent, tirx.ForKind.SERIAL, stmt)
    return stmt
