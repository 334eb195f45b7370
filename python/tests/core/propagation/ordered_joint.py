# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The joint optimum of placements and orders of mesh axes.

A state is a placement of all values together with the order of the axes that cut each dim. It
costs what :class:`.joint_problem.Joint` charges for the placement, and what the orders add: the
bytes of each move, less those between the same tiles in the orders that are best for this move
alone. As that is never negative, only placements that cost less than ours with its orders may be
better: the integer program gives them in order of their cost, each is written as a module, and all
orders of its dims are tried.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.core.propagation.joint_problem import Joint
from tests.core.propagation.joint_solver import TIME_LIMIT_S, Program
from tvm_distir.core.ir.views.tilings import Axes, Tiling
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.instances import called
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.propagation.solve.strategies import OpStrategy
from tvm_distir.core.solver.problem import INFINITE
from tvm_distir.transforms.axis_orders.order_choice import OrderChoice
from tvm_distir.transforms.axis_orders.order_problem import OrderProblem
from tvm_distir.transforms.axis_orders.ordered_dims import NONE

MOST_ORDERS = 5000


@dataclass
class _Call:
    """An expanded call: the nodes of its function by their numbers, and the calls inside of it."""

    inst: Instance
    numbers: dict[int, int] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)


class PlacedJoint(Joint):
    """The joint problem, whose assignments become decisions."""

    def __init__(self, solver: Propagator, decision: Decision) -> None:
        self._stack: list[_Call] = [_Call(decision.entries["main"])]
        self._decision = decision
        super().__init__(solver, decision)

    def _expand(self, inst: Instance, arguments: Sequence[int]) -> list[int]:
        call = _Call(inst)
        self._stack[-1].calls.append(call)
        self._stack.append(call)
        results = super()._expand(inst, arguments)
        self._stack.pop()
        return results

    def _add(self, inst: Instance, k: int, inner: bool) -> int:
        number = super()._add(inst, k, inner)
        self._stack[-1].numbers[k] = number
        return number

    def decision(self, picked: Sequence[int]) -> Decision:
        """The decision that an assignment is."""
        (main,) = self._stack[0].calls
        return replace(self._decision, entries={"main": self._instance(main, picked)})

    def _instance(self, call: _Call, picked: Sequence[int]) -> Instance:
        g = call.inst.graph
        numbers = [k for k, node in enumerate(g.nodes) if node.kind == "call"]
        kids = {k: self._instance(kid, picked) for k, kid in zip(numbers, call.calls)}
        choice = {
            a: tuple(
                called(kids[k], a) if k in kids else self._strategy(call, k, a, picked)
                for k in range(len(g.nodes))
            )
            for a in range(len(self.axes))
        }
        return self.assignment.instances.of(g, choice, kids)

    def _strategy(self, call: _Call, k: int, a: int, picked: Sequence[int]) -> OpStrategy:
        number, node = call.numbers[k], call.inst.graph.nodes[k]
        needs, gives, factor = self.nodes[number].combinations[picked[number]][a]
        if node.kind in ("param", "ret"):  # inside of a call these hand on
            needs, gives = needs if node.operands else (), gives if node.results else ()
        return OpStrategy(tuple(needs), tuple(gives), factor)


def added_bytes(choice: OrderChoice, orders: dict[int, Axes]) -> float:
    """The bytes that orders add to the moves of a module, each at its best orders."""
    total = 0.0
    for number, count in choice._counts.items():
        kind = choice._kind_list[choice._edge_list[number].kind]
        ends = itertools.product(_ordered(kind.before), _ordered(kind.after))
        free = min(choice._planned(kind, before, after) for before, after in ends)
        total += count * (choice._cost(number, orders) - free)
    return total


def _ordered(tiles: Tiling) -> list[Tiling]:
    """The same tiles in all orders."""
    dims = itertools.product(*map(itertools.permutations, tiles.dims))
    return [Tiling(axes, tiles.partial) for axes in dims]


