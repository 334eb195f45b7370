# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Times of the bindings of a level-5 function on a system: those that the simulator gives them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm import ir, relax

from ...collectives import decode_transfer
from ...ir import (
    COLLECTIVES,
    TRANSFERS,
    axis_groups,
    call_axes,
    collective_op,
    is_done,
    mesh_devices,
    mesh_key,
)
from ...ir.rewrite import bindings_in, branches_of
from ...native import read_functions
from ...ops import Kernel, kernel_of, size_bytes, transposed_operands
from ...redistribution import element_type, payload_bytes
from ...system import Clock, GroupLayout, System


class BindingCosts:
    """Times of the bindings of a module's functions; like ones are computed once.

    Parameters
    ----------
    mod : IRModule
    system : System
    """

    def __init__(self, mod: ir.IRModule, system: System) -> None:
        self.mod, self.clock = mod, Clock(system)
        self._in_place: set[Any] = set()
        self._layouts: dict[Any, GroupLayout] = {}
        self._functions: dict[str, int] = {}
        self._kernels: dict[Any, tuple[ir.Call, Kernel]] = {}

    def read(self, body: relax.SeqExpr) -> None:
        """Look at a body whose bindings will be asked for: some take no time because of others."""
        self._kernels.clear()
        (reading,) = read_functions([relax.Function([], body, body.body.ty)])
        self._in_place.update(reading.variables[n] for n in transposed_operands(reading))

    def picoseconds(self, var: Any, value: Any, devices: Collection[int] = ()) -> int:
        """Time of a binding; of a collective (or its start) or a transfer, that on the wire.

        Of an ``If``, that of the dearer branch. Of a call, the sum of the callee's bindings.
        ``devices`` run the function, where not all of its mesh do.
        """
        if isinstance(value, relax.If):
            return max(self._body(seq) for seq in branches_of(value))
        if not isinstance(value, ir.Call) or is_done(value):
            return 0
        if isinstance(value.op, ir.GlobalVar):
            callee = self.mod[value.op]
            if isinstance(callee, relax.Function):
                return self._function(str(value.op.name_hint), callee)
        kind = collective_op(value)
        if kind in COLLECTIVES:
            payload = payload_bytes(kind, value, var.ty)
            return self.clock.collective_ps(kind, payload, self._groups(value), str(var.name))
        if kind in TRANSFERS:
            return self._transfer(kind, value, var, devices)
        kernel = self._kernel(var, value)
        work = kernel.work
        moved = kernel.moved_bytes
        return self.clock.kernel(
            work.flops, moved, work.kernel_class, kernel.dtype, str(var.name)
        ).duration_ps

    def is_view(self, var: Any, value: Any) -> bool:
        """Whether a call's result is its operand's memory."""
        if not isinstance(value, ir.Call) or isinstance(value.op, ir.GlobalVar):
            return False
        if collective_op(value) in (*COLLECTIVES, *TRANSFERS):
            return False
        return is_done(value) or self._kernel(var, value).is_view

    def _kernel(self, var: Any, call: ir.Call) -> Kernel:
        known = self._kernels.get(var)
        if known is None or not known[0].same_as(call):
            known = call, kernel_of(call, self.mod, var.ty, var in self._in_place)
            self._kernels[var] = known
        return known[1]

    def _groups(self, call: ir.Call) -> GroupLayout:
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        key = (mesh_key(mesh), axes)
        if key not in self._layouts:
            self._layouts[key] = self.clock.system.layout(axis_groups(mesh, axes))
        return self._layouts[key]

    def _transfer(self, kind: str, call: ir.Call, var: Any, devices: Collection[int]) -> int:
        here, there = (call.attrs[key] for key in ("device_mesh", "peer_mesh"))
        key = (mesh_key(here), mesh_key(there))
        if key not in self._layouts:
            sides = ([int(d) for d in mesh_devices(mesh).ravel()] for mesh in (here, there))
            self._layouts[key] = self.clock.transfer_layout(*sides)
        elements = decode_transfer(call).crossing_elements(kind == "send", devices)
        crossing = size_bytes((elements,), element_type(var.ty))
        return self.clock.transfer_ps(kind, crossing, self._layouts[key], str(var.name))

    def _function(self, name: str, fn: relax.Function) -> int:
        """Sum of the times of a function's bindings."""
        if name not in self._functions:
            self._functions[name] = 0  # of a recursive one, its own calls
            self._functions[name] = self._body(fn.body)
        return self._functions[name]

    def _body(self, seq: relax.SeqExpr) -> int:
        self.read(seq)
        return sum(self.picoseconds(var, value) for var, value in bindings_in(seq))
