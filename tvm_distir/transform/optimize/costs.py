# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Seconds that the bindings of a level-5 function take on a system."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from ...errors import PropagationError
from ...ir import axis_groups, flat_types, mesh_key, tensor_type
from ...ir.async_ops import collective_op
from ...ir.ops import call_axes
from ...rules import work_of
from ...system import System
from .dependence import VIEWS
from .scopes import bindings_in, branches_of
from .traffic import SENT, local_bytes, payload_bytes


class BindingCosts:
    """Costs of bindings; equal collectives and functions are computed once.

    Parameters
    ----------
    mod : IRModule
        Where the functions are that are called.
    system : System
    """

    def __init__(self, mod: ir.IRModule, system: System) -> None:
        self.mod, self.system = mod, system
        self._collectives: dict[Any, float] = {}
        self._functions: dict[str, float] = {}

    def seconds(self, var: Any, value: Any) -> float:
        """Time of a binding; of a collective (or its start), that on the wire.

        Of an ``If``, that of the dearer branch.
        """
        if isinstance(value, relax.If):
            return max(self._body(seq) for seq in branches_of(value))
        if not isinstance(value, ir.Call):
            return 0.0
        if isinstance(value.op, ir.GlobalVar):
            return self._function(str(value.op.name_hint), value.op)
        kind = collective_op(value)
        if kind in SENT:
            return self._collective(kind, value, payload_bytes(kind, value, var.ty))
        if not isinstance(value.op, ir.Op) or str(value.op.name) in VIEWS:
            return 0.0
        if kind is not None:
            return self._moved(2 * local_bytes(var.ty))
        try:
            work = work_of(value, self.mod, var.ty)
        except PropagationError:
            return self._moved(sum(local_bytes(t) for t in flat_types(var.ty)))
        found = next((t for t in map(tensor_type, flat_types(var.ty)) if t is not None), None)
        return self.system.compute_time_s(work, "float32" if found is None else str(found.dtype))

    def _moved(self, size_bytes: int) -> float:
        return self.system.roofline(0, size_bytes, "memory", "float32").time_s

    def _collective(self, kind: str, call: ir.Call, payload_bytes: int) -> float:
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        key = (kind, mesh_key(mesh), axes, payload_bytes)
        if key not in self._collectives:
            groups = axis_groups(mesh, axes)
            sharing = self.system.nic_sharing(groups)
            self._collectives[key] = max(
                self.system.collective_time_s(kind, payload_bytes, group, sharing)
                for group in groups
            )
        return self._collectives[key]

    def _function(self, name: str, gv: Any) -> float:
        """Sum of the times of a function's bindings."""
        if name not in self._functions:
            self._functions[name] = 0.0  # of a recursive one, its own calls
            fn = self.mod[gv]
            if isinstance(fn, relax.Function):
                self._functions[name] = self._body(fn.body)
        return self._functions[name]

    def _body(self, seq: relax.SeqExpr) -> float:
        return sum(self.seconds(var, value) for var, value in bindings_in(seq))
