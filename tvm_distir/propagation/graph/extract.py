# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A Relax function to a graph: flat values, one node per call, annotations as pins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ...errors import InternalError, PropagationError
from ...ir import is_private, tensor_type, value_types
from ...ir.rewrite import argument, handle
from ...native import survey
from ...ops import Rule, rule_of
from .annotations import ANNOTATE, NO_ANNOTATION, Annotations, is_annotation
from .graph import CONST, FlatValue, Graph, Node
from .packed import PACKED_HANDLES, cache_rule
from .types import Annotation, ModuleTypes, Tensor, leaf_types

OPAQUE_BYTES = 1 << 14
"""Per element that an object holds: it cannot be moved, so that what it holds decides."""


def extract(facts: ModuleTypes, name: str) -> Graph:
    """Graph of the module's function called ``name``.

    Raises
    ------
    PropagationError
        DIST0402, DIST0407, DIST0412 to DIST0416, naming the binding; and as the rules of the ops.
    """
    return _Function(facts, name).run()


class _Function:
    """Extraction of one function."""

    def __init__(self, facts: ModuleTypes, name: str) -> None:
        self.facts, self.fn = facts, facts.mod[name]
        self.g = Graph(name, name, public=not is_private(self.fn))
        self.annotations = Annotations(facts, self.fn, name)
        self.read: set[int] = set()
        self.bindings = self._bindings()
        self.params = self.fn.params[:]
        self.survey = survey(self.fn, ANNOTATE, self.annotations.stationary)
        self.of_class: dict[int, tuple[Tensor, Any]] = {}
        self.of_calls: dict[int, tuple[Rule, str]] = {}
        self.handles: list[int] = []
        # a private function's caller decides how an argument comes in: there the annotation is
        # a node of its own
        self.param_pins = self._annotated_params() if self.g.public else {}

    def _error(self, code: str, label: str, what: str, remedy: str) -> PropagationError:
        return PropagationError(code, what, place=f"{self.g.name}/{label}", remedy=remedy)

    def _bindings(self) -> list[tuple[Any, Any]]:
        """All (variable, expression) in order; a cast is no expression of its own."""
        if not isinstance(self.fn.body, relax.SeqExpr):
            raise self._error(
                "DIST0412",
                "body",
                "the body is no sequence of bindings",
                "Run relax.transform.Normalize first.",
            )
        blocks = [block.bindings[:] for block in self.fn.body.blocks[:]]
        self.ends = list(itertools.accumulate(map(len, blocks)))
        found = [b for block in blocks for b in block]
        self.casts = {handle(b.var) for b in found if type(b) is relax.MatchCast}
        return [(b.var, b.value) for b in found]

    def _annotated_params(self) -> dict[int, int]:
        """Parameters with exactly one annotation, by number, and the number of its binding.

        The annotation then is the parameter's own placement: it needs no node.
        """
        found: list[list[int]] = [[] for _ in self.params]
        for number, source in enumerate(self.survey.sources):
            if 0 <= source < len(found):
                found[source].append(number)
        pins = {i: numbers[0] for i, numbers in enumerate(found) if len(numbers) == 1}
        self.g.pinned = {
            handle(self.bindings[number][0]): handle(self.params[i]) for i, number in pins.items()
        }
        return pins

    def run(self) -> Graph:
        """Walk parameters, bindings and results."""
        for i, p in enumerate(self.params):
            name, leaves = p.name, self._values(i, p)
            pinned = self.param_pins.get(i)
            pin = NO_ANNOTATION if pinned is None else self._pin(pinned, leaves)
            for v in leaves:
                node = Node("param", (), (v,), None, pin.mesh, pin.labels, pin.stationary, "", name)
                self.g.nodes.append(node)
            self._bind(p, leaves)
        first = 0
        for end in self.ends:
            self.read = set[int]()
            for number in range(first, end):
                self._binding(number, *self.bindings[number])
            self.g.reads.append(self.read)
            first = end
        self.read = set()  # what is returned is read by no block
        for i, v in enumerate(self._flat(self.fn.body.body, "result")):
            self.g.add_node(Node("ret", (v,), label=f"result {i}"))
        return self.g.finish()

    def _bind(self, var: Any, leaves: tuple[int, ...], node: int | None = None) -> None:
        key = handle(var)
        self.handles.append(key)
        self.g.env[key] = leaves
        self.g.variables[key] = var
        if node is not None:
            self.g.node_of[key] = node

    def _values(self, number: int, var: Any) -> tuple[int, ...]:
        """Values of a variable, which is the ``number``-th of the survey."""
        first = self.survey.first[number]
        if first < 0:
            return tuple([self._value(var.name, ty) for ty in leaf_types(var.ty)])
        found = self.of_class.get(first)
        if found is None:
            found = self.of_class[first] = self.facts.tensor(var.ty), var.ty
        (shape, item, size), ty = found
        values = self.g.values
        values.append(FlatValue(var.name, shape or (), item, size, self.facts.only_mesh, ty))
        return (len(values) - 1,)

    def _value(self, name: str, ty: Any) -> int:
        g, mesh = self.g, self.facts.only_mesh
        tensor = ty if type(ty) is relax.TensorType else tensor_type(ty)
        if tensor is None:
            return g.add_value(name, (), 0, mesh)
        shape, item, size = self.facts.tensor(tensor)
        if shape is None:
            if isinstance(ty, relax.TensorType) and int(ty.ndim) == 0:
                g.values.append(FlatValue(name, (), item, item, mesh, tensor))
                return len(g.values) - 1
            raise self._error(
                "DIST0402",
                name,
                f"the shape of {ty} is not known",
                "Give it one (symbolic dims are fine), or fold the op that computes it.",
            )
        g.values.append(FlatValue(name, shape, item, size, mesh, tensor))
        return len(g.values) - 1

    def _flat(self, expr: Any, label: str) -> tuple[int, ...]:
        """Flat value numbers of an expression; nothing for shapes and scalars."""
        key = handle(expr)
        known = self.g.env.get(key)
        if known is not None:
            self.read.add(key)
            return known
        if type(expr) is relax.Tuple:
            return tuple([v for field in expr.fields[:] for v in self._flat(field, label)])
        if type(expr) is relax.TupleGetItem:
            starts = self.facts.starts(expr.tuple_value.ty)
            whole = self._flat(expr.tuple_value, label)
            return whole[starts[expr.index] : starts[expr.index + 1]]
        if isinstance(expr, ir.GenericConst):
            return (CONST,)
        if not isinstance(expr, ir.Call | relax.If):
            return ()
        raise self._error(
            "DIST0412",
            label,
            f"a nested {type(expr).__name__} cannot be followed",
            "Run relax.transform.Normalize first.",
        )

    def _binding(self, number: int, var: Any, expr: Any) -> None:
        if type(expr) is relax.If:
            raise self._error(
                "DIST0413",
                var.name,
                "an If that is not lifted cannot be followed",
                "Use PropagateSharding, which lifts the branches of every If.",
            )
        key = handle(var)
        if type(expr) is not ir.Call or key in self.casts:
            self._bind(var, self._flat(expr, var.name))
        elif key in self.g.pinned:
            self._bind(var, self.g.env[self.g.pinned[key]])
        elif is_annotation(expr):
            self._annotation(number, var, expr)
        else:
            self._call(number, var, expr)

    def _call(self, number: int, var: Any, expr: ir.Call) -> None:
        like = self.survey.like[number]
        known = self.of_calls.get(like)
        if known is not None:
            rule, title = known
            self._emit_op(number, var, self._operands(number), rule, title)
            return
        g, label, op = self.g, var.name, expr.op
        operands = tuple([v for a in expr.args[:] for v in self._flat(a, label)])
        if isinstance(op, relax.ExternFunc) or handle(op) in PACKED_HANDLES:
            self._packed(var, expr, operands)
            return
        if isinstance(op, ir.GlobalVar):
            callee = str(op.name_hint)
            if not isinstance(self.facts.mod[op], relax.Function):
                raise self._error(
                    "DIST0414", label, f"a direct call of the kernel {callee}", "Use call_tir."
                )
            results = self._values(len(self.params) + number, var)
            node = Node(
                "call", operands, results, None, self.facts.only_mesh, callee=callee, label=label
            )
            self._bind(var, results, g.add_node(node))
            return
        if not isinstance(op, ir.Op):
            raise self._error(
                "DIST0412", label, f"a call of a {type(op).__name__}", "Lift it to the module."
            )
        rule = rule_of(expr, self.facts.mod, var.ty)
        if len(rule.in_bytes) != len(operands):
            raise InternalError(
                "DIST0901",
                f"the rule of {rule.op} counts {len(rule.in_bytes)} operands of {len(operands)}",
                place=f"{g.name}/{label}",
                remedy="Report it.",
            )
        title = str(op.name).removeprefix("relax.")
        if like >= 0:
            self.of_calls[like] = rule, title
        self._emit_op(number, var, operands, rule, title)

    def _operands(self, number: int) -> tuple[int, ...]:
        """Flat operands of a call that the survey could tell."""
        found: list[int] = []
        for variable in self.survey.operands[slice(*self.survey.begin[number : number + 2])]:
            if variable < 0:
                found.append(CONST)
                continue
            key = self.handles[variable]
            self.read.add(key)
            found += self.g.env[key]
        return tuple(found)

    def _emit_op(
        self, number: int, var: Any, operands: tuple[int, ...], rule: Rule, title: str
    ) -> None:
        results = self._values(len(self.params) + number, var)
        label = f"{var.name} ({title})"
        if not results and operands:
            raise self._error(
                "DIST0402",
                label,
                f"tensors become {var.ty}, so that sizes depend on data",
                "Give the sizes as constants, or fold the op that computes them.",
            )
        node = Node("op", operands, results, rule, self.facts.only_mesh, label=label)
        self._bind(var, results, self.g.add_node(node))

    def _packed(self, var: Any, call: ir.Call, operands: tuple[int, ...]) -> None:
        g, mesh = self.g, self.facts.only_mesh
        rule, shapes = cache_rule(call, [g.values[v] if v >= 0 else None for v in operands])
        held = []
        for ty, shape in zip(value_types(var.ty), shapes):
            if tensor_type(ty) is not None:
                held.append(self._value(var.name, ty))
            else:
                held.append(g.add_value(var.name, shape, OPAQUE_BYTES, mesh))
        node = Node("op", operands, tuple(held), rule, mesh, label=var.name)
        self._bind(var, tuple(held), g.add_node(node))

    def _pin(self, number: int, values: Sequence[int]) -> Annotation:
        """What an annotation, a binding, asks of a value, or of all values of a tuple."""
        var, call = self.bindings[number]
        shape: tuple[Any, ...] = ()
        if len(values) == 1:
            value = self.g.values[values[0]]
            shape = () if value.ty is None else value.shape
        return self.annotations.of(var, call, shape, self.survey.named[number])

    def _annotation(self, number: int, var: Any, call: ir.Call) -> None:
        source = self._flat(argument(call, 0), var.name)
        if len(source) != 1:
            raise self._error(
                "DIST0407", var.name, "an annotation of a tuple", "Annotate its fields."
            )
        results = self._values(len(self.params) + number, var)
        pin, mesh, fixed = self._pin(number, results)
        label = f"{var.name} (annotate_sharding)"
        node = Node("pin", source, results, mesh=mesh, pin=pin, stationary=fixed, label=label)
        self._bind(var, results, self.g.add_node(node))
