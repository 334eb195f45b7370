# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute in float32 what kernels compute of narrower floats.

TVM's kernels add, multiply and take exponentials in the type of their operands, so a sum of
bfloat16 ones ends at 256. Here every PrimFunc reads and writes its narrow floats (16 bits and
less) as before, computes in float32 between them, and rounds once at its result, as the kernels
of PyTorch, of XLA and of cuBLAS do.

Before::

    with T.init():
        y[i, j] = T.bfloat16(0)
    y[i, j] = y[i, j] + x[i, k] * w[k, j]

After, with a buffer ``y_float32`` of the PrimFunc::

    with T.init():
        y_float32[i, j] = T.float32(0)
    y_float32[i, j] = y_float32[i, j] + T.float32(x[i, k]) * T.float32(w[k, j])
    # and behind all blocks
    y[i, j] = T.bfloat16(y_float32[i, j])

Buffers of a PrimFunc that hold what it computed are float32. Those that hold operands moved, as
the padding of a convolution does, stay narrow, and so does the largest of some operands. A type
that the PrimFunc states itself is kept: a cast of float32 to a narrow float rounds.
PrimFuncs that are scheduled by hand (memory scopes, intrinsics on pointers) stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.relax import Var

from tvm_distir.core.rewriting import map_functions
from tvm_distir.support import IF_THEN_ELSE, SBlock, SBlockRealize, TensorLoad

from .sharing import with_block_fields

WIDE = "float32"

_ARITHMETIC = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.Mod, tirx.FloorMod,
)  # fmt: skip
_MOVES = (IF_THEN_ELSE,)
_BY_BITS = ("reinterpret", "extern", "packed", "nextafter", "address_of", "access_ptr")
"""Parts of names of calls whose operands keep their type."""


def _kind(value: ir.Expr) -> str:
    """Return the dtype of a number, a vector or a buffer; empty for pointers and others."""
    return str(getattr(value.ty, "dtype", ""))


def is_narrow(dtype: str) -> bool:
    """Return whether sums of a type are accumulated in float32: a float of 16 bits or less."""
    return dtype.startswith(("float16", "bfloat16", "float8_", "float6_", "float4_"))


def _name(call: ir.Call) -> str:
    return str(call.op.name) if isinstance(call.op, ir.Op) else ""


def _is_by_bits(call: ir.Call) -> bool:
    return any(part in _name(call) for part in _BY_BITS)


def _computes(root: ir.Expr | tirx.Stmt) -> bool:
    """Return whether an expression or a statement computes in a narrow float."""

    def visit(node: Any) -> Any:
        if isinstance(node, ir.Call) and (_name(node) in _MOVES or _is_by_bits(node)):
            return None
        return tvm_ffi.VisitInterrupt(True) if is_narrow(_kind(node)) else None

    return tvm_ffi.structural_walk(root, [((*_ARITHMETIC, ir.Call), visit)]) is not None


def _reads_any(root: ir.Expr, sources: Collection[ir.Var]) -> bool:
    entry = [(tirx.Var, lambda v: tvm_ffi.VisitInterrupt(True) if v in sources else None)]
    return tvm_ffi.structural_walk(root, entry) is not None


def _cast(dtype: str, value: ir.Expr) -> ir.Expr:
    """Cast a value, unless it is of the type, or was cast from it without a loss."""
    if _kind(value) == dtype:
        return value
    if isinstance(value, tirx.Cast) and _kind(value) == WIDE and _kind(value.value) == dtype:
        return value.value
    return tirx.Cast(dtype, value)


def _is_scheduled(function: tirx.PrimFunc) -> bool:
    """Return whether a PrimFunc has memory scopes, match buffers or pointers to buffers."""
    if function.attrs and "tirx.is_scheduled" in function.attrs:
        return True

    def scoped(block: SBlock) -> Any:
        scopes = {str(buffer.ty.storage_scope) for buffer in block.alloc_buffers}
        return tvm_ffi.VisitInterrupt(True) if scopes - {"", "global"} else matched(block)

    def matched(block: SBlock) -> Any:
        return tvm_ffi.VisitInterrupt(True) if len(block.match_buffers) else None

    def pointer(call: ir.Call) -> Any:
        takes_buffer = any(isinstance(a, tirx.Var) and hasattr(a.ty, "shape") for a in call.args)
        return tvm_ffi.VisitInterrupt(True) if takes_buffer or "address_of" in _name(call) else None

    entries = [(SBlock, scoped), (ir.Call, pointer)]
    return tvm_ffi.structural_walk(function.body, entries) is not None


