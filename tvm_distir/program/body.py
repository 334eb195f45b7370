# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One Relax function to values and steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx

from ..errors import PropagationError, SimulationError
from ..ir import flat_types, known_shape, mesh_index, mesh_shape, tensor_type
from ..ir.async_ops import collective_op, is_done
from ..ir.types import value_types
from ..rules import work_of
from ..rules.dims import size_bytes
from ..rules.packed import (
    is_packed_call,
    packed_args,
    packed_functions,
    packed_name,
    packed_rule,
)
from ..runtime.calls import Transfer, call_axes, decode_collective, decode_transfer
from ..runtime.collectives import crossing_elements
from .program import COLLECTIVES, TRANSFERS, Function, Op, Value
from .transposes import transposed_operands

VIEWS = frozenset(
    {
        "relax.reshape",
        "relax.expand_dims",
        "relax.squeeze",
        "relax.flatten",
        "relax.nn.batch_flatten",
        "relax.memory.view",
        "relax.builtin.stop_lift_params",
    }
)
"""Ops that TVM runs without touching the data."""

LOCAL_COPIES = frozenset({"local_slice", "partial"})
"""Ops of the plugin that read and write as much as their result holds, without traffic."""

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
        self.transposed = transposed_operands(fn)
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
        if isinstance(call.op, ir.GlobalVar):
            return self.call_function(name, call, inputs, ty)
        if not isinstance(call.op, ir.Op) or is_packed_call(call):
            return self.packed(name, call, inputs, ty)
        op = str(call.op.name)
        dist = collective_op(call)
        if is_done(call):
            out = self.declare(ty, name)
            self.ops.append(Op(name, "wait", op, tuple(inputs), tuple(_leaves(out))))
            return out
        if dist in COLLECTIVES:
            return self.collective(name, dist, call, inputs, ty)
        if dist in TRANSFERS:
            return self.transfer(name, dist, call, inputs, ty)
        if dist in LOCAL_COPIES:
            out = self.declare(ty, name)
            size = sum(self.values[leaf].bytes for leaf in _leaves(out))
            return self.compute(name, op, inputs, out, 0, size, size, "memory")
        if dist == "axis_index":
            out = self.declare(ty, name)
            return self.compute(name, op, inputs, out, 0, 0, 8, "memory")
        if not any(tensor_type(leaf) is not None for leaf in flat_types(ty)):
            return self.no_tensor(name, op, inputs, ty)
        shown, view = self.what_is_called(call, op)
        if (view or in_place) and len(inputs) == 1:
            out = self.declare(ty, name)
            self.ops.append(Op(name, "view", shown, tuple(inputs), tuple(_leaves(out))))
            return out
        try:
            work = work_of(call, self.mod, ty)
        except PropagationError as err:
            return self.unmodelled(name, shown, inputs, ty, err.what)
        out = self.declare(ty, name)
        read, written = sum(work.in_bytes), sum(work.out_bytes)
        kernel_class = work.kernel_class
        if kernel_class == "view":  # a view by its rule, but TVM copies
            read, written, kernel_class = self.size(inputs), self.size(_leaves(out)), "memory"
        return self.compute(name, shown, inputs, out, work.flops, read, written, kernel_class)

    def packed(self, name: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Export a call of a packed function; only those with a rule have a known work."""
        called = packed_name(call) if is_packed_call(call) else type(call.op).__name__
        if called not in packed_functions():
            return self.unmodelled(name, called, inputs, ty, "an external function")
        count = sum(len(value_types(arg.ty)) for arg in packed_args(call))
        rule, _ = packed_rule(call, [None] * count)
        read, written = sum(rule.work.in_bytes), sum(rule.work.out_bytes)
        return self.compute(
            name, called, inputs, self.declare(ty, name), 0, read, written, "memory"
        )

    def what_is_called(self, call: ir.Call, op: str) -> tuple[str, bool]:
        """Name to show (of the PrimFunc, for a ``call_tir``), and whether it is a view."""
        if op != "relax.call_tir" or not isinstance(call.args[0], ir.GlobalVar):
            return op, op in VIEWS
        target = call.args[0]
        func = self.mod[target] if target in self.mod.functions else None
        view = isinstance(func, tirx.PrimFunc) and bool(relax.analysis.has_reshape_pattern(func))
        return str(target.name_hint), view

    def no_tensor(self, name: str, op: str, inputs: list[int], ty: Any) -> Tree:
        """Export a call without a tensor among its results, such as ``shape_of``."""
        if isinstance(ty, relax.ShapeType) or op == "relax.builtin.null_value":
            return None
        return self.unmodelled(name, op, inputs, ty, "its result is no tensor")

    def size(self, values: Sequence[int]) -> int:
        """Bytes of some values."""
        return sum(self.values[i].bytes for i in values)

    def compute(
        self, name: str, op: str, inputs: list[int], out: Tree,
        flops: int, read: int, written: int, kernel_class: str,
    ) -> Tree:  # fmt: skip
        """Add a compute op."""
        outputs = tuple(_leaves(out))
        self.ops.append(
            Op(
                name, "compute", op, tuple(inputs), outputs, int(flops), int(read), int(written),
                kernel_class=kernel_class, dtype=self.dtype(inputs, outputs),
            )
        )  # fmt: skip
        return out

    def dtype(self, inputs: Sequence[int], outputs: Sequence[int]) -> str:
        """Type of the arithmetic: of the first floating operand, else of the first value."""
        found = [self.values[i].dtype for i in (*inputs, *outputs)]
        floating = [one for one in found if one.startswith(("float", "bfloat"))]
        return (floating or found or [""])[0]

    def unmodelled(self, name: str, op: str, inputs: list[int], ty: Any, reason: str) -> Tree:
        """Add an op whose work is not known; its bytes are those of operands and results."""
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        self.ops.append(
            Op(
                name, "compute", op, tuple(inputs), outputs, 0, self.size(inputs),
                self.size(outputs), modelled=False, kernel_class="memory",
                dtype=self.dtype(inputs, outputs), reason=reason,
            )
        )  # fmt: skip
        return out

    def call_function(self, name: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Add a call of a private function."""
        callee = str(call.op.name_hint)
        if not isinstance(self.mod[call.op], relax.Function):
            return self.unmodelled(name, callee, inputs, ty, "a PrimFunc called directly")
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
        payload = self.size(outputs)
        if kind == "exchange":
            crossing = crossing_elements(decode_collective(call))
            payload = size_bytes((crossing,), self.values[outputs[0]].dtype)
        self.ops.append(
            Op(
                name, "collective", str(call.op.name), tuple(inputs), outputs, collective=kind,
                mesh=mesh_index(self.mod, mesh), mesh_axes=axes,
                group_size=math.prod(mesh_shape(mesh)[axis] for axis in axes),
                payload_bytes=payload,
            )
        )  # fmt: skip
        return out

    def transfer(self, name: str, kind: str, call: ir.Call, inputs: list[int], ty: Any) -> Tree:
        """Add one end of a transfer."""
        out = self.declare(ty, name)
        outputs = tuple(_leaves(out))
        value = self.values[outputs[0]]
        elements = _crossing_elements(decode_transfer(call), kind, self.devices)
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


def _crossing_elements(transfer: Transfer, kind: str, devices: Sequence[int]) -> int:
    """The most elements that one device of this end, of ``devices`` if any, sends or receives."""
    sums: dict[int, int] = {}
    for tile in transfer.tiles():
        here = tile.src if kind == "send" else tile.dst
        if tile.src != tile.dst and (not devices or here in devices):
            sums[here] = sums.get(here, 0) + tile.elements
    return max(sums.values(), default=0)
