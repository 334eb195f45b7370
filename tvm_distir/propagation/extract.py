# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Relax functions to graphs: flat values, one node per call, annotations as pins."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import DataType, ir, relax

from ..errors import InternalError, PropagationError
from ..ir import (
    ceil_div,
    check_placement,
    is_private,
    labels_of,
    mesh_key,
    mesh_shape,
    meshes,
    shard_counts,
    tensor_type,
)
from ..ir.attributes import OPEN_AXES_ATTR, STATIONARY_ATTR
from ..ir.types import static_shape, value_types
from ..rules import rule_of
from .graph import CONST, Graph, Node, PinLabels, divisible
from .packed import cache_rule

ANNOTATE = "relax.dist.annotate_sharding"


def item_bytes(ty: Any) -> int:
    """Bytes of one element of a tensor type."""
    return max(1, (int(DataType(str(ty.dtype)).bits) + 7) // 8)


def is_annotation(expr: Any) -> bool:
    """Whether an expression is an ``annotate_sharding`` call."""
    return (
        isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op) and str(expr.op.name) == ANNOTATE
    )


class Extractor:
    """Turns the module's Relax functions into graphs (not yet placed on meshes)."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.mesh_shapes = [mesh_shape(m) for m in meshes(mod)]
        self.mesh_numbers = {mesh_key(m): i for i, m in enumerate(meshes(mod))}
        self.known_meshes: dict[int, int | None] = {}
        self.shapes: dict[int, tuple[tuple[Any, ...] | None, int]] = {}

    def graph(self, name: str) -> Graph:
        """Graph of the function called ``name``."""
        return _Function(self, name).run()

    def mesh_number(self, mesh: Any) -> int | None:
        """Number of a mesh among the module's, None for a foreign one; read once per mesh."""
        key = tvm_ffi.structural_hash(mesh)
        if key not in self.known_meshes:
            self.known_meshes[key] = self.mesh_numbers.get(mesh_key(mesh))
        return self.known_meshes[key]

    def shape(self, tensor: Any) -> tuple[tuple[Any, ...] | None, int]:
        """Dims and bytes per element of a tensor type, read once per distinct type."""
        key = tvm_ffi.structural_hash(tensor)
        if key not in self.shapes:
            self.shapes[key] = (static_shape(tensor), item_bytes(tensor))
        return self.shapes[key]


