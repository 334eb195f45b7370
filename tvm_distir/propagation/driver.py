# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Axis by axis: summaries bottom-up, one exact minimisation per public function, decoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tvm import ir, relax

from ..errors import PropagationError
from ..ir import is_private, mesh_axes, mesh_shape, meshes, relax_functions
from ..native import Problem
from .decision import Decision, Instance, Signature
from .graph import Axis, Graph, ModuleTypes, Placer
from .price import Evaluator, Price
from .reach import Reach, Reacher
from .solve import Alternative, AxisProblem, Builder, Costs, PriceTables, Summary, minimise

TABLE_LIMIT = 1 << 22
"""Entries of one table; a problem that stays wider goes to the integer solver."""

SUMMARY_LIMIT = 1 << 10
"""Entries of one table of a function summary; above it a variable is kept."""

ROUNDS = 3

NOTHING = Alternative((), (), None)
"""Of a node without operands and results."""

ALL_ORDERS = 3
"""With at most so many axes every order is tried where axes compete, with more two."""


def module_axes(mod: ir.IRModule) -> tuple[Axis, ...]:
    """All axes of all meshes of a module."""
    names = mesh_axes(mod)
    return tuple(
        Axis(i, j, size, names[i][j])
        for i, mesh in enumerate(meshes(mod))
        for j, size in enumerate(mesh_shape(mesh))
    )