class _Widening:
    """Rewriter of a PrimFunc that computes in narrow floats.

    Attributes
    ----------
    wide : dict of Var to Var
        By a narrow buffer or variable, that in float32 that holds its values.
    """

    def __init__(self, function: tirx.PrimFunc) -> None:
        self._function = function
        self.wide: dict[ir.Var, ir.Var] = {}
        temporaries, reduced, writes = self._definitions()
        narrow = [var for var in (*temporaries, *reduced) if is_narrow(_kind(var))]
        computed = {var for var, value in writes if _computes(value)}
        before = -1
        while len(self.wide) > before:  # what is moved from a computed buffer is computed too
            before = len(self.wide)
            moved = {var for var, value in writes if _reads_any(value, self.wide)}
            for var in narrow:
                if var not in self.wide and (var in computed or var in moved):
                    self.wide[var] = self._in_float32(var)
        self._results = [var for var in reduced if var in self.wide]

    def _definitions(self) -> tuple[list[ir.Var], list[ir.Var], list[tuple[ir.Var, ir.Expr]]]:
        """Return its temporary buffers and variables, its results that blocks reduce, its writes.

        A write is a buffer or a variable, and a value.
        """
        temporaries, reduced, writes = list[Any](), list[Any](), list[tuple[Any, Any]]()

        def block(node: SBlock) -> None:
            temporaries.extend(node.alloc_buffers)
            for region in node.writes if node.init is not None else ():
                if region.source in params and region.source not in reduced:
                    reduced.append(region.source)

        def store(node: tirx.BufferStore) -> None:
            writes.append((node.buffer, node.value))

        def bind(node: tirx.Bind | tirx.Let) -> None:
            temporaries.append(node.var)
            writes.append((node.var, node.value))

        params = set(self._function.params)
        entries = [(SBlock, block), (tirx.BufferStore, store), ((tirx.Bind, tirx.Let), bind)]
        tvm_ffi.structural_walk(self._function.body, entries)
        return temporaries, reduced, writes

    def _in_float32(self, var: Var) -> ir.Var:
        name = f"{var.name}_{WIDE}" if var in set(self._function.params) else str(var.name)
        if not hasattr(var.ty, "shape"):
            return tirx.Var(name, WIDE)
        layout = None if var.ty.layout is None else "default"
        return tirx.decl_buffer(list(var.ty.shape), WIDE, name, layout=layout)

    def run(self) -> tirx.PrimFunc:
        """Return the PrimFunc with its arithmetic in float32."""
        body = tvm_ffi.structural_map(
            self._function.body,
            [
                (tirx.Var, lambda var: self.wide.get(var, var)),
                (tirx.BufferStore, self._store),
                (tirx.Bind, self._bind),
                (tirx.IfThenElse, self._branch),
            ],
        )
        f = self._function
        return tirx.PrimFunc(f.params, self._with_results(body), f.ret_type, f.attrs)

    def _with_results(self, body: tirx.Stmt) -> tirx.Stmt:
        """Add the buffers in which results are accumulated, and the blocks that round these."""
        if not self._results:
            return body
        root = body.block
        rounded = [_rounding(self.wide[var], var) for var in self._results]
        buffers = [*root.alloc_buffers, *(self.wide[var] for var in self._results)]
        statements = tirx.SeqStmt([root.body, *rounded])
        block = with_block_fields(root, body=statements, alloc_buffers=buffers)
        return SBlockRealize(list(body.iter_values), body.predicate, block)

    # -- after the variables were replaced: expressions still have the types that they had

    def _store(self, store: tirx.BufferStore) -> tirx.BufferStore:
        value = self._as(_kind(store.buffer), store.value)
        return tirx.BufferStore(store.buffer, value, [self._expr(i) for i in store.indices])

    def _bind(self, bind: tirx.Bind) -> tirx.Bind:
        return tirx.Bind(bind.var, self._as(_kind(bind.var), bind.value))

    def _branch(self, branch: tirx.IfThenElse) -> tirx.IfThenElse:
        return tirx.IfThenElse(self._expr(branch.condition), branch.then_case, branch.else_case)

    def _as(self, dtype: str, value: ir.Expr) -> ir.Expr:
        """Return a value in a type; what is only moved keeps its form."""
        stays = is_narrow(dtype) and _kind(value) == dtype and not _computes(value)
        if stays and not _reads_any(value, set(self.wide.values())):
            return value
        return _cast(dtype, self._expr(value))

    def _expr(self, e: ir.Expr) -> ir.Expr:
        """Rewrite an expression, in float32 where it was a narrow float."""
        if isinstance(e, tirx.FloatImm):
            return tirx.FloatImm(WIDE, float(e.value)) if is_narrow(_kind(e)) else e
        if isinstance(e, tirx.Var):
            return _cast(WIDE, e) if is_narrow(_kind(e)) else e
        if isinstance(e, TensorLoad):
            load = tirx.BufferLoad(e.source, [self._expr(i) for i in e.indices])
            return _cast(WIDE, load) if is_narrow(_kind(load)) else load
        if isinstance(e, ir.Call):
            return self._call(e)
        if isinstance(e, tirx.Cast):
            return self._rounded(e)
        if isinstance(e, tirx.Select):
            return tirx.Select(*map(self._expr, (e.condition, e.true_value, e.false_value)))
        if isinstance(e, tirx.Let):
            return tirx.Let(e.var, self._as(_kind(e.var), e.value), self._expr(e.body))
        operands = [self._expr(getattr(e, name)) for name in ("a", "b") if hasattr(e, name)]
        return type(e)(*operands) if operands else e

    def _rounded(self, cast: tirx.Cast) -> ir.Expr:
        value, dtype = self._expr(cast.value), _kind(cast)
        if not is_narrow(dtype):
            return _cast(dtype, value)
        rounds = _kind(cast.value).startswith("float") and not is_narrow(_kind(cast.value))
        return _cast(WIDE, tirx.Cast(dtype, value) if rounds else value)

    def _call(self, call: ir.Call) -> ir.Expr:
        name, dtype = _name(call), _kind(call)
        if _is_by_bits(call):
            args = [self._as(_kind(a), a) if isinstance(a, ir.Expr) else a for a in call.args]
            same = tirx.call_intrin(dtype, call.op, *args)
            return _cast(WIDE, same) if is_narrow(dtype) else same
        args = [self._expr(a) if isinstance(a, ir.Expr) else a for a in call.args]
        if name in _MOVES:
            return tirx.if_then_else(*args)
        if not dtype:
            return call
        return tirx.call_intrin(WIDE if is_narrow(dtype) else dtype, call.op, *args)


