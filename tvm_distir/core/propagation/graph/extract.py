# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Converts a Relax function to a graph: flat values, a node per call, annotations as pins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from tvm import ir, relax
from tvm.relax import Var

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import is_private, tensor_type, value_types
from tvm_distir.core.ops.class_memo import class_memo
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.rewriting.native.survey import survey
from tvm_distir.core.rewriting.nodes import argument
from tvm_distir.support import InternalError

from .annotations import ANNOTATE, NO_ANNOTATION, Annotations, is_annotation
from .graph import FlatValue, Graph, Node
from .leaves import Leaves
from .packed_rules import PACKED_HANDLES, cache_rule
from .types import Annotation, ModuleTypes

OPAQUE_BYTES = 1 << 14
"""The bytes per element that an object holds: it cannot be moved, so that its contents decide."""


def extract(facts: ModuleTypes, name: str) -> Graph:
    """Extract the graph of the module's function called ``name``.

    Raises
    ------
    PropagationError
        DIST0402, DIST0407, DIST0412 to DIST0416, naming the binding; and as the rules of the ops.
    """
    return _Function(facts, name).run()


class _Known(NamedTuple):
    """Data shared by equal calls.

    Attributes
    ----------
    rule : Rule or None
        The rule of an op; None for a call of a function.
    title : str
        Name of the op or of the function.
    results : list of FlatValue
        The results of the first call.
    """

    rule: Rule | None
    title: str
    results: list[FlatValue]