class Propagator:
    """State of one propagation."""

    def __init__(self, mod: ir.IRModule, costs: Costs, axes: Sequence[Axis] | None = None) -> None:
        self.axes = module_axes(mod) if axes is None else tuple(axes)
        placer = Placer(ModuleTypes(mod))
        self.entries = {
            str(gv.name_hint): placer.place(str(gv.name_hint))
            for gv, fn in relax_functions(mod)
            if isinstance(fn, relax.Function) and not is_private(fn)
        }
        self.forced: dict[str, Signature] = {}
        self.free = False
        self.graphs = placer.graphs
        self.order = placer.order
        self.reach: dict[str, Reach] = self._reacher().run()
        self.weigh(costs)

    def _reacher(self) -> Reacher:
        return Reacher(self.graphs, self.order, self.axes, self.forced, self.free)

    def force(self, signatures: dict[str, Signature]) -> None:
        """Start afresh, with one signature for all calls of some placed functions."""
        self.forced = signatures
        self.reach = self._reacher().run()
        self.weigh(self.costs)

    def set_free(self) -> None:
        """Start afresh; free parameters may be sharded over any axis."""
        self.free = True
        self.reach = self._reacher().run()
        self.weigh(self.costs)

    def price(self, decision: Decision) -> Price:
        """What a decision of this propagator costs over all axes together."""
        evaluator = self._evaluator()
        return sum((evaluator.price(inst) for inst in decision.entries.values()), Price())

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.prices, self.reach, lambda inst, a: self._sizes(inst, a)[0])

    def weigh(self, costs: Costs) -> None:
        """Start afresh with other weights."""
        self.costs = costs
        self.prices = PriceTables(costs.for_ops(*self._largest()), self.axes)
        self._instances: dict[object, Instance] = {}
        self._summaries: dict[tuple[int, int], Summary] = {}
        self._specialised: dict[tuple[int, int, tuple[int, ...]], Instance] = {}

    def run(self) -> Decision:
        """Solve every public function on its own; private ones are shared."""
        start: dict[str, Instance] = {}
        for key in self.order:
            g = self.graphs[key]
            kids = {k: start[g.nodes[k].callee] for k in g.calls}
            start[key] = self._instance(g, {}, kids)
        found, cost, self.gap = {}, 0, 0
        for name, key in self.entries.items():
            found[name], price = self._solve(start[key])
            cost += price
        return Decision(
            self.axes,
            found,
            cost,
            cost - self.gap,
            self.prices.conversions,
            lambda inst, a: self._sizes(inst, a)[0],
        )

    def _largest(self) -> tuple[int, int]:
        """FLOPs and bytes of the largest op."""
        rules = [n.rule for g in self.graphs.values() for n in g.nodes if n.rule is not None]
        return (
            max((r.flops for r in rules), default=0),
            max((sum(r.in_bytes + r.out_bytes) for r in rules), default=0),
        )

    def _solve(self, start: Instance) -> tuple[Instance, int]:
        """Minimise axis by axis; where axes compete, in several orders: the cheapest stays."""
        found: list[tuple[Instance, int, int]] = []
        refusal: PropagationError | None = None
        for order in self._orders():
            try:
                found.append(self._solve_in(start, order))
            except PropagationError as error:
                refusal = refusal or error
        if not found and refusal is not None:
            raise refusal
        best = found[0]
        if len(found) > 1:
            evaluator = self._evaluator()
            best = min(found, key=lambda one: evaluator.price(one[0]).total)
        self.gap += best[2]
        return best[0], best[1]

    def _orders(self) -> list[tuple[int, ...]]:
        """Orders of the axes to solve in: more than their own where two reach the same factor."""
        count = len(self.axes)
        own = tuple(range(count))
        if not any(self._compete(a, b) for a, b in itertools.combinations(own, 2)):
            return [own]
        return list(itertools.permutations(own)) if count <= ALL_ORDERS else [own, own[::-1]]

    def _compete(self, a: int, b: int) -> bool:
        if self.axes[a].mesh != self.axes[b].mesh:
            return False
        return any(
            x & y for r in self.reach.values() for x, y in zip(r.mask[a], r.mask[b], strict=True)
        )

    def _solve_in(self, inst: Instance, order: Sequence[int]) -> tuple[Instance, int, int]:
        """Solve in one order, again while the sizes an axis was solved with change.

        Returns the instance, the sum of the axes' minima, and how far they may be above a bound.
        """
        bases: dict[int, Instance] = {}
        prices: dict[int, int] = {}
        gaps = 0
        for _ in range(ROUNDS):
            before = inst
            for a in order:
                base = self._without(inst, a)
                if a in bases and self._same_sizes(bases[a], base, a):
                    continue
                model = self._build(base, a)
                values, cost, gap = self._minimise(model, base.graph, a)
                bases[a], prices[a] = base, cost
                gaps += gap
                inst = self._decode(base, a, model, values)
            if inst is before:
                break
        return inst, sum(prices.values()), gaps

    def _minimise(self, model: AxisProblem, g: Graph, a: int) -> tuple[list[int], int, int]:
        tables, problem = self.prices.tables, Problem(model.domains, model.factors)
        found = minimise(tables, problem, TABLE_LIMIT, g.name)
        total, forbidden = tables.evaluate(problem, found.values)
        if not (model.feasible and found.feasible) or forbidden:
            raise self._infeasible(g, a)
        return found.values, model.constant + total, found.gap

    def _infeasible(self, g: Graph, a: int) -> PropagationError:
        """Name a stationary parameter that some op cannot take as it is."""
        axis = self.axes[a]
        for graph in [g, *[self.graphs[k] for k in self.order if self.graphs[k] is not g]]:
            reach = self.reach[graph.key]
            for k in graph.params:
                node = graph.nodes[k]
                fixed = node.stationary or reach.held[a].get(k, False)
                v = node.results[0]
                label = reach.fixed[a].get(k)
                if graph.public and node.pin is not None and node.pin_on(axis):
                    label = node.pin[axis.index]
                if not fixed or label is None or label < 0:
                    continue
                for kc, positions in graph.uses[v]:
                    rule = graph.nodes[kc].rule
                    if rule is None or graph.nodes[kc].kind != "op":
                        continue
                    if not any(f.ins[i] == label for f in rule.factors for i in positions):
                        why = rule.why_whole.get(f"in{positions[0]}.dim{label}", "no factor has it")
                        return PropagationError(
                            "DIST0411",
                            f"stationary {graph.values[v].name} is sharded on dim {label} along "
                            f'"{axis.name}", which {rule.op} cannot use: {why}',
                            place=graph.place(kc),
                            remedy='Place it otherwise, or say "stationary": false.',
                        )
        return PropagationError(
            "DIST0411",
            f'the stationary placements along "{axis.name}" contradict each other or do not '
            "divide the dims they shard",
            place=g.name,
            remedy='Place them otherwise, or say "stationary": false.',
        )

    # instances -------------------------------------------------------------------------

    def _instance(
        self, g: Graph, choice: dict[int, tuple[Alternative, ...]], kids: dict[int, Instance]
    ) -> Instance:
        key = (
            g.key,
            tuple(sorted(choice.items())),
            tuple((k, kid.number) for k, kid in sorted(kids.items())),
        )
        if key not in self._instances:
            self._instances[key] = Instance(len(self._instances), g, choice, kids)
        return self._instances[key]

    def _without(self, inst: Instance, a: int) -> Instance:
        if a not in inst.choice:
            return inst
        choice = {b: c for b, c in inst.choice.items() if b != a}
        kids = {k: self._without(kid, a) for k, kid in inst.kids.items()}
        return self._instance(inst.graph, choice, kids)

    def _sizes(self, inst: Instance, a: int) -> tuple[list[int], dict[int, dict[int, int]]]:
        """Bytes of each value local to the other axes of its mesh, and how its dims are cut.

        An axis not decided yet is taken to shard whatever it can reach.
        """
        if a in inst.local:
            return inst.local[a]
        g, reach = inst.graph, self.reach[inst.graph.key]
        sizes = [v.size_bytes for v in g.values]
        cut: dict[int, dict[int, int]] = {}
        for b, axis in enumerate(self.axes):
            if b == a or axis.mesh != self.axes[a].mesh:
                continue
            choice = inst.choice.get(b)
            for v, value in enumerate(g.values):
                if value.mesh != axis.mesh:
                    continue
                if choice is None:
                    if reach.live[b][v]:
                        sizes[v] //= axis.size
                    continue
                k, j = g.producer[v]
                label = choice[k].gives[j]
                if label >= 0:
                    sizes[v] = -(-sizes[v] // axis.size)
                    dims = cut.setdefault(v, {})
                    dims[label] = dims.get(label, 1) * axis.size
        inst.local[a] = (sizes, cut)
        return inst.local[a]

    def _same_sizes(self, one: Instance, two: Instance, a: int) -> bool:
        if one is two:
            return True
        return self._sizes(one, a) == self._sizes(two, a) and all(
            self._same_sizes(one.kids[k], two.kids[k], a) for k in one.kids
        )

    # models, summaries, decoding -------------------------------------------------------

    def _build(self, inst: Instance, a: int) -> AxisProblem:
        return Builder(
            self.prices.along(a),
            inst,
            a,
            self.reach[inst.graph.key],
            self._sizes(inst, a),
            lambda k: self._summary(inst.kids[k], a),
            self.forced.get(inst.graph.key),
        ).run()

    def _summary(self, inst: Instance, a: int) -> Summary:
        key = (inst.number, a)
        if key in self._summaries:
            return self._summaries[key]
        model, g = self._build(inst, a), inst.graph
        ends = [model.producers[k][0] for k in g.params] + [model.consumers[k][0] for k in g.rets]
        keep = {v for _, v in ends if v >= 0}
        problem = Problem(model.domains, model.factors)
        done = self.prices.tables.eliminate(problem, keep, SUMMARY_LIMIT)
        at = {v: i for i, v in enumerate(done.kept)}
        outside = [(self.prices.forms.turned(alts), at.get(v, -1)) for alts, v in ends]
        self._summaries[key] = Summary(
            model,
            done,
            [model.domains[v] for v in done.kept],
            sorted((tuple(at[v] for v in scope), t) for scope, t in done.factors.items()),
            model.constant + done.constant,
            model.feasible and done.feasible,
            outside[: len(g.params)],
            outside[len(g.params) :],
        )
        return self._summaries[key]

    def _decode(
        self, inst: Instance, a: int, model: AxisProblem, values: Sequence[int]
    ) -> Instance:
        g, choice, kids = inst.graph, [], {}
        for k, (producers, consumers) in enumerate(zip(model.producers, model.consumers)):
            ends = producers or consumers
            if not ends or k in model.spliced:
                choice.append(NOTHING)
                continue
            alts, u = ends[0]
            choice.append(alts.items[values[u] if u >= 0 else 0])
        for k in g.calls:
            picked = tuple([values[u] for u in model.spliced[k]])
            kids[k] = self._specialise(inst.kids[k], a, picked)
            needs = [alts.needs[values[u] if u >= 0 else 0][0] for alts, u in model.consumers[k]]
            gives = [alts.gives[values[u] if u >= 0 else 0][0] for alts, u in model.producers[k]]
            choice[k] = Alternative(tuple(needs), tuple(gives), None)
        return self._instance(g, {**inst.choice, a: tuple(choice)}, kids)

    def _specialise(self, inst: Instance, a: int, picked: tuple[int, ...]) -> Instance:
        """One instance per distinct assignment of a summary's kept variables."""
        key = (inst.number, a, picked)
        if key not in self._specialised:
            summary = self._summaries[inst.number, a]
            values = [0] * len(summary.model.domains)
            for v, x in zip(summary.done.kept, picked):
                values[v] = x
            values = self.prices.tables.decode(summary.done, values)
            self._specialised[key] = self._decode(inst, a, summary.model, values)
        return self._specialised[key]
