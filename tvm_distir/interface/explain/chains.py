# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the shortest chains of tied dims from annotations to a value, across calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_distir.core.ir import P
from tvm_distir.core.propagation import Instance

from .chain_steps import ChainStepWriter
from .findings import ChainStep
from .instances import Caller, InstanceIndex

Stack = tuple[Caller, ...]
"""Calls a search went into: it comes out of them where it went in."""

Spot = tuple[Instance, int, int, Stack]
"""A dim of a value of an instance."""

Sum = tuple[Instance, int, Stack]
"""A partial sum."""


@dataclass(frozen=True)
class AnnotationChain:
    """A chain from an annotation to a dim of a value.

    Attributes
    ----------
    annotation : str
        ``function/variable``.
    steps : tuple of ChainStep
        From the annotation on; none where the value itself is annotated.
    followed : bool
        Whether every step is one the program takes along the axis. Else the dims are tied by
        the ops' rules, but somewhere the program goes another way.
    """

    annotation: str
    steps: tuple[ChainStep, ...]
    followed: bool


class Chains:
    """Searches for chains along a mesh axis.

    Parameters
    ----------
    index : InstanceIndex
    axis : int
        Number among the decision's axes.
    """

    def __init__(self, index: InstanceIndex, axis: int) -> None:
        self.index, self.a = index, axis
        self.steps = ChainStepWriter(index)
        self.axis = index.decision.axes[axis]

    def to(self, inst: Instance, value: int, dim: int, stack: Stack = ()) -> AnnotationChain | None:
        """Return the chain to a dim, by the program's steps or else by tied dims; None without one.

        A breadth-first search from the value, which ends at the nearest annotation of the dim.
        Neighbours come in program order, so the chain found is always the same. A chain that
        leaves every function where it entered it is preferred.
        """
        for followed, start in ((True, stack), (True, None), (False, None)):
            chain = self._search((inst, value, dim, start or ()), followed, start is not None)
            if chain is not None:
                return chain
        return None

    def annotations(self, inst: Instance, value: int, dim: int) -> list[str]:
        """Return all annotations along the axis whose dims are tied to a dim, nearest first."""
        names: dict[str, None] = {}
        for spot, _ in self._reach((inst, value, dim, ()), followed=False, stacked=False):
            name = self._annotation(spot)
            if name is not None:
                names[name] = None
        return list(names)

    def of_partial(self, inst: Instance, value: int) -> AnnotationChain | None:
        """Return the chain to the dim that a partial sum reduces, then through linear ops."""
        first: Sum = (inst, value, ())
        came: dict[Any, tuple[Sum, ChainStep] | None] = {_key(first): None}
        queue = deque([first])
        while queue:
            here = queue.popleft()
            chain = self._summed(here)
            if chain is not None:
                return replace(chain, steps=(*chain.steps, *_unwind(came, here)))
            for near, step in self._carried(here):
                if _key(near) not in came:
                    came[_key(near)] = (here, step)
                    queue.append(near)
        return None

    def _summed(self, here: Sum) -> AnnotationChain | None:
        """Return shortest chain to an operand of the op whose partial sum ``here`` is, if any."""
        inst, v, stack = here
        k, _ = inst.graph.producer[v]
        node, number = inst.graph.nodes[k], inst.choice[self.a][k].factor
        if node.rule is None or number is None or node.rule.factors[number].kind != "sum":
            return None
        best: AnnotationChain | None = None
        for w, d in zip(node.operands, node.rule.factors[number].ins):
            if d is None or w < 0:
                continue
            chain = self.to(inst, w, d, stack)
            if chain is not None and (best is None or len(chain.steps) < len(best.steps) - 1):
                step = self.steps.through_op(inst, node, number, (w, d), (v, None))
                best = replace(chain, steps=(*chain.steps, step))
        return best

    def requested(self, inst: Instance, value: int) -> AnnotationChain | None:
        """Return chain of calls from an annotation to a parameter, if all callers agree on it."""
        steps: list[ChainStep] = []
        while True:
            g = inst.graph
            k, _ = g.producer[value]
            if g.nodes[k].pin_on(self.axis):
                return AnnotationChain(
                    self.index.qualified_name(inst, value), tuple(reversed(steps)), True
                )
            if g.nodes[k].kind != "param":
                return None
            position = g.params.index(k)
            call = None
            for caller, kc in self.index.callers.get(inst.number, ()):
                w = caller.graph.nodes[kc].operands[position]
                if w < 0 or self._label(caller, w) != self._label(inst, value):
                    return None
                call = call or (caller, kc, w)
            if call is None:
                return None
            caller, kc, w = call
            steps.append(self.steps.through_call(caller, kc, (caller, w), (inst, value), None))
            inst, value = caller, w

    def _carried(self, here: Sum) -> Iterator[tuple[Sum, ChainStep]]:
        """Yield the partial sums that ``here`` is made of."""
        inst, v, stack = here
        g = inst.graph
        k, j = g.producer[v]
        node = g.nodes[k]
        if node.kind in ("op", "pin"):
            for i, w in enumerate(node.operands):
                if w >= 0 and inst.choice[self.a][k].needs[i] == P:
                    yield (
                        (inst, w, stack),
                        self.steps.through_op(inst, node, None, (w, None), (v, None)),
                    )
        elif node.kind == "call":
            kid = inst.kids[k]
            w = kid.graph.result_values[j]
            if w >= 0:
                step = self.steps.through_call(inst, k, (kid, w), (inst, v), None)
                yield (kid, w, (*stack, (inst, k))), step
        elif node.kind == "param":
            for caller, kc in stack[-1:] or self.index.callers.get(inst.number, []):
                w = caller.graph.nodes[kc].operands[g.params.index(k)]
                if w >= 0:
                    step = self.steps.through_call(caller, kc, (caller, w), (inst, v), None)
                    yield (caller, w, stack[:-1]), step

    # breadth first ---------------------------------------------------------------------

    def _search(self, start: Spot, followed: bool, stacked: bool) -> AnnotationChain | None:
        for spot, came in self._reach(start, followed, stacked):
            name = self._annotation(spot)
            if name is not None:
                return AnnotationChain(name, tuple(_unwind(came, spot)), followed)
        return None

    def _reach(
        self, start: Spot, followed: bool, stacked: bool
    ) -> Iterator[tuple[Spot, dict[Any, tuple[Spot, ChainStep] | None]]]:
        """Yield the dims tied to ``start``, nearest first, with the path to each."""
        came: dict[Any, tuple[Spot, ChainStep] | None] = {_key(start): None}
        queue = deque([start])
        while queue:
            spot = queue.popleft()
            yield spot, came
            for near, step in self._neighbours(spot, followed):
                near = near if stacked else (*near[:3], ())
                if _key(near) not in came:
                    came[_key(near)] = (spot, step)
                    queue.append(near)

    def _annotation(self, spot: Spot) -> str | None:
        """Return the annotation's name that shards this very dim along the axis, if any."""
        inst, v, d, _ = spot
        node = inst.graph.nodes[inst.graph.producer[v][0]]
        if node.pin is None or not node.pin_on(self.axis) or node.pin[self.axis.index] != d:
            return None
        return self.index.qualified_name(inst, v)

    def _neighbours(self, spot: Spot, followed: bool) -> Iterator[tuple[Spot, ChainStep]]:
        """Yield dims one step away, and the step from each of them to ``spot``."""
        inst, v, d, stack = spot
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
                    if w >= 0 and w != v and (not followed or inst.choice[self.a][k].needs == (d,)):
                        near = (inst, w, d, stack)
                        yield near, self.steps.through_op(inst, node, None, (w, d), (v, d))
        if g.nodes[maker].kind == "param":
            position = g.params.index(maker)
            for caller, kc in self._callers(inst, stack, followed):
                w = caller.graph.nodes[kc].operands[position]
                if w >= 0 and (not followed or self._label(inst, v) == d):
                    near = (caller, w, d, stack[:-1])
                    yield near, self.steps.through_call(caller, kc, (caller, w), (inst, v), d)
        for k, _ in g.uses[v]:
            if g.nodes[k].kind == "ret":
                position = g.rets.index(k)
                for caller, kc in self._callers(inst, stack, followed):
                    w = caller.graph.nodes[kc].results[position]
                    if not followed or self._label(caller, w) == d:
                        near = (caller, w, d, stack[:-1])
                        yield near, self.steps.through_call(caller, kc, (caller, w), (inst, v), d)

    def _callers(self, inst: Instance, stack: Stack, followed: bool) -> Sequence[Caller]:
        if stack:
            return stack[-1:]
        if followed:
            return self.index.callers.get(inst.number, [])
        return self.index.callers_of_graph.get(inst.graph.key, [])

    def _label(self, inst: Instance, value: int) -> int:
        """Return the label that a value is produced with along the axis."""
        k, j = inst.graph.producer[value]
        return inst.choice[self.a][k].gives[j]

    def _through_op(self, spot: Spot, k: int, followed: bool) -> Iterator[tuple[Spot, ChainStep]]:
        inst, v, d, stack = spot
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
                    near = (inst, w, e, stack)
                    yield near, self.steps.through_op(inst, node, number, (w, e), (v, d))

    def _into_call(self, spot: Spot, k: int, followed: bool) -> Iterator[tuple[Spot, ChainStep]]:
        inst, v, d, stack = spot
        node, kid = inst.graph.nodes[k], inst.kids[k]
        inner = [kid.graph.param_values[i] for i, w in enumerate(node.operands) if w == v]
        inner += [kid.graph.result_values[j] for j, w in enumerate(node.results) if w == v]
        for w in inner:
            if w >= 0 and (not followed or self._label(kid, w) == d):
                step = self.steps.through_call(inst, k, (kid, w), (inst, v), d)
                yield (kid, w, d, (*stack, (inst, k))), step


def _key(spot: Any) -> tuple[object, ...]:
    """Return the hashable form of a spot or sum: instances by number."""
    inst, *rest, stack = spot
    return inst.number, *rest, tuple((caller.number, k) for caller, k in stack)


def _unwind(came: dict[Any, Any], here: Any) -> list[ChainStep]:
    """Return the steps from ``here`` to where the search began."""
    steps: list[ChainStep] = []
    while (before := came[_key(here)]) is not None:
        here, step = before
        steps.append(step)
    return steps