def _rounding(source: ir.Var, result: ir.Var) -> tirx.Stmt:
    """Return the loops of a block that writes a buffer in another type."""
    shape = list(result.ty.shape) or [tirx.IntImm("int64", 1)]
    loops = [tirx.Var(f"ax{d}", n.ty.dtype) for d, n in enumerate(shape)]
    iters = [
        tirx.IterVar(ir.Range(0, n), tirx.Var(f"v_ax{d}", n.ty.dtype), tirx.IterVar.DataPar)
        for d, n in enumerate(shape)
    ]
    at = [iterator.var for iterator in iters] if len(result.ty.shape) else []
    store = tirx.BufferStore(result, tirx.Cast(_kind(result), tirx.BufferLoad(source, at)), at)
    points = [ir.Range.from_min_extent(index, tirx.const(1, index.ty.dtype)) for index in at]
    reads, writes = (tirx.BufferRegion(buffer, points) for buffer in (source, result))
    values = loops if at else [tirx.IntImm("int64", 0)]
    block = SBlock(iters, [reads], [writes], "rounded", store)
    nest = SBlockRealize(values, tirx.const(True, "bool"), block)
    for loop, extent in zip(loops[::-1], shape[::-1], strict=True) if at else ():
        nest = tirx.For(loop, tirx.const(0, loop.ty.dtype), extent, tirx.ForKind.SERIAL, nest)
    return nest


def _widened(function: tirx.PrimFunc) -> tirx.PrimFunc:
    wide = _computes(function.body) and not _is_scheduled(function)
    return _Widening(function).run() if wide else function


def _widen_all(mod: ir.IRModule, _: object) -> ir.IRModule:
    return map_functions(mod, _widened, tirx.PrimFunc)


accumulate_in_float32 = tvm.transform.module_pass(
    _widen_all, opt_level=0, name="tvm_distir.AccumulateInFloat32"
)
"""Pass that lets PrimFuncs compute narrow floats in float32. Level: any with PrimFuncs."""
