# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One Relax function to values and steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax

from ..collectives import call_axes, decode_transfer
from ..errors import SimulationError
from ..ir import (
    COLLECTIVES,
    TRANSFERS,
    collective_op,
    is_done,
    known_shape,
    mesh_index,
    mesh_shape,
    tensor_type,
)
from ..ops import Kernel, is_packed_call, kernel_of, size_bytes, transposed_operands
from ..redistribution import payload_bytes
from .parts import Function, Op, Value

Tree = Any
"""Index of a value, a tuple of trees, or None for what is no tensor."""


class FunctionExporter:
    """Turns one function into a :class:`Function`.

    Parameters
    ----------
    mod : IRModule
    name : str
        Of the function, for messages.
    fn : relax.Function

    Attributes
    ----------
    callees : list of str
        Functions it calls, in the order of the first call.
    branches : dict of str to Function
        Branches of its ``If`` that are more than a call, as functions with names of their own.
    """

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function) -> None:
        self.mod, self.name, self.fn = mod, name, fn
        self.callees: list[str] = []
        self.branches: dict[str, relax.Function] = {}
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.env: dict[Any, Tree] = {}
        self.transposed = transposed_operands(fn.body)
        self.devices: Sequence[int] = ()

    def run(
        self,
        mesh: int,
        roles: Sequence[Mapping[str, Any]] | None,
        devices: Sequence[int] = (),
    ) -> Function:
        """Export; ``roles`` describes the parameters of an entry.

        ``devices`` run it, where not all of its mesh do.
        """
        self.devices = devices
        params: list[int] = []
        for i, param in enumerate(self.fn.params):
            extra = roles[i] if roles is not None else {}
            self.env[param] = self.declare(param.ty, str(param.name), extra)
            params.extend(_leaves(self.env[param]))
        body = self.fn.body
        for block in body.blocks:
            for binding in block.bindings:
                self.binding(binding)
        results = _leaves(self.tree(body.body, f"{self.name}/result"))
        return Function(mesh, tuple(params), tuple(self.ops), tuple(results), tuple(self.values))

    def refuse(self, place: str, what: str, remedy: str) -> SimulationError:
        """Make the error of a module that cannot be exported."""
        return SimulationError("DIST0714", what, place=f"{self.name}/{place}", remedy=remedy)

    def value(self, ty: Any, name: str, extra: Mapping[str, Any]) -> int:
        """Add the value of a tensor type."""
        tensor, shape = tensor_type(ty), known_shape(ty)
        if tensor is None or shape is None:
            raise self.refuse(
                name,
                f"the shape of {ty} is not known before the run",
                "Bind symbolic dims with relax.transform.BindSymbolicVars.",
            )
        dtype = str(tensor.dtype)
        size = size_bytes(shape, dtype)
        self.values.append(Value(name, shape, dtype, size, **extra))
        return len(self.values) - 1

    def declare(self, ty: Any, name: str, extra: Mapping[str, Any] | None = None) -> Tree:
        """Add the values of a type, tuples flattened."""
        if isinstance(ty, relax.TupleType):
            return tuple(
                self.declare(field, f"{name}.{i}", extra) for i, field in enumerate(ty.fields)
            )
        return self.value(ty, name, extra or {}) if tensor_type(ty) is not None else None

    def tree(self, expr: Any, place: str) -> Tree:
        """Values that an argument stands for."""
        if isinstance(expr, relax.Var):
            return self.env[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self.tree(field, place) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.tree(expr.tuple_value, place)[int(expr.index)]
        if isinstance(expr, ir.GenericConst):
            if expr not in self.env:
                constant = {"role": "constant"}
                self.env[expr] = self.declare(expr.ty, f"constant{len(self.values)}", constant)
            return self.env[expr]
        if isinstance(expr, ir.Call | relax.If | relax.Function | relax.SeqExpr):
            raise self.refuse(place, "an expression stands inside another", "Normalise the module.")
        return None

    def binding(self, binding: Any) -> None:
        """Export one binding."""
        var, name = binding.var, str(binding.var.name)
        value = binding.value
        if isinstance(value, relax.Function):
            raise self.refuse(name, "a function inside a function", "Lift it with LambdaLift.")
        if isinstance(value, relax.If):
            self.env[var] = self.choice(name, value, var.ty)
        elif isinstance(value, ir.Call):
            self.env[var] = self.call(name, value, var.ty, var in self.transposed)
        else:
            self.env[var] = self.tree(value, name)

    def call(self, name: str, call: ir.Call, ty: Any, in_place: bool) -> Tree:
        """Export a call bound to ``name``, of type ``ty``; ``in_place``: it moves no data."""
        inputs = [leaf for arg in call.args for leaf in _leaves(self.tree(arg, name))]
        if isinstance(call.op, ir.GlobalVar) and isinstance(self.mod[call.op], relax.Function):
            return self.call_function(name, call, inputs, ty)
        dist = collective_op(call)
        if dist in COLLECTIVES:
            return self.collective(name, dist, call, inputs, ty)
        if dist in TRANSFERS:
            return self.transfer(name, dist, call, inputs, ty)
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        if is_done(call):
            self.ops.append(Op(name, "wait", str(call.op.name), tuple(inputs), outputs))
        elif outputs or not _is_nothing(call, ty):
            self.kernel(name, kernel_of(call, self.mod, ty, in_place), inputs, outputs)
        return out

    def kernel(
        self, name: str, kernel: Kernel, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Add what a call runs."""
        if kernel.is_view:
            self.ops.append(Op(name, "view", kernel.name, tuple(inputs), tuple(outputs)))
            return
        work = kernel.work
        self.ops.append(
            Op(
                name, "compute", kernel.name, tuple(inputs), tuple(outputs), int(work.flops),
                int(sum(work.in_bytes)), int(sum(work.out_bytes)), modelled=not kernel.reason,
                kernel_class=work.kernel_class, dtype=kernel.dtype, reason=kernel.reason,
            )
        )  # fmt: skip

    def call_function(self, name: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Add a call of a private function."""
        callee = str(call.op.name_hint)
        if callee not in self.callees:
            self.callees.append(callee)
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        self.ops.append(Op(name, "call", callee, tuple(inputs), outputs, callee=callee))
        return out

    def choice(self, name: str, value: relax.If, ty: Any) -> Tree:
        """Add an ``If``: the condition, and both functions that may be called."""
        inputs, called = _leaves(self.tree(value.cond, name)), []
        if len(inputs) != 1:
            raise self.refuse(name, "a condition that is no tensor", "Make it a tensor.")
        for side, branch in (("then", value.true_branch), ("else", value.false_branch)):
            callee, args = self.branch(f"{self.name}/{name}.{side}", branch)
            called.append(callee)
            inputs += [leaf for arg in args for leaf in _leaves(self.tree(arg, name))]
            if callee not in self.callees:
                self.callees.append(callee)
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        self.ops.append(
            Op(name, "branch", "If", tuple(inputs), outputs, callee=called[0], otherwise=called[1])
        )
        return out

    def branch(self, name: str, branch: relax.SeqExpr) -> tuple[str, list[Any]]:
        """Function that a branch calls, and its arguments; what is more becomes a function."""
        bindings = [b for block in branch.blocks for b in block.bindings]
        if len(bindings) == 1 and branch.body.same_as(bindings[0].var):
            call = bindings[0].value
            if isinstance(call, ir.Call) and isinstance(call.op, ir.GlobalVar):
                return str(call.op.name_hint), list(call.args)
        unique, number = name, 0
        while unique in self.branches:
            number += 1
            unique = f"{name}#{number}"
        free = list(relax.analysis.free_vars(branch))
        self.branches[unique] = relax.Function(free, branch, branch.body.ty)
        return unique, free

    def collective(self, name: str, kind: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Add a collective."""
        mesh, axes = call.attrs["device_mesh"], call_axes(call)
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        self.ops.append(
            Op(
                name, "collective", str(call.op.name), tuple(inputs), outputs, collective=kind,
                mesh=mesh_index(self.mod, mesh), mesh_axes=axes,
                group_size=math.prod(mesh_shape(mesh)[axis] for axis in axes),
                payload_bytes=payload_bytes(kind, call, ty),
            )
        )  # fmt: skip
        return out

    def transfer(self, name: str, kind: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Add one end of a transfer."""
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        value = self.values[outputs[0]]
        elements = decode_transfer(call).crossing_elements(kind == "send", self.devices)
        crossing = size_bytes((elements,), value.dtype)
        self.ops.append(
            Op(
                name, "transfer", str(call.op.name), tuple(inputs), outputs, collective=kind,
                mesh=mesh_index(self.mod, call.attrs["device_mesh"]),
                peer_mesh=mesh_index(self.mod, call.attrs["peer_mesh"]),
                tag=int(call.attrs["tag"]), payload_bytes=value.bytes, wire_bytes=crossing,
            )
        )  # fmt: skip
        return out


def _leaves(tree: Tree) -> list[int]:
    """Values of a tree, in order."""
    if isinstance(tree, tuple):
        return [leaf for field in tree for leaf in _leaves(field)]
    return [] if tree is None else [tree]


def _is_nothing(call: ir.Call, ty: Any) -> bool:
    """Whether a call without a tensor among its results runs nothing."""
    if not isinstance(call.op, ir.Op) or is_packed_call(call):
        return False
    return isinstance(ty, relax.ShapeType) or str(call.op.name) == "relax.builtin.null_value"
