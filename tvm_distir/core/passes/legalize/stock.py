# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the pass ``UseStockCollectives``, which replaces level-5 collectives by ``R.ccl`` ops.

TVM's runtime knows all workers and, with ``num_groups`` of a Disco session, contiguous ranges of
them of one size. So a collective can be expressed when its groups are one of the two; slices and
positions come from the worker's number and always can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from tvm_distir.core.ir import ops
from tvm_distir.core.ir.async_ops import collective_op, is_done
from tvm_distir.core.ir.attributes import IN_FLIGHT_ATTR
from tvm_distir.core.ir.mesh import axis_groups, mesh_devices, mesh_shape
from tvm_distir.core.ir.ops import call_axes, dist_op_name
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.passes.declaration import Rewrite, module_pass
from tvm_distir.core.rewriting.calls import place_of
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import BlockWriter, with_body
from tvm_distir.support import LoweringError

NUM_GROUPS_ATTR = "dist.num_groups"
"""Module attribute: the ``num_groups`` that the Disco session must be made with."""
WORKER_ID = "runtime.disco.worker_id"


@module_pass("local")
def UseStockCollectives() -> Rewrite:
    """Replace the ``R.dist`` collectives of a level-5 module by TVM's ``R.ccl`` ops.

    The result needs nothing of the plugin at run time: it runs on a Disco session of a TVM that
    has NCCL or RCCL, one worker per device, made with ``num_groups`` as the module attribute
    ``dist.num_groups`` says. Run ``LegalizeRedistribute(ccl=True)`` before, which plans with
    collectives that have such a form.

    ======================  ================================================================
    ``all_reduce``          ``R.ccl.allreduce``
    ``all_gather``          ``R.ccl.allgather``, the dim moved to the front and back
    ``local_slice``         a slice at a place computed from the worker's number
    ``axis_index``          the same place as a tensor
    ``partial``             the operand where that place is 0, else the neutral element
    ``<collective>_start``  the collective: R.ccl has none that runs beside other work
    ``collective_done``     the value that the start gave
    ======================  ================================================================

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    LoweringError
        DIST0510 naming the collective that has no such form, or whose groups have none.
    """

    def use_stock_collectives(mod: ir.IRModule) -> ir.IRModule:
        groups = _GroupSizes()
        functions = dict(mod.functions.items())
        for gv, fn in relax_functions(mod):
            new = _StockFunction(str(gv.name_hint), fn, groups).run()
            functions[gv] = new.without_attr(IN_FLIGHT_ATTR)
        module = ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return module.with_attr(NUM_GROUPS_ATTR, groups.count) if groups.count > 1 else module

    return use_stock_collectives


class _GroupSizes:
    """The number of groups of the session, common to a module."""

    def __init__(self) -> None:
        self.count = 1
        self.first = ""

    def fault(self, count: int, place: str) -> str:
        """Request sessions of ``count`` groups; return the conflict, or an empty text."""
        if not self.first:
            self.count, self.first = count, place
        if self.count == count:
            return ""
        return f"its {count} groups and the {self.count} of {self.first} require two sessions"


