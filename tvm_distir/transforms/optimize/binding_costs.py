# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of the bindings of a level-5 function, as the simulator does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm import ir, relax
from tvm.relax import Var

from tvm_distir.core.collectives import decode_transfer
from tvm_distir.core.ir import axis_groups, element_type, mesh_devices, mesh_key
from tvm_distir.core.ir.operators import COLLECTIVES, TRANSFERS, call_axes, collective_op, is_done
from tvm_distir.core.ops import LikeKernels, size_bytes
from tvm_distir.core.redistribution import payload_bytes
from tvm_distir.core.rewriting import branches_of
from tvm_distir.core.rewriting.native import FunctionView, read_functions
from tvm_distir.hardware import Clock, GroupLayout, System


class BindingCosts:
    """Times of the bindings of a module's functions.

    Parameters
    ----------
    mod : IRModule
    system : System
    """

    def __init__(self, mod: ir.IRModule, system: System) -> None:
        self.mod, self.clock = mod, Clock(system)
        self._layouts: dict[Any, GroupLayout] = {}
        self._functions: dict[str, int] = {}

    def of(self, reading: FunctionView, devices: Collection[int] = ()) -> BodyCosts:
        """Return the times of a body, run by ``devices`` if not by all of its mesh."""
        return BodyCosts(self, reading, devices)

    def branch(self, body: relax.SeqExpr) -> int:
        """Return the sum of the times of the bindings of a branch."""
        return self._sum(relax.Function([], body, body.body.ty))

    def function(self, gv: ir.GlobalVar) -> int | None:
        """Return the sum of the times of a function's bindings, or None for a PrimFunc."""
        name, fn = str(gv.name_hint), self.mod[gv]
        if not isinstance(fn, relax.Function):
            return None
        if name not in self._functions:
            self._functions[name] = 0  # of a recursive function, its calls
            self._functions[name] = self._sum(fn)
        return self._functions[name]

    def collective(self, kind: str, call: ir.Call, var: Var) -> int:
        """Return the communication time of a collective or of its start."""
        payload = payload_bytes(kind, call, var.ty)
        return self.clock.collective_ps(kind, payload, self._groups(call), str(var.name))

    def transfer(self, kind: str, call: ir.Call, var: Var, devices: Collection[int]) -> int:
        """Return the communication time of a transfer between two meshes."""
        source, target = (call.attrs[key] for key in ("device_mesh", "peer_mesh"))
        key = (mesh_key(source), mesh_key(target))
        if key not in self._layouts:
            sides = ([int(d) for d in mesh_devices(mesh).ravel()] for mesh in (source, target))
            self._layouts[key] = self.clock.transfer_layout(*sides)
        elements = decode_transfer(call).crossing_elements(kind == "send", devices)
        crossing = size_bytes((elements,), element_type(var.ty))
        return self.clock.transfer_ps(kind, crossing, self._layouts[key], str(var.name))

    def _groups(self, call: ir.Call) -> GroupLayout:
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        key = (mesh_key(mesh), axes)
        if key not in self._layouts:
            self._layouts[key] = self.clock.system.layout(axis_groups(mesh, axes))
        return self._layouts[key]

    def _sum(self, fn: relax.Function) -> int:
        (reading,) = read_functions([fn])
        costs = self.of(reading)
        return sum(map(costs.picoseconds, range(len(reading.bindings))))


class BodyCosts:
    """Times of the bindings of a body by number, computed once for equal bindings.

    Parameters
    ----------
    costs : BindingCosts
    reading : FunctionView
        The view of a function of the module.
    devices : collection of int
        Run the body, where not all of its mesh do.
    """

    def __init__(
        self, costs: BindingCosts, reading: FunctionView, devices: Collection[int]
    ) -> None:
        self.costs, self.reading, self.devices = costs, reading, devices
        self.kernels = LikeKernels(costs.mod, reading)
        self._spent_ps: dict[tuple[int, bool], int] = {}
        self._views: dict[tuple[int, bool], bool] = {}

    def picoseconds(self, number: int) -> int:
        """Return the time of a binding; for communication, that on the network.

        Of an ``If``, the more expensive branch. Of a call, the sum of the callee's bindings.
        """
        key = self.kernels.keys[number]
        if key not in self._spent_ps or key[0] < 0:
            self._spent_ps[key] = self._time(number)
        return self._spent_ps[key]

    def _time(self, number: int) -> int:
        value, var = self.reading.values[number], self.reading.bound(number)
        if isinstance(value, relax.If):
            return max(self.costs.branch(seq) for seq in branches_of(value))
        if not isinstance(value, ir.Call) or is_done(value):
            return 0
        if isinstance(value.op, ir.GlobalVar):
            called_ps = self.costs.function(value.op)
            if called_ps is not None:
                return called_ps
        kind = collective_op(value)
        if kind in COLLECTIVES:
            return self.costs.collective(kind, value, var)
        if kind in TRANSFERS:
            return self.costs.transfer(kind, value, var, self.devices)
        kernel = self.kernels.of(number)
        work = kernel.work
        return self.costs.clock.kernel(
            work.flops, kernel.moved_bytes, work.kernel_class, kernel.dtype, str(var.name)
        ).duration_ps

    def is_view(self, number: int) -> bool:
        """Return whether the result of a call aliases its operand."""
        key = self.kernels.keys[number]
        if key not in self._views or key[0] < 0:
            self._views[key] = self._is_view(number)
        return self._views[key]

    def _is_view(self, number: int) -> bool:
        value = self.reading.values[number]
        if not isinstance(value, ir.Call) or isinstance(value.op, ir.GlobalVar):
            return False
        if collective_op(value) in (*COLLECTIVES, *TRANSFERS):
            return False
        return is_done(value) or self.kernels.of(number).is_view
