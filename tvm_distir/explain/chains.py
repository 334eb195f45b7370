# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How an annotation got to a value: shortest chains of tied dims, across calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir import P
from ..propagation import Instance
from ..propagation.graph import Node
from ..rules.match import describe_factor
from .explanation import Step
from .scene import Caller, Scene

Spot = tuple[Instance, int, int]
"""A dim of a value of an instance."""


@dataclass(frozen=True)
class Chain:
    """From an annotation to a dim of a value.

    Attributes
    ----------
    annotation : str
        ``function/variable``.
    steps : tuple of Step
        From the annotation on; none where the value itself is annotated.
    followed : bool
        Whether every step is one the program takes along the axis. Else the dims are tied by
        the ops' rules, but somewhere the program goes another way.
    """

    annotation: str
    steps: tuple[Step, ...]
    followed: bool


class Chains:
    """Searches along one mesh axis.

    Parameters
    ----------
    scene : Scene
    axis : int
        Number among the decision's axes.
    """

    def __init__(self, scene: Scene, axis: int) -> None:
        self.scene, self.a = scene, axis
        self.axis = scene.decision.axes[axis]

    def to(self, inst: Instance, value: int, dim: int) -> Chain | None:
        """Chain to a dim: one the program follows, else one of tied dims; None where there is none.

        A breadth-first search from the value, which ends at the nearest annotation of the dim.
        Neighbours come in program order, so the chain found is always the same.
        """
        for followed in (True, False):
            found = self._search((inst, value, dim), followed)
            if found is not None:
                return found
        return None

    def annotations(self, inst: Instance, value: int, dim: int) -> list[str]:
        """All annotations along the axis whose dims are tied to a dim, nearest first."""
        found: dict[str, None] = {}
        for spot, _ in self._reach((inst, value, dim), followed=False):
            name = self._annotation(spot)
            if name is not None:
                found[name] = None
        return list(found)

    def of_partial(self, inst: Instance, value: int) -> Chain | None:
        """Chain to a partial sum: to the sharded dim an op sums over, then through linear ops."""
        first = (inst, value)
        came: dict[tuple[int, int], tuple[tuple[Instance, int], Step] | None] = {
            (inst.number, value): None
        }
        queue = deque([first])
        while queue:
            here = queue.popleft()
            at, v = here
            k, _ = at.graph.producer[v]
            node, picked = at.graph.nodes[k], at.choice[self.a][k]
            rule = node.rule
            if rule is not None and picked.factor is not None:
                factor = rule.factors[picked.factor]
                for i, d in enumerate(factor.ins):
                    w = node.operands[i]
                    if factor.kind != "sum" or d is None or w < 0:
                        continue
                    step = self._op_step(at, node, picked.factor, (w, d), (v, None))
                    start = self.to(at, w, d)
                    if start is not None:
                        return Chain(
                            start.annotation,
                            (*start.steps, step, *_unwind(came, here)),
                            start.followed,
                        )
                continue
            for near, step in self._carried(at, k, v):
                key = (near[0].number, near[1])
                if key not in came:
                    came[key] = (here, step)
                    queue.append(near)
        return None

    def given(self, inst: Instance, value: int) -> Chain | None:
        """Chain of calls from an annotation to a parameter that every caller gives as it says."""
        steps: list[Step] = []
        while True:
            g = inst.graph
            k, _ = g.producer[value]
            if g.nodes[k].pin_on(self.axis):
                return Chain(self.scene.place(inst, value), tuple(reversed(steps)), True)
            if g.nodes[k].kind != "param":
                return None
            position = g.params.index(k)
            found = None
            for caller, kc in self.scene.callers.get(inst.number, ()):
                w = caller.graph.nodes[kc].operands[position]
                if w < 0 or self._form(caller, w) != self._form(inst, value):
                    return None
                found = found or (caller, kc, w)
            if found is None:
                return None
            caller, kc, w = found
            steps.append(self._call_step(caller, kc, (caller, w), (inst, value), None))
            inst, value = caller, w

    def _carried(self, at: Instance, k: int, v: int) -> Iterator[tuple[tuple[Instance, int], Step]]:
        """Values whose partial sum becomes the one of value ``v``."""
        node, g = at.graph.nodes[k], at.graph
        if node.kind in ("op", "pin"):
            for i, w in enumerate(node.operands):
                if w >= 0 and at.choice[self.a][k].needs[i] == P:
                    yield (at, w), self._op_step(at, node, None, (w, None), (v, None))
        elif node.kind == "call":
            kid, j = at.kids[k], g.producer[v][1]
            w = kid.graph.result_value(j)
            if w >= 0:
                yield (kid, w), self._call_step(at, k, (kid, w), (at, v), None)
        elif node.kind == "param":
            for caller, kc in self.scene.callers.get(at.number, ()):
                w = caller.graph.nodes[kc].operands[g.params.index(k)]
                if w >= 0:
                    yield (caller, w), self._call_step(caller, kc, (caller, w), (at, v), None)

    # breadth first ---------------------------------------------------------------------

    def _search(self, start: Spot, followed: bool) -> Chain | None:
        for spot, came in self._reach(start, followed):
            name = self._annotation(spot)
            if name is not None:
                steps: list[Step] = []
                here = spot
                while True:
                    before = came[_key(here)]
                    if before is None:
                        return Chain(name, tuple(steps), followed)
                    here, step = before
                    steps.append(step)
        return None

    def _reach(
        self, start: Spot, followed: bool
    ) -> Iterator[tuple[Spot, dict[tuple[int, int, int], tuple[Spot, Step] | None]]]:
        """Dims tied to ``start``, nearest first, with the way each was come to."""
        came: dict[tuple[int, int, int], tuple[Spot, Step] | None] = {_key(start): None}
        queue = deque([start])
        while queue:
            spot = queue.popleft()
            yield spot, came
            for near, step in self._neighbours(spot, followed):
                if _key(near) not in came:
                    came[_key(near)] = (spot, step)
                    queue.append(near)

    def _annotation(self, spot: Spot) -> str | None:
        """Name of the annotation that shards this very dim along the axis, if there is one."""
        inst, v, d = spot
        node = inst.graph.nodes[inst.graph.producer[v][0]]
        if node.pin is None or not node.pin_on(self.axis) or node.pin[self.axis.index] != d:
            return None
        return self.scene.place(inst, v)

    def _neighbours(self, spot: Spot, followed: bool) -> Iterator[tuple[Spot, Step]]:
        """Dims one step away, and the step from each of them to ``spot``."""
        inst, v, d = spot
        g = inst.graph
        maker, _ = g.producer[v]
        for k in dict.fromkeys([maker, *[k for k, _ in g.uses[v]]]):
            node = g.nodes[k]
            if node.kind == "op":
                yield from self._through_op(spot, k, followed)
            elif node.kind == "call":
                yield from self._into_call(spot, k, followed)
            elif node.kind == "pin" or (node.kind == "move" and not followed):
                for w in (*node.operands, *node.results):
                    if w >= 0 and w != v and (not followed or self._pinned_as(inst, k, d)):
                        yield (inst, w, d), self._op_step(inst, node, None, (w, d), (v, d))
        if g.nodes[maker].kind == "param":
            position = g.params.index(maker)
            for caller, kc in self._callers(inst, followed):
                w = caller.graph.nodes[kc].operands[position]
                if w >= 0 and (not followed or self._form(inst, v) == d):
                    near = (caller, w, d)
                    yield near, self._call_step(caller, kc, (caller, w), (inst, v), d)
        for k, _ in g.uses[v]:
            if g.nodes[k].kind == "ret":
                position = g.rets.index(k)
                for caller, kc in self._callers(inst, followed):
                    w = caller.graph.nodes[kc].results[position]
                    if not followed or self._form(caller, w) == d:
                        near = (caller, w, d)
                        yield near, self._call_step(caller, kc, (caller, w), (inst, v), d)

    def _callers(self, inst: Instance, followed: bool) -> list[Caller]:
        if followed:
            return self.scene.callers.get(inst.number, [])
        return self.scene.callers_of_graph.get(inst.graph.key, [])

    def _form(self, inst: Instance, value: int) -> int:
        """Label a value is produced with along the axis."""
        k, j = inst.graph.producer[value]
        return inst.choice[self.a][k].gives[j]

    def _pinned_as(self, inst: Instance, k: int, d: int) -> bool:
        return inst.choice[self.a][k].needs == (d,)

    def _through_op(self, spot: Spot, k: int, followed: bool) -> Iterator[tuple[Spot, Step]]:
        inst, v, d = spot
        node = inst.graph.nodes[k]
        if node.rule is None:
            return
        picked = inst.choice[self.a][k].factor
        numbers = [picked] if followed else list(range(len(node.rule.factors)))
        for number in numbers:
            if number is None:
                continue
            factor = node.rule.factors[number]
            tied = [
                (w, e)
                for w, e in (*zip(node.operands, factor.ins), *zip(node.results, factor.outs))
                if w >= 0 and e is not None
            ]
            if (v, d) not in tied:
                continue
            for w, e in tied:
                if (w, e) != (v, d):
                    yield (inst, w, e), self._op_step(inst, node, number, (w, e), (v, d))

    def _into_call(self, spot: Spot, k: int, followed: bool) -> Iterator[tuple[Spot, Step]]:
        inst, v, d = spot
        node, kid = inst.graph.nodes[k], inst.kids[k]
        inner = [kid.graph.param_value(i) for i, w in enumerate(node.operands) if w == v]
        inner += [kid.graph.result_value(j) for j, w in enumerate(node.results) if w == v]
        for w in inner:
            if w >= 0 and (not followed or self._form(kid, w) == d):
                yield (kid, w, d), self._call_step(inst, k, (kid, w), (inst, v), d)

    # steps -----------------------------------------------------------------------------

    def _op_step(
        self,
        inst: Instance,
        node: Node,
        factor: int | None,
        source: tuple[int, int | None],
        target: tuple[int, int | None],
    ) -> Step:
        kind, words = "map", ""
        op = node.kind
        if node.rule is not None:
            op = node.rule.op.removeprefix("relax.")
            kind = "linear"
            if factor is not None:
                kind = node.rule.factors[factor].kind
                words = describe_factor(node.rule.factors[factor])
        elif node.kind == "pin":
            op = "annotate_sharding"
        values = inst.graph.values
        variable = values[node.results[0]].name if node.results else node.label
        return Step(
            f"{self.scene.name(inst)}/{variable}",
            op,
            kind,
            words,
            self.scene.place(inst, source[0]),
            source[1],
            self.scene.place(inst, target[0]),
            target[1],
        )

    def _call_step(
        self,
        caller: Instance,
        k: int,
        source: tuple[Instance, int],
        target: tuple[Instance, int],
        dim: int | None,
    ) -> Step:
        kid = caller.kids[k]
        return Step(
            f"{self.scene.name(caller)}/{caller.graph.nodes[k].label}",
            f"call {self.scene.name(kid)}",
            "call",
            "",
            self.scene.place(*source),
            dim,
            self.scene.place(*target),
            dim,
        )


def _key(spot: Spot) -> tuple[int, int, int]:
    return spot[0].number, spot[1], spot[2]


def _unwind(
    came: dict[tuple[int, int], tuple[tuple[Instance, int], Step] | None],
    here: tuple[Instance, int],
) -> list[Step]:
    """Steps from ``here`` to where the search began."""
    steps: list[Step] = []
    while True:
        before = came[here[0].number, here[1]]
        if before is None:
            return steps
        here, step = before
        steps.append(step)
