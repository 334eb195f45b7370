# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower calls of ops from level 4 to level 5, as the local computation of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr, Type
from tvm.relax import Var
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.mesh import mesh_shape, same_mesh
from tvm_distir.core.ir.placement import Labels
from tvm_distir.core.ir.types import flat_types, static_shape, tensor_type
from tvm_distir.core.ops.dims import symbols
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.fold import folded, is_foldable
from tvm_distir.core.ops.local.shard import Operand, Shard, shard
from tvm_distir.core.ops.local.sharding import local_form, stays_zero
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.partial import call_sharding, carried
from tvm_distir.core.ops.registry import registration_of
from tvm_distir.core.ops.terms import Terms, axes_of, without
from tvm_distir.core.rewriting.calls import is_tensors, leaves_of, location_of, tensor_args
from tvm_distir.core.rewriting.dims import dims_remedy
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute
from tvm_distir.support import GenericConst, LoweringError, PropagationError

from .values import LocalValues


class OpCalls:
    """A lowering of calls of ops.

    Parameters
    ----------
    values : LocalValues
        The local values of the function that holds the calls.
    """

    def __init__(self, values: LocalValues) -> None:
        self.values = values
        self.shardings = values.context.shardings

    def lower(self, var: Var, value: ir.Call, like: int) -> None:
        """Write the local form of a call; ``like`` is its class, -1 for none."""
        values = self.values
        if not is_tensors(var.ty):
            values.bind(var, substitute(value, values.env), [], False)
            return
        location = location_of(values.name, var, value)
        folds = False
        if is_foldable(value):
            values.foldable[var] = value
        elif values.foldable and len(value.args) and type(value.args[0]) in VARIABLES:
            source = values.foldable.get(value.args[0])
            if source is not None:
                folds = True
                value = folded(value, source, values.context.mod, values.name, var)
        outs = flat_types(var.ty)
        mesh = values.view_of(outs[0])
        sharding = self.shardings.of(
            -1 if folds else like,
            lambda: call_sharding(value, outs, values.context.mod, values.name, var),
        )
        operands = [leaf for arg in tensor_args(value) for leaf in leaves_of(arg)]
        handed = self._handed(var, value, sharding, operands)
        ins = [
            self._operand(var, value, *leaf, labels, mesh, location)
            for leaf, labels in zip(operands, sharding.ins)
        ]
        shards = [values.shard_of(t, location) for t in outs]
        where = (mesh, values.writer, values.name, var, values.memo_on(mesh))
        cx = LocalCall(value, sharding, value.args, ins, shards, *where)
        registration = registration_of(str(value.op.name))
        try:
            local = local_form(cx, registration, values.context.mod, values.context.prim_funcs)
        except (TypeError, ValueError) as error:
            if not any(o.symbolic_dims for o in (*(operand.shard for operand in ins), *shards)):
                raise
            raise self._needs_sizes([*(operand.shard for operand in ins), *shards], cx) from error
        local = self._normalized(local, var, value)
        values.expect(local.ty, shards, var, value)
        zero = not any(o.padded_dims for o in shards) or stays_zero(cx, registration)
        terms = [tuple(sorted((*sharding.result_terms(i), *handed))) for i in range(len(outs))]
        values.bind(var, local, terms, zero)

    def _operand(
        self,
        var: Var,
        call: ir.Call,
        expr: Expr,
        number: int,
        ty: Type,
        labels: Labels,
        mesh: DeviceMesh,
        location: str,
    ) -> Operand:
        """Return the shard of an operand of a call."""
        values = self.values
        if type(expr) is GenericConst:
            plain: Type = tensor_type(ty)
            layout = shard(static_shape(ty) or (), labels, mesh_shape(mesh), str(plain.dtype))
            return Operand(values.constant(expr, labels, mesh), None, layout, True)
        if type(ty) is DTensorType and not same_mesh(values.view_of(ty), mesh):
            problem = "an operand is on another mesh than the result"
            remedy = "Redistribute it to the mesh of the result."
            raise values.fault("DIST0503", problem, var, call, remedy)
        at = number if type(expr.ty) is relax.TupleType else None
        layout = values.shard_of(ty, location)
        return Operand(values.local(expr), at, layout, values.zero_of(expr, number))

    def _needs_sizes(self, shards: Sequence[Shard], cx: LocalCall) -> LoweringError:
        """Return the error about a local form that computes with sizes."""
        extents = [shard.global_shape[dim] for shard in shards for dim in shard.symbolic_dims]
        names = list(dict.fromkeys(str(v.name) for n in extents for v in symbols(n)))
        problem = f"on shards, the op computes with the sizes of {', '.join(names)}"
        return cx.fault("DIST0502", problem, dims_remedy(names))

    def _normalized(self, local: Expr, var: Var, value: Expr) -> Expr:
        values = self.values
        if type(local) in VARIABLES:
            return local
        try:
            return values.builder.normalize(local)
        except (LoweringError, PropagationError):
            raise
        except Exception as error:
            lines = [x for x in str(error).strip().splitlines() if x.strip()]
            problem = (
                "the op cannot be applied to shards: "
                f"{lines[-1].strip() if lines else type(error).__name__}"
            )
            remedy = "Replicate its operands, or register its rule with a local form."
            raise values.fault("DIST0505", problem, var, value, remedy) from error

    def _handed(self, var: Var, value: ir.Call, sharding: Any, operands: Sequence[Any]) -> Terms:
        """Return the terms that the call carries; everything unfinished must be carried."""
        values = self.values
        have = [values.terms_of(e, n) for e, n, _ in operands]
        if not any(have):
            return ()
        rule = sharding.rule or rule_of(value, values.context.mod)
        constants = [i for i, (e, _, _) in enumerate(operands) if isinstance(e, GenericConst)]
        handed, needed = carried(rule, have, constants, sharding)
        if needed or any(without(t, axes_of(handed)) for t in have):
            raise values.level_fault("it reads partial sums", var, value)
        return handed