class _Function:
    """Extraction of one function."""

    def __init__(self, owner: Extractor, name: str) -> None:
        self.owner, self.fn = owner, owner.mod[name]
        self.g = Graph(name, name, public=not is_private(self.fn))
        opened = self._attr(OPEN_AXES_ATTR) or {}
        self.open = {str(k): {int(a) for a in v} for k, v in opened.items()}
        self.stationary = {str(n) for n in self._attr(STATIONARY_ATTR) or []}
        # a private function's caller decides how an argument comes in: there the annotation is
        # a node of its own
        self.param_pins = self._annotated_params() if self.g.public else {}

    def _attr(self, name: str) -> Any:
        return self.fn.attrs[name] if self.fn.attrs and name in self.fn.attrs else None

    def _error(self, code: str, label: str, what: str, remedy: str) -> PropagationError:
        return PropagationError(code, what, place=f"{self.g.name}/{label}", remedy=remedy)

    def _bindings(self) -> list[Any]:
        if not isinstance(self.fn.body, relax.SeqExpr):
            raise self._error(
                "DIST0412",
                "body",
                "the body is no sequence of bindings",
                "Run relax.transform.Normalize first.",
            )
        return [b for block in self.fn.body.blocks for b in block.bindings]

    def _annotated_params(self) -> dict[Any, ir.Call]:
        """Parameters with exactly one annotation, applied to the parameter itself.

        The annotation then is the parameter's own placement: it needs no node.
        """
        found: dict[Any, list[ir.Call]] = {}
        params = set(self.fn.params)
        for b in self._bindings():
            if is_annotation(b.value) and b.value.args[0] in params:
                found.setdefault(b.value.args[0], []).append((b.var, b.value))
        return {p: calls[0] for p, calls in found.items() if len(calls) == 1}

    def run(self) -> Graph:
        """Walk parameters, bindings and results."""
        for p in self.fn.params:
            pin, mesh, fixed = None, -1, False
            if p in self.param_pins:
                var, call = self.param_pins[p]
                pin, mesh, fixed = self._pin(var, call)
            leaves = []
            for ty in value_types(p.ty):
                v = self._value(p.name, ty)
                self.g.add_node(
                    Node("param", (), (v,), mesh=mesh, pin=pin, stationary=fixed, label=p.name)
                )
                leaves.append(v)
            self.g.env[p] = tuple(leaves)
        for b in self._bindings():
            if isinstance(b, relax.MatchCast):
                self.g.env[b.var] = self._flat(b.value, b.var.name)
                continue
            self._binding(b.var, b.value)
        for i, v in enumerate(self._flat(self.fn.body.body, "result")):
            self.g.add_node(Node("ret", (v,), label=f"result {i}"))
        return self.g.finish()

    def _value(self, name: str, ty: Any) -> int:
        tensor = tensor_type(ty)
        if tensor is None:
            return self.g.add_value(name, (), 0)
        shape, size_bytes = self.owner.shape(tensor)
        if shape is None:
            if isinstance(ty, relax.TensorType) and int(ty.ndim) == 0:
                return self.g.add_value(name, (), size_bytes)
            raise self._error(
                "DIST0402",
                name,
                f"the shape of {ty} is not known",
                "Give it one (symbolic dims are fine), or fold the op that computes it.",
            )
        return self.g.add_value(name, shape, size_bytes)

    def _flat(self, expr: Any, label: str) -> tuple[int, ...]:
        """Flat value numbers of an expression; nothing for shapes and scalars."""
        if isinstance(expr, relax.Tuple):
            return tuple(v for field in expr.fields for v in self._flat(field, label))
        if isinstance(expr, relax.TupleGetItem):
            whole = self._flat(expr.tuple_value, label)
            sizes = [len(value_types(t)) for t in expr.tuple_value.ty.fields]
            first = sum(sizes[: expr.index])
            return whole[first : first + sizes[expr.index]]
        if isinstance(expr, ir.GenericConst):
            return (CONST,)
        if expr in self.g.env:
            return self.g.env[expr]
        if not isinstance(expr, ir.Call | relax.If):
            return ()
        raise self._error(
            "DIST0412",
            label,
            f"a nested {type(expr).__name__} cannot be followed",
            "Run relax.transform.Normalize first.",
        )

    def _binding(self, var: Any, expr: Any) -> None:
        g, label = self.g, var.name
        if isinstance(expr, relax.If):
            raise self._error(
                "DIST0413",
                label,
                "control flow (If) cannot be distributed yet",
                "Move the condition out of the model, or inline one branch.",
            )
        if not isinstance(expr, ir.Call):
            flat = self._flat(expr, label)
            g.env[var] = flat
            return
        if is_annotation(expr):
            self._annotation(var, expr)
            return
        operands = tuple(v for a in expr.args for v in self._flat(a, label))
        if isinstance(expr.op, ir.GlobalVar):
            callee = self.owner.mod[expr.op]
            if not isinstance(callee, relax.Function):
                raise self._error(
                    "DIST0414",
                    label,
                    f"a direct call of the kernel {expr.op.name_hint}",
                    "Use call_tir.",
                )
            node = Node("call", operands, callee=str(expr.op.name_hint), label=label)
        elif isinstance(expr.op, relax.ExternFunc):
            rule, shapes = cache_rule(expr, [g.values[v] if v >= 0 else None for v in operands])
            held = []
            for ty, shape in zip(value_types(var.ty), shapes):
                tensor = tensor_type(ty)
                size = item_bytes(tensor) if tensor is not None else 0
                held.append(g.add_value(label, shape, size))
            g.env[var] = tuple(held)
            g.node_of[var] = g.add_node(Node("op", operands, tuple(held), rule, label=label))
            return
        elif isinstance(expr.op, ir.Op):
            rule = rule_of(expr, self.owner.mod, var.ty)
            if len(rule.in_bytes) != len(operands):
                raise InternalError(
                    "DIST0901",
                    f"the rule of {rule.op} counts {len(rule.in_bytes)} operands of "
                    f"{len(operands)}",
                    place=f"{g.name}/{label}",
                    remedy="Report it.",
                )
            short = str(expr.op.name).removeprefix("relax.")
            node = Node("op", operands, rule=rule, label=f"{label} ({short})")
        else:
            raise self._error(
                "DIST0412", label, f"a call of a {type(expr.op).__name__}", "Lift it to the module."
            )
        results = tuple(self._value(label, ty) for ty in value_types(var.ty))
        g.env[var] = results
        g.node_of[var] = g.add_node(
            Node(node.kind, operands, results, node.rule, callee=node.callee, label=node.label)
        )

    def _pin(self, var: Any, call: ir.Call) -> tuple[PinLabels, int, bool]:
        """Labels (None where open), mesh number and stationarity an annotation asks for."""
        number = self.owner.mesh_number(call.attrs.device_mesh)
        if number is None:
            raise self._error(
                "DIST0415",
                var.name,
                "the annotation's mesh is not among the module's meshes",
                'Add it: mod.update_global_info("mesh", meshes).',
            )
        labels = labels_of(call.attrs.placement)
        ndim = int(call.args[0].ty.ndim) if tensor_type(call.args[0].ty) is not None else 0
        place = f"{self.g.name}/{var.name} (annotate_sharding)"
        check_placement(labels, self.owner.mesh_shapes[number], ndim, place)
        self._check_uneven(labels, number, call, place)
        opened = self.open.get(var.name, set())
        pin = tuple(None if a in opened else x for a, x in enumerate(labels))
        return pin, number, var.name in self.stationary

    def _check_uneven(self, labels: tuple[int, ...], mesh: int, call: ir.Call, place: str) -> None:
        """A dim that does not divide is padded along one axis only."""
        shape = static_shape(call.args[0].ty) or ()
        counts = shard_counts(labels, self.owner.mesh_shapes[mesh], len(shape))
        for d, (size, count) in enumerate(zip(shape, counts)):
            if labels.count(d) > 1 and not divisible(size, count):
                raise PropagationError(
                    "DIST0416",
                    f"dim {d} of size {size} is cut by several mesh axes into {count} parts, "
                    "which are not equal",
                    place=place,
                    remedy=f"Shard it over one axis, or pad it to {ceil_div(size, count) * count}.",
                )

    def _annotation(self, var: Any, call: ir.Call) -> None:
        source = self._flat(call.args[0], var.name)
        if call.args[0] in self.param_pins:
            self.g.env[var] = source
            return
        if len(source) != 1:
            raise self._error(
                "DIST0407", var.name, "an annotation of a tuple", "Annotate its fields."
            )
        pin, mesh, fixed = self._pin(var, call)
        result = self._value(var.name, var.ty)
        self.g.env[var] = (result,)
        self.g.node_of[var] = self.g.add_node(
            Node(
                "pin",
                source,
                (result,),
                mesh=mesh,
                pin=pin,
                stationary=fixed,
                label=f"{var.name} (annotate_sharding)",
            )
        )
