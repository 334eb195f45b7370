# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serializes decisions to JSON and back, so that a plan reproduces them without solving.

``{"module": DIGEST, "rules": N, "alternatives": [[needs, gives, factor], ...],
"functions": [{"function": KEY, "calls": [NUMBER, ...], "choice": [[NUMBER, ...], ...]}, ...],
"entries": {NAME: NUMBER, ...}}``: an instance of a function per entry of ``functions``, callees
first, with those that its calls use, and per axis of all meshes the alternatives of its other
nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval
from tvm import ir

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.graph.graph import Graph, Node
from tvm_distir.core.propagation.solve.cost import Conversions, Costs
from tvm_distir.core.propagation.solve.strategies import OpStrategy
from tvm_distir.support import (
    LARGEST,
    Count,
    PlanError,
    Text,
    memoized,
    nearest,
    read_model,
    shortened,
)

from .decision import Decision, Instance
from .instances import Instances, called
from .placed_module import PlacedModule

LOCATION = "plan/labels"


def labels_of_decision(decision: Decision, module: PlacedModule, rules: int) -> dict[str, Any]:
    """Return the labels of a plan that record a decision.

    Parameters
    ----------
    decision : Decision
    module : PlacedModule
        The module of the decision.
    rules : int
        The number of leading rules of the plan that were annotated on it.
    """
    writer = _Writer(module)
    entries = {name: writer.number(inst) for name, inst in decision.entries.items()}
    return {
        "module": digest(module),
        "rules": rules,
        "alternatives": [list(map(_listed, x)) for x in writer.alternatives],
        "functions": writer.functions,
        "entries": entries,
    }


def _listed(part: object) -> object:
    return list(part) if isinstance(part, tuple) else part


class _Writer:
    """Writer of instances, each once."""

    def __init__(self, module: PlacedModule) -> None:
        self.module = module
        self.alternatives: dict[OpStrategy, int] = {}
        self.functions: list[dict[str, Any]] = []

    @memoized
    def number(self, inst: Instance) -> int:
        """Return the number of a written instance."""
        g, known = inst.graph, self.alternatives
        calls = [self.number(inst.kids[k]) for k in g.calls]
        others = [k for k, node in enumerate(g.nodes) if node.kind != "call"]
        choice = [
            [known.setdefault(inst.choice[a][k], len(known)) for k in others]
            for a in range(len(self.module.axes))
        ]
        self.functions.append({"function": g.key, "calls": calls, "choice": choice})
        return len(self.functions) - 1


def digest(module: PlacedModule) -> str:
    """Return a digest of all that a decision about a module depends on."""
    checksum = hashlib.sha256(repr([(a.size, a.index, a.mesh) for a in module.axes]).encode())
    for key in module.order:
        g = module.graphs[key]
        nodes = [
            (n.kind, n.operands, n.results, n.callee, n.rule.op if n.rule is not None else "")
            for n in g.nodes
        ]
        values = [(str(v.shape), v.item_bytes) for v in g.values]
        checksum.update(repr((key, nodes, values)).encode())
    return checksum.hexdigest()[:32]


def decision_of_labels(mod: ir.IRModule, data: Mapping[str, Any]) -> Decision:
    """Return the decision that a plan's labels record about an annotated module.

    Raises
    ------
    PlanError
        DIST0221 a key or value is wrong; DIST0240 they are labels of another module.
    """
    module = PlacedModule.of(mod)
    labels = read_model(_LabelsFile, data, LOCATION, _wrong)
    if labels.module != digest(module):
        raise PlanError(
            "DIST0240",
            "the labels belong to another module, batch or mesh",
            location=LOCATION,
            remedy='Search again for this module, or remove "labels": the rules then apply, and '
            "propagation decides the rest.",
        )
    reader = _Reader(module, labels)
    if labels.entries.keys() != module.entries.keys():
        location = f"{LOCATION}/entries"
        problem = f"there are labels of {', '.join(sorted(labels.entries))}"
        raise _wrong(location, problem, f"Give the labels of {', '.join(sorted(module.entries))}.")
    entries = {
        name: reader.instance(number, module.entries[name], f"{LOCATION}/entries/{name}")
        for name, number in labels.entries.items()
    }
    return Decision(module.axes, entries, 0, 0, Conversions(Costs()), reader.instances.value_bytes)


def _wrong(location: str, problem: str, remedy: str) -> PlanError:
    return PlanError("DIST0221", problem, location=location, remedy=remedy)


_Label = Annotated[int, Interval(ge=P, le=LARGEST)]