class _Function:
    """Extraction of a function."""

    def __init__(self, facts: ModuleTypes, name: str) -> None:
        self.facts, self.fn = facts, facts.mod[name]
        self.g = Graph(name, name, self.fn, public=not is_private(self.fn))
        self.annotations = Annotations(facts, self.fn, name)
        self.bindings = self.g.bindings = self._bindings()
        self.params = unpack(self.fn.params)
        self.survey = survey(self.fn, ANNOTATE, self.annotations.stationary)
        self.leaves = Leaves(facts, self.g, self.survey)
        self.g.bound = self.survey.handles[len(self.params) :]
        kinds = zip(self.survey.handles, self.survey.first)
        self.g.tensors = {key for key, first in kinds if first >= 0}
        self._like, self._classes = self.survey.like, self.survey.classes
        self._bound_names = self.survey.names[len(self.params) :]
        self.of_calls: dict[int, _Known] = {}
        self.learnt: dict[int, tuple[Rule, str]] = class_memo("rules")  # of ops, and their titles
        self.of_pins: dict[int, Annotation] = {}
        # a private function's caller decides how an argument comes in: there the annotation is
        # a separate node
        self.param_pins = self._annotated_params() if self.g.public else {}

    def _bindings(self) -> list[relax.Binding]:
        """Return all bindings in order."""
        if not isinstance(self.fn.body, relax.SeqExpr):
            problem = "the body is not a sequence of bindings"
            raise self.g.error("DIST0412", "body", problem, "Run relax.transform.Normalize first.")
        blocks = [unpack(block.bindings) for block in self.fn.body.blocks[:]]
        self.ends = list(itertools.accumulate(map(len, blocks)))
        return [b for block in blocks for b in block]

    def _annotated_params(self) -> dict[int, int]:
        """Map parameters with a single annotation to the number of its binding.

        The annotation then is the parameter's placement: it needs no node.
        """
        bindings: list[list[int]] = [[] for _ in self.params]
        for number, source in enumerate(self.survey.sources):
            if 0 <= source < len(bindings):
                bindings[source].append(number)
        pins = {i: numbers[0] for i, numbers in enumerate(bindings) if len(numbers) == 1}
        bound, handles = self.g.bound, self.survey.handles
        self.g.pinned = {bound[number]: handles[i] for i, number in pins.items()}
        return pins

    def run(self) -> Graph:
        """Visit parameters, bindings and results."""
        g = self.g
        env, nodes, bound, pinned = g.env, g.nodes, g.bound, g.pinned
        pins, requests, names = self.of_pins, self.survey.asked, self.survey.names
        for i, (param, name, key) in enumerate(zip(self.params, names, self.survey.handles)):
            leaves = self.leaves.like_others(i) or self.leaves.of(i, param)
            number = self.param_pins.get(i)
            if number is None:
                pin, mesh, fixed = NO_ANNOTATION
            else:
                pin, mesh, fixed = pins.get(requests[number]) or self._pin(number, leaves)
            for v in leaves:
                nodes.append(Node("param", (), (v,), None, mesh, pin, fixed, "", name))
            env[key] = leaves
        first, hidden = 0, self.survey.hidden[len(self.params) :]
        for end in self.ends:
            self.leaves.read.clear()
            for number in range(first, end):
                source = pinned.get(bound[number])
                if source is None:
                    self._binding(number)
                else:
                    env[bound[number]] = env[source]
            row = zip(bound[first:end], hidden[first:end])
            read = self.leaves.read
            g.block_reads.append([key for key, hides in row if key in read and not hides])
            first = end
        for i, v in enumerate(self.leaves.flat(self.fn.body.body, "result")):
            g.add_node(Node("ret", (v,), label=f"result {i}"))
        return g.finish()

    def _bind(self, number: int, leaves: tuple[int, ...], node: Node | None = None) -> None:
        """Record the values of a binding's variable, and add a node where needed."""
        key = self.g.bound[number]
        self.g.env[key] = leaves
        if node is not None:
            self.g.node_of[key] = self.g.add_node(node)

    def _binding(self, number: int) -> None:
        name = self._bound_names[number]
        cached = self.of_calls.get(self._like[number])
        if cached is not None:
            results = self.leaves.copied(name, cached.results)
            self._emit(number, name, cached, self.leaves.operands(number), results)
            return
        learnt = self.learnt.get(self._classes[number])
        binding = self.bindings[number]
        if learnt is not None:
            self._learnt_call(number, name, learnt, binding)
            return
        expr = binding.value
        if type(expr) is relax.If:
            problem = "an If whose branches are not lifted is not supported"
            remedy = "Use PropagateSharding, which lifts the branches of every If."
            raise self.g.error("DIST0413", name, problem, remedy)
        if type(expr) is not ir.Call or type(binding) is relax.MatchCast:
            self._bind(number, self.leaves.flat(expr, name))
        elif is_annotation(expr):
            self._annotation(number, binding.var, expr)
        else:
            self._call(number, binding.var, expr)

    def _learnt_call(
        self, number: int, name: str, learnt: tuple[Rule, str], binding: relax.Binding
    ) -> None:
        """Add a call whose op is new in the function but known from another function."""
        position = len(self.params) + number
        results = self.leaves.like_others(position) or self.leaves.of(position, binding.var)
        known = _Known(*learnt, [self.g.values[v] for v in results])
        self.of_calls[self._like[number]] = known
        self._emit(number, name, known, self.leaves.operands(number), results)

    def _call(self, number: int, var: Var, expr: ir.Call) -> None:
        """Add a call that is unlike all calls before it."""
        g, label, op = self.g, self._bound_names[number], expr.op
        operands = tuple([v for a in expr.args[:] for v in self.leaves.flat(a, label)])
        if isinstance(op, relax.ExternFunc) or handle(op) in PACKED_HANDLES:
            self._packed(number, var, expr, operands)
            return
        if isinstance(op, ir.GlobalVar):
            rule, title = None, str(op.name_hint)
            if not isinstance(self.facts.mod[op], relax.Function):
                raise self.g.error(
                    "DIST0414", label, f"a direct call of the kernel {title}", "Use call_tir."
                )
        elif isinstance(op, ir.Op):
            rule = self._rule(var, expr, operands)
            title = str(op.name).removeprefix("relax.")
        else:
            raise self.g.error(
                "DIST0412",
                label,
                f"a call of {op}, a function that arrives as a value",
                "Call a function of the module, which takes all that it reads as arguments.",
            )
        results = self.leaves.of(len(self.params) + number, var)
        if rule is not None and not results and operands:
            raise self.g.error(
                "DIST0402",
                f"{label} ({title})",
                f"its result is {var.ty}, whose size depends on data",
                "Give the sizes as constants, or fold the op that computes them.",
            )
        known = _Known(rule, title, [g.values[v] for v in results])
        if self._like[number] >= 0:
            self.of_calls[self._like[number]] = known
        if rule is not None and self._classes[number] >= 0:
            self.learnt[self._classes[number]] = rule, title
        self._emit(number, label, known, operands, results)

    def _rule(self, var: Var, call: ir.Call, operands: Sequence[int]) -> Rule:
        rule = rule_of(call, self.facts.mod, var.ty)
        if len(rule.in_bytes) != len(operands):
            raise InternalError(
                "DIST0901",
                f"the rule of {rule.op} has {len(rule.in_bytes)} operands, and the call "
                f"{len(operands)}",
                location=f"{self.g.name}/{var.name}",
                remedy="Report it.",
            )
        return rule

    def _emit(
        self,
        number: int,
        name: str,
        known: _Known,
        operands: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        """Add the node of a call."""
        (rule, title, _), mesh = known, self.facts.only_mesh
        if rule is None:
            node = Node("call", operands, results, None, mesh, None, False, title, name)
        else:
            label = f"{name} ({title})"
            node = Node("op", operands, results, rule, mesh, None, False, "", label)
        self._bind(number, results, node)

    def _packed(self, number: int, var: Var, call: ir.Call, operands: tuple[int, ...]) -> None:
        g, mesh = self.g, self.facts.only_mesh
        rule, shapes = cache_rule(call, [g.values[v] if v >= 0 else None for v in operands])
        placements = []
        for ty, shape in zip(value_types(var.ty), shapes):
            if tensor_type(ty) is not None:
                placements.append(self.leaves.make(var.name, ty))
            else:
                placements.append(g.add_value(var.name, shape, OPAQUE_BYTES, mesh))
        node = Node("op", operands, tuple(placements), rule, mesh, label=var.name)
        self._bind(number, tuple(placements), node)

    def _pin(self, number: int, values: Sequence[int]) -> Annotation:
        """Record the annotation, a binding, of a value or of all values of a tuple."""
        requests = self.survey.asked[number]
        cached = self.of_pins.get(requests)
        if cached is not None:
            return cached
        binding = self.bindings[number]
        shape: tuple[int | ir.Expr, ...] = ()
        if len(values) == 1:
            value = self.g.values[values[0]]
            shape = () if value.ty is None else value.shape
        pin = self.annotations.of(binding.var, binding.value, shape, self.survey.named[number])
        if requests >= 0 and not self.annotations.opens:
            self.of_pins[requests] = pin
        return pin

    def _annotation(self, number: int, var: Var, call: ir.Call) -> None:
        name = self._bound_names[number]
        source = self.leaves.flat(argument(call, 0), name)
        if len(source) != 1:
            raise self.g.error(
                "DIST0407", name, "a tuple is annotated", "Annotate the fields of the tuple."
            )
        results = self.leaves.of(len(self.params) + number, var)
        pin, mesh, fixed = self._pin(number, results)
        label = f"{name} (annotate_sharding)"
        node = Node("pin", source, results, mesh=mesh, pin=pin, stationary=fixed, label=label)
        self._bind(number, results, node)