class _StockFunction:
    """A rewriter of a function."""

    def __init__(self, name: str, fn: relax.Function, groups: _GroupSizes) -> None:
        self.name, self.fn, self.groups = name, fn, groups
        self.builder = relax.BlockBuilder()
        self.writer = BlockWriter(self.builder, False)
        self.env: dict[Any, Any] = {}
        self.worker: Any = None
        self.var: Any = None
        self.value: Any = None

    def run(self) -> relax.Function:
        forms: dict[str, Callable[[ir.Call], Any]] = {
            "all_reduce": self.all_reduce,
            "all_gather": self.all_gather,
            "local_slice": self.local_slice,
            "axis_index": self.axis_index,
            "partial": self.partial,
        }
        if not any(dist_op_name(b.value) for block in self.fn.body.blocks for b in block.bindings):
            return self.fn
        blocks: list[Any] = []
        for block in self.fn.body.blocks:
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            self.worker = None
            for binding in block.bindings:
                value = substitute(binding.value, self.env)
                kind = dist_op_name(value)
                if kind is None:
                    keep = type(binding)
                    if keep is relax.VarBinding:
                        self.writer.bind(binding.var, value)
                    else:
                        self.writer.bindings.append(binding)
                    continue
                self.var, self.value = binding.var, value
                if is_done(value):
                    self.writer.bind(binding.var, value.args[0])
                    continue
                kind = str(collective_op(value))
                if kind not in forms:
                    raise self.fault(f"R.ccl has no {kind}")
                self.writer.bind(binding.var, self.builder.normalize(forms[kind](value)))
            blocks.append(self.writer.block())
        result = substitute(self.fn.body.body, self.env)
        return with_body(self.fn, self.fn.params, blocks, result, bool(self.fn.is_pure))

    def fault(self, what: str) -> LoweringError:
        return LoweringError(
            "DIST0510",
            what,
            place=place_of(self.name, self.var, self.value),
            remedy="Run LegalizeRedistribute(ccl=True) before, choose placements along the "
            "innermost mesh axis, or run with the plugin's own collectives.",
        )

    def emit(self, value: Any) -> Any:
        return self.writer.emit(value, str(self.var.name))

    def in_group(self, call: ir.Call) -> tuple[bool, int]:
        """Return whether a collective runs in Disco's groups (else all workers), and their size."""
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        groups = axis_groups(mesh, axes)
        count, size = len(groups), len(groups[0])
        ids = [d for group in groups for d in group]
        if ids != list(range(len(ids))):
            raise self.fault(
                f"its groups {groups} are not contiguous ranges of the workers 0 to {len(ids) - 1}"
            )
        if count == 1:
            return False, size
        why = self.groups.fault(count, place_of(self.name, self.var, self.value))
        if why:
            raise self.fault(why)
        return True, size

    def position(self, call: ir.Call) -> Any:
        """Return the position in the group, as an expression of the worker number."""
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        sizes, ids = mesh_shape(mesh), mesh_devices(mesh).ravel().tolist()
        if ids != list(range(ids[0], ids[0] + len(ids))):
            raise self.fault(f"the devices {ids} are not in order")
        if self.worker is None:
            packed = relax.op.call_pure_packed(WORKER_ID, ty_args=[relax.ShapeType(ndim=1)])
            shape = self.emit(packed)
            self.worker = tirx.Var("worker_id", "int64")
            ty = relax.ShapeType([self.worker])
            var = self.writer.variable("worker", ty)
            self.writer.bindings.append(relax.MatchCast(var, shape, ty))
        place: Any = tirx.IntImm("int64", 0)
        for axis in axes:
            stride = math.prod(sizes[axis + 1 :])
            mine = tirx.floordiv(self.worker - ids[0], stride)
            place = place * sizes[axis] + tirx.floormod(mine, sizes[axis])
        return place

    def all_reduce(self, call: ir.Call) -> Any:
        grouped, _ = self.in_group(call)
        return relax.op.ccl.allreduce(call.args[0], str(call.attrs["op"]), grouped)

    def all_gather(self, call: ir.Call) -> Any:
        grouped, size = self.in_group(call)
        x, dim = call.args[0], int(call.attrs["dim"])
        if dim == 0:
            return relax.op.ccl.allgather(x, size, grouped)
        rest = [d for d in range(len(x.ty.shape)) if d != dim]
        front = self.emit(relax.op.permute_dims(x, [dim, *rest]))
        joined = self.emit(relax.op.ccl.allgather(front, size, grouped))
        back = [d + 1 if d < dim else 0 if d == dim else d for d in range(len(rest) + 1)]
        return relax.op.permute_dims(joined, back)

    def local_slice(self, call: ir.Call) -> Any:
        x, dim = call.args[0], int(call.attrs["dim"])
        place, part = self.position(call), int(self.var.ty.shape[dim])
        begin, end = [place * part], [(place + 1) * part]
        cut = self.emit(relax.op.strided_slice(x, [dim], begin, end, assume_inbound=True))
        # The extent is a constant that the type system does not see.
        var = self.writer.variable(str(self.var.name), self.var.ty)
        self.writer.bindings.append(relax.MatchCast(var, cut, self.var.ty))
        return var

    def axis_index(self, call: ir.Call) -> Any:
        shape = self.emit(relax.ShapeExpr([self.position(call)]))
        return relax.op.reshape(self.emit(relax.op.shape_to_tensor(shape)), ())

    def partial(self, call: ir.Call) -> Any:
        x, mesh = call.args[0], call.attrs["device_mesh"]
        kind, dtype = str(call.attrs["op"]), str(x.ty.dtype)
        numbers = [self.emit(self.axis_index(ops.axis_index(mesh, a))) for a in call_axes(call)]
        total = numbers[0]
        for number in numbers[1:]:
            total = self.emit(relax.op.add(total, number))
        mine = self.emit(relax.op.equal(total, relax.const(0, "int64")))
        neutral = _neutral(kind, dtype)
        if dtype == "bfloat16":
            fill = self.emit(relax.op.astype(relax.const(neutral), dtype))
        else:
            fill = relax.const(neutral, dtype)
        return relax.op.where(mine, x, fill)


def _neutral(kind: str, dtype: str) -> Any:
    """Return the neutral element of shape (1,) (scalars that are not finite have no text)."""
    base = np.dtype("float32" if dtype == "bfloat16" else dtype)
    if kind in ("sum", "prod"):
        return np.array([kind == "prod"]).astype(base)
    if base.kind == "b":
        return np.array([kind == "min"])
    if base.kind in "iu":
        limits = np.iinfo(base)
        return np.array([limits.max if kind == "min" else limits.min], base)
    return np.array([np.inf if kind == "min" else -np.inf], base)