@dataclass(frozen=True)
class _FunctionFile:
    """The keys of an instance of a function."""

    function: str
    calls: tuple[Count, ...]
    choice: tuple[tuple[Count, ...], ...]


@dataclass(frozen=True)
class _LabelsFile:
    """The keys of labels."""

    module: Text
    rules: Any
    alternatives: tuple[tuple[tuple[_Label, ...], tuple[_Label, ...], Count | None], ...]
    functions: tuple[_FunctionFile, ...]
    entries: dict[str, Count]


class _Reader:
    """Reader of instances, callees first."""

    def __init__(self, module: PlacedModule, labels: _LabelsFile) -> None:
        self.module, self.instances = module, Instances(module.axes, {})
        self.alternatives = [OpStrategy(*alternative) for alternative in labels.alternatives]
        self._instances_read: list[Instance] = []
        for number, function in enumerate(labels.functions):
            self._instances_read.append(self._function(function, f"{LOCATION}/functions/{number}"))

    def instance(self, number: int, function: str, location: str) -> Instance:
        """Return the instance of a number, which must belong to this function."""
        if number >= len(self._instances_read):
            raise _wrong(
                location, f"there is no function {number}", "Give the number of one above."
            )
        instance = self._instances_read[number]
        if instance.graph.key != function:
            problem = f"{number} is of {instance.graph.key}"
            raise _wrong(location, problem, f"Give one of {function}.")
        return instance

    def _function(self, data: _FunctionFile, location: str) -> Instance:
        if data.function not in self.module.graphs:
            problem = f"{shortened(data.function)!r} is not a function"
            raise _wrong(
                f"{location}/function", problem, nearest(data.function, self.module.graphs)
            )
        g = self.module.graphs[data.function]
        others = [k for k, node in enumerate(g.nodes) if node.kind != "call"]
        if len(data.calls) != len(g.calls) or [len(row) for row in data.choice] != [
            len(others) for _ in self.module.axes
        ]:
            raise _wrong(
                location,
                "its numbers of calls, axes or nodes differ from the function's",
                f"Give {len(g.calls)} calls, and {len(others)} nodes on each axis.",
            )
        count = len(self.alternatives)
        if any(number >= count for row in data.choice for number in row):
            raise _wrong(
                f"{location}/choice", "an alternative does not exist", f"There are {count}."
            )
        kids = {
            k: self.instance(call, g.nodes[k].callee, f"{location}/calls")
            for k, call in zip(g.calls, data.calls, strict=True)
        }
        choice: dict[int, tuple[OpStrategy, ...]] = {}
        for a, row in enumerate(data.choice):
            at = dict(zip(others, row, strict=True))
            column = [
                called(kids[k], a) if k in kids else self.alternatives[at[k]]
                for k in range(len(g.nodes))
            ]
            for node, chosen in zip(g.nodes, column, strict=True):
                if not _may(g, node, chosen):
                    raise _wrong(
                        location,
                        f"{node.label or node.kind} does not support {tuple(chosen)}",
                        'Remove "labels".',
                    )
            choice[a] = tuple(column)
        return self.instances.of(g, choice, kids)


def _may(g: Graph, node: Node, chosen: OpStrategy) -> bool:
    """Return whether a node may use a strategy, as far as its rule and its dims tell."""
    needs, gives, factor = chosen
    if (len(needs), len(gives)) != (len(node.operands), len(node.results)):
        return False
    pairs = (*zip(node.operands, needs), *zip(node.results, gives))
    if any(v >= 0 and x >= len(g.values[v].shape) for v, x in pairs):
        return False
    if node.rule is None:
        return factor is None
    if factor is not None:
        return factor < len(node.rule.factors) and _walks(node, chosen)
    if P in needs:
        pending = tuple([i for i, x in enumerate(needs) if x == P])
        linear = any(tuple(sorted(group)) == pending for group in node.rule.linear)
        return linear and all(x in (P, R) for x in needs) and set(gives) == {P}
    return set((*needs, *gives)) <= {R}


def _walks(node: Node, chosen: OpStrategy) -> bool:
    """Return whether operands and results are placed as a factor requires."""
    assert node.rule is not None and chosen.factor is not None
    factor = node.rule.factors[chosen.factor]
    pending: Sequence[int] = (P, R) if factor.reduces else (R,)
    ins = all(x == (R if d is None else d) for x, d in zip(chosen.needs, factor.ins))
    return ins and all(
        x in pending if d is None else x == d for x, d in zip(chosen.gives, factor.outs)
    )