def least_added(choice: OrderChoice) -> float | None:
    """What the best orders add; None where they are too many to try."""
    dims, stated = choice.problem.dims, choice.problem.dims.stated()
    moved = {r for edge in choice._edge_list for r in (*edge.before, *edge.after)} - {NONE}
    free = [root for root in dims.free() if root in moved and root not in stated]
    if math.prod(math.factorial(len(dims.axes[root])) for root in free) > MOST_ORDERS:
        return None
    every = itertools.product(*(itertools.permutations(dims.axes[root]) for root in free))
    return min(added_bytes(choice, {**stated, **dict(zip(free, axes))}) for axes in every)


def choice_of(mod: Any, decision: Decision) -> OrderChoice:
    """The choice of the orders of a module with these placements."""
    return OrderChoice(OrderProblem(PropagateSharding(decision=decision)(mod)))


def placements(joint: PlacedJoint, limit_s: float) -> Iterator[tuple[list[int], int, bool]]:
    """All placements from the cheapest on, with their costs, and whether none before was missed."""
    program = Program(joint)
    while True:
        picked, proven = program.solve(limit_s)
        if picked is None:
            return
        yield picked, joint.cost(picked), proven
        row: dict[int, float] = {}  # other labels at one node at least
        for at, node, i in zip(program.at, joint.nodes, picked):
            for n, other in enumerate(node.combinations):
                if all(x[:2] == y[:2] for x, y in zip(other, node.combinations[i])):
                    row[at + n] = 1.0
        program.rows.append((row, -math.inf, len(joint.nodes) - 1.0))


@dataclass(frozen=True)
class OrderedGap:
    """What placements, and then orders, cost, and what the best of both together do.

    Attributes
    ----------
    seed : int
    decided : int
        The cost of the decided placements with the orders that ``OrderAxes`` chooses.
    added, mesh : int
        What these orders add, and what the mesh's order would.
    best : int
        The joint optimum, or the best found.
    proven : bool
        No state was left out.
    tried : int
        Placements of which all orders were tried.
    choices : int
        The dims of the decided placements that have an order, tied ones once.
    """

    seed: int
    decided: int
    added: int
    mesh: int
    best: int
    proven: bool
    tried: int
    choices: int


def ordered_gap_of(mod: Any, seed: int = 0, limit_s: float = TIME_LIMIT_S) -> OrderedGap:
    """Solve an annotated module of a mesh both ways.

    Raises
    ------
    TooLarge
        The joint problem is too large to be solved.
    """
    solver = Propagator(mod, Costs())
    decision = solver.run()
    joint = PlacedJoint(solver, decision)
    costs, ours = joint.cost_tables.costs, joint.decided()
    if ours is None:
        raise ValueError("the decision is not among the joint assignments")
    choice = choice_of(mod, decision)
    orders, dims = choice.run(), choice.problem.dims
    added, mesh = (costs.scaled(int(costs.wire * added_bytes(choice, x))) for x in (orders, {}))
    decided = best = joint.cost(ours) + added
    tried, proven, end = 0, True, time.process_time() + limit_s
    for picked, cost, is_cheapest in placements(joint, limit_s) if added else ():
        proven &= is_cheapest
        if cost >= best or not proven or time.process_time() > end:
            proven &= cost >= best
            break
        least = least_added(choice_of(mod, joint.decision(picked)))
        proven &= least is not None
        if least is not None and least < math.inf:
            best = min(best, cost + costs.scaled(int(costs.wire * least)))
        tried += 1
    if not added:  # no placement costs less than the best, whatever its orders
        picked, proven = Program(joint).solve(limit_s)
        best = best if picked is None else min(best, joint.cost(picked))
    choices = len({dims.root(n) for n in range(len(dims.axes))})
    return OrderedGap(seed, min(decided, INFINITE), added, mesh, best, proven, tried, choices)
