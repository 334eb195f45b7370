# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower modules in TVM's local view, in which each function scatters its inputs from worker 0.

TVM's pass of the same name takes a 1-D mesh, full inputs on worker 0 and PrimFuncs of local
shapes; it scatters or broadcasts every input and turns ``call_tir_local_view`` into
``call_tir``. Results stay sharded.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis.levels import has_dtensor
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.placement import R, labels_of, local_shape
from tvm_distir.core.ir.types import plain_type, relax_functions, static_shape
from tvm_distir.core.rewriting.calls import location_of, op_name, rebuild
from tvm_distir.core.rewriting.functions import retyped
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import BlockWriter, with_body
from tvm_distir.support import GenericConst, LoweringError

_CACHES = {
    "vm.builtin.distributed.attention_kv_cache_append": "vm.builtin.attention_kv_cache_append",
    "vm.builtin.distributed.attention_kv_cache_view": "vm.builtin.attention_kv_cache_view",
}


def _shard_type(ty: ir.Type, location: str) -> Any:
    """Return the type of a shard; other types as they are."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_shard_type(t, location) for t in ty.fields])
    if not isinstance(ty, DTensorType):
        return ty
    shape = static_shape(ty)
    if shape is None:
        remedy = "Give the tensor a known shape."
        raise LoweringError("DIST0502", "a shape is unknown", location=location, remedy=remedy)
    local = local_shape(shape, labels_of(ty.placement), mesh_shape(ty.device_mesh))
    return relax.TensorType(local, ty.tensor_ty.dtype, ty.tensor_ty.vdevice)


class _Lowering:
    """A rewriter of a function."""

    def __init__(self, name: str, fn: relax.Function) -> None:
        self.name, self.fn = name, fn
        self.builder = relax.BlockBuilder()
        self.env: dict[ir.Expr, ir.Expr] = {}
        self.items: dict[tuple[Any, int], Any] = {}
        self.writer = BlockWriter(self.builder, False)

    def _spread(self, value: Any, ty: ir.Type) -> Any:
        sizes = mesh_shape(ty.device_mesh)
        if len(sizes) != 1:
            problem = f"TVM's local view supports only 1-D meshes, not {sizes}"
            remedy = "Do not run LowerGlobalViewToLocalView; LowerDistIR does not require it."
            raise LoweringError("DIST0504", problem, location=self.name, remedy=remedy)
        (label,) = labels_of(ty.placement)
        if not isinstance(value, ir.Var):
            value = self.writer.emit(value, "item")
        if label == R:
            return self.writer.emit(relax.op.ccl.broadcast_from_worker0(value), "gv")
        return self.writer.emit(relax.op.ccl.scatter_from_worker0(value, sizes[0], label), "gv")

    def _inputs(self, params: list[relax.Var]) -> None:
        for old, new in zip(self.fn.params, params):
            if isinstance(old.ty, DTensorType):
                self.env[old] = self._spread(new, old.ty)
            elif isinstance(old.ty, relax.TupleType):
                for i, field in enumerate(old.ty.fields):
                    if isinstance(field, DTensorType):
                        self.items[(old, i)] = self._spread(relax.TupleGetItem(new, i), field)

    def _value(self, var: relax.Var, value: Any) -> Any:
        location = location_of(self.name, var, value)
        if not isinstance(value, ir.Call):
            return self._plain(value)
        args = [self._plain(a) for a in value.args]
        if isinstance(value.op, relax.ExternFunc):
            symbol = str(value.op.global_symbol)
            new = rebuild(value, relax.ExternFunc(_CACHES.get(symbol, symbol)), args)
            if not symbol.endswith("attention_kv_cache_view"):
                return new
            ty = _shard_type(var.ty, location)
            return ir.Call(new.op, [args[0], ty.shape], value.attrs, [ty])
        name = op_name(value)
        if str(getattr(value.op, "name", "")) == "relax.dist.call_tir_local_view":
            op = ir.Op.get("relax.call_tir")
            return ir.Call(op, args, value.attrs, [_shard_type(var.ty, location)])
        if str(getattr(value.op, "name", "")) == "relax.call_tir":
            problem = "a call_tir is in global view"
            remedy = "Run LowerGlobalViewToLocalView first."
            raise LoweringError("DIST0504", problem, location=location, remedy=remedy)
        if name == "reshape":
            return relax.op.reshape(args[0], _shard_type(var.ty, location).shape)
        return rebuild(value, value.op, args)

    def _plain(self, expr: ir.Expr) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._plain(f) for f in expr.fields])
        if isinstance(expr, GenericConst) and isinstance(expr.ty, DTensorType):
            return GenericConst(expr.value, expr.ty.tensor_ty)
        return substitute(expr, self.env)

    def run(self) -> relax.Function:
        params = [relax.Var(p.name, plain_type(p.ty)) for p in self.fn.params]
        self.env.update(zip(self.fn.params, params))
        blocks = []
        for number, block in enumerate(self.fn.body.blocks):
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            if number == 0:
                # The spread inputs are read in later blocks too.
                inner, self.writer.dataflow = (
                    self.writer.dataflow,
                    len(self.fn.body.blocks) == 1 and self.writer.dataflow,
                )
                self._inputs(params)
                self.writer.dataflow = inner
            for binding in block.bindings:
                self._binding(binding)
            blocks.append(self.writer.block())
        result = self._plain(self.fn.body.body)
        if isinstance(result, relax.Tuple):
            result = self.builder.normalize(result)
        return with_body(self.fn, params, blocks, result, bool(self.fn.is_pure))

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            item = self.items.get((value.tuple_value, int(value.index)))
            if item is not None:
                self.env[var] = item
                return
        local = self.builder.normalize(self._value(var, value))
        new = type(var)(var.name, local.ty)
        self.env[var] = new
        self.writer.bind(new, local)


def lower_local_view(mod: ir.IRModule) -> ir.IRModule:
    """Lower a module in TVM's local view as TVM's ``LowerDistIR`` does."""
    functions = dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        if not has_dtensor(fn):
            continue
        new = _Lowering(str(gv.name_hint), fn).run()
        del functions[gv]
        ty = relax.FuncType([p.ty for p in new.params], new.ret_ty, bool(new.is_pure))
        functions[retyped(gv, ty)] = new
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
