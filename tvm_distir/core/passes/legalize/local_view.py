# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize redistributions in TVM's local-view style, as the pass in TVM does.

TVM's pipeline legalizes ops to PrimFuncs first, works on 1-D meshes without axis names, and
turns ``R -> S`` into ``R.dist.redistribute_replica_to_shard``. A module is taken to be in that
style when it has no attribute ``mesh_axes``, all its meshes are 1-D, and its functions hold
nothing but ``call_tir_local_view`` or, with the attribute ``device_num``, nothing but
redistributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import AXES_ATTR, mesh_key, mesh_shape, meshes
from tvm_distir.core.ir.placement import R, labels_of
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.ops.class_memo import class_facts
from tvm_distir.core.rewriting.calls import location_of, op_name, typed
from tvm_distir.core.rewriting.native.function_index import OP_CALL, Member
from tvm_distir.core.rewriting.scopes import with_values
from tvm_distir.support import LoweringError

_CALL_TIR = ir.Op.get("relax.dist.call_tir_local_view")


def has_local_view(members: Sequence[Member]) -> bool:
    """Return whether a call is ``R.dist.call_tir_local_view``: only TVM's style has it."""
    facts = (class_facts(m.reading, "local view", partial(_is_call_tir, m)) for m in members)
    return any(map(any, facts))


def _is_call_tir(member: Member, number: int) -> bool:
    view = member.reading
    return view.kinds[number] == OP_CALL and bool(_CALL_TIR.same_as(view.values[number].op))


def is_local_view(mod: ir.IRModule, members: Sequence[Member]) -> bool:
    """Return whether a module is written in TVM's local-view style (see the module's docstring)."""
    attrs: Any = mod.attrs or {}
    if AXES_ATTR in attrs or any(len(mesh_shape(m)) != 1 for m in meshes(mod)):
        return False
    if has_local_view(members):
        return True
    if "device_num" not in attrs:
        return False
    calls = [
        value for member in members for value in member.reading.values if isinstance(value, ir.Call)
    ]
    return bool(calls) and all(
        op_name(call) == "dist.redistribute" and _simple(call) for call in calls
    )


def _simple(call: ir.Call) -> bool:
    """Return whether TVM's pass supports a redistribute: no change, or R to S, on a mesh."""
    ty = call.args[0].ty
    if not isinstance(ty, DTensorType) or mesh_key(ty.device_mesh) != mesh_key(
        call.attrs.device_mesh
    ):
        return False
    (old,), (new,) = labels_of(ty.placement), labels_of(call.attrs.placement)
    return old in (R, new)


def legalize_local_view(mod: ir.IRModule) -> ir.IRModule:
    """Replace the redistributions of a module in TVM's style."""
    builder = relax.BlockBuilder(mod)
    functions = dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        functions[gv] = with_values(fn, partial(_replaced, str(gv.name_hint), builder))
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _replaced(function: str, builder: relax.BlockBuilder, var: relax.Var, value: Any) -> Any:
    if op_name(value) != "dist.redistribute":
        return value
    if not _simple(value):
        raise LoweringError(
            "DIST0504",
            f'a redistribute from "{value.args[0].ty.placement}" to "{value.attrs.placement}" '
            "cannot be expressed in TVM's local view",
            location=location_of(function, var, value),
            remedy="Do not run LowerGlobalViewToLocalView on the module.",
        )
    (old,), (new,) = labels_of(value.args[0].ty.placement), labels_of(value.attrs.placement)
    if old == new:
        return value.args[0]
    count = mesh_shape(value.attrs.device_mesh)[0]
    op = ir.Op.get("relax.dist.redistribute_replica_to_shard")
    make = relax.op.distributed.redistribute_replica_to_shard
    call = builder.normalize(make(value.args[0], count, new))
    return call if call.op.same_as(op) and call.ty is not None else typed(call, var.ty)
