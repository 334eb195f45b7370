# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placements of weights chosen by the labelling itself, and what they leave on each device.

Propagation finds the cheapest labels of everything a plan leaves open. Here that is every
weight: each may be sharded on any dim or replicated, and is used as it lies. What a device
holds, computes and sends is weighed by :class:`Costs`; :class:`Explorer` solves the same module
again and again with other weights, and measures what came out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir

from ..ir import R, ceil_div
from ..rules import Rule
from .cost import Conversions, Costs
from .decision import Decision, Instance
from .forms import Alternative, fits
from .graph import LAYOUT_OPS, Axis, Graph, divisible
from .propagator import Propagator
from .reach import Reach, Reacher

Labels = dict[str, dict[int, int]]
"""Per public function: label of each weight, by its flat number among the parameters."""

BYTE = 1024
"""Cost of a wire byte while measuring."""

_Counts = tuple[int, int, int]


@dataclass(frozen=True)
class Footprint:
    """What one device holds, computes and sends in one call of the public functions.

    Attributes
    ----------
    param_bytes : int
        Of the weights.
    flops : int
    wire_bytes : int
        Sent, by ring estimates.
    collectives : int
    """

    param_bytes: int
    flops: int
    wire_bytes: int
    collectives: int = 0


@dataclass(frozen=True)
class Pin:
    """A variable that has to be sharded, where the weights alone do not lead there."""

    function: str
    variable: str
    label: int


@dataclass(frozen=True)
class Trial:
    """One choice of labels, and what it leaves on each device.

    ``pins`` are the values that propagation has to be told about to find the same.
    """

    labels: Labels
    footprint: Footprint
    pins: tuple[Pin, ...] = ()


class _Seeds(Reacher):
    """Reach from weights: any dim (None) or the chosen one; other parameters are whole.

    With ``parts`` the values that follow from other parameters may be sharded as well, where
    that divides a dim of the parameter.
    """

    def __init__(
        self,
        graphs: dict[str, Graph],
        order: Sequence[str],
        axes: Sequence[Axis],
        asked: Mapping[str, Mapping[int, int | None]],
        parts: int = 0,
    ) -> None:
        super().__init__(graphs, order, axes)
        self.asked, self.parts = asked, parts

    def _unify(self, g: Graph) -> None:
        super()._unify(g)
        if g.key not in self.asked:
            return
        reach, asked = self.result[g.key], self.asked[g.key]
        for k in g.params:
            v = g.nodes[k].results[0]
            shape = g.values[v].shape
            if k not in asked:
                dims = [d for d, n in enumerate(shape) if self.parts and divisible(n, self.parts)]
            else:
                label = asked[k]
                dims = [*range(len(shape))] if label is None else [label] * (label >= 0)
            for d in dims:
                reach.seeds.setdefault(reach.root[g.offset[v] + d], set()).add(0)

    def _hand_down(self, g: Graph) -> None:
        super()._hand_down(g)
        if g.key not in self.asked:
            return
        reach, asked = self.result[g.key], self.asked[g.key]
        for k in g.params:
            label = asked.get(k, R)
            reach.held[0][k] = k in asked
            if label is not None:
                reach.fixed[0][k] = label


class _Search(Propagator):
    """A propagation along one axis whose seeds are weights."""

    def __init__(
        self, mod: ir.IRModule, axis: Axis, weights: Mapping[str, Collection[int]]
    ) -> None:
        self._weights, self.asked = weights, dict[str, dict[int, int | None]]()
        self.parts, self._reached = 0, dict[int, dict[str, Reach]]()
        super().__init__(mod, Costs(), [axis])

    def _reacher(self) -> Reacher:
        if not self.asked:
            self.ask({name: dict.fromkeys(found) for name, found in self._weights.items()})
        return _Seeds(self.graphs, self.order, self.axes, self.asked, self.parts)

    def ask(self, labels: Mapping[str, Mapping[int, int | None]]) -> None:
        """Say what each weight may be: a label, or None for any."""
        self.asked = {
            self.entries[name]: {
                self.graphs[self.entries[name]].params[i]: label for i, label in found.items()
            }
            for name, found in labels.items()
        }

    def decide(
        self, labels: Mapping[str, Mapping[int, int | None]], costs: Costs, parts: int = 0
    ) -> Decision:
        """Label the module anew."""
        self.ask(labels)
        self.parts = parts
        free = all(label is None for found in labels.values() for label in found.values())
        if not free:
            self.reach = self._reacher().run()
        else:
            if parts not in self._reached:
                self._reached[parts] = self._reacher().run()
            self.reach = self._reached[parts]
        self.weigh(costs)
        return self.run()


class Explorer:
    """Tries placements of the weights of a module along one mesh axis.

    Parameters
    ----------
    mod : IRModule
        At level 1.
    axis : str
        Name of the mesh axis, for messages.
    ranks : int
        Devices along it.
    weights : mapping of str to collection of int
        Per public function, which of its flat parameters are weights. The others are
        replicated along the axis.

    Raises
    ------
    PropagationError
        DIST0401 an op without a rule; what extraction raises.
    """

    def __init__(
        self, mod: ir.IRModule, axis: str, ranks: int, weights: Mapping[str, Collection[int]]
    ) -> None:
        self.ranks = ranks
        self._open = {name: dict.fromkeys(sorted(found)) for name, found in weights.items()}
        self._search = _Search(mod, Axis(0, 0, ranks, axis), self._open)
        self._wires = Conversions(Costs(wire=BYTE, launch=0, slice=0, partial=0))

    def best(self, costs: Costs, parts: int = 0) -> Trial:
        """Solve with every weight free.

        Parameters
        ----------
        costs : Costs
        parts : int
            Not 0: values that follow from the data inputs may be sharded too, where this
            divides a dim of the input.

        Raises
        ------
        PropagationError
            DIST0410 when the labelling is too wide.
        """
        decision = self._search.decide(self._open, costs, parts)
        labels: Labels = {}
        for name, found in self._open.items():
            inst = decision.entries[name]
            labels[name] = {
                i: decision.value_form(inst, inst.graph.param_value(i))[0] for i in found
            }
        return Trial(labels, self._measure(decision, labels), self._pins(decision, labels))

    def settled(self, labels: Labels, costs: Costs | None = None) -> Trial:
        """What propagation makes of these labels: as :meth:`best`, nothing being free."""
        decision = self._search.decide(labels, costs or Costs())
        return Trial(labels, self._measure(decision, labels))

    def alone(self) -> Footprint:
        """Footprint on one device; its wire bytes are those of all results of all ops, twice."""
        flops, moved, held = 0, 0, 0
        for name in self._open:
            g = self._graph(name)
            held += sum(g.values[g.param_value(i)].size_bytes for i in self._open[name])
            for rule, count in self.ops(name):
                flops += count * rule.flops
                moved += count * 2 * sum(rule.out_bytes)
        return Footprint(held, flops, moved)

    def whole_flops(self) -> dict[str, int]:
        """FLOPs of the ops no rule can shard over the axis, by name of the op."""
        found: dict[str, int] = {}
        for name in self._open:
            for rule, count in self.ops(name):
                can = any(fits(f.size, self.ranks, 1, f.uneven) for f in rule.factors)
                if not can and rule.flops:
                    found[rule.op] = found.get(rule.op, 0) + count * rule.flops
        return found

    def ops(self, name: str, count: int = 1) -> list[tuple[Rule, int]]:
        """Rules of all ops a function runs, private functions included, and how often."""
        counts = {self._graph(name).key: count}
        for key in reversed(self._search.order):
            for k in self._search.graphs[key].calls if key in counts else ():
                callee = self._search.graphs[key].nodes[k].callee
                counts[callee] = counts.get(callee, 0) + counts[key]
        return [
            (node.rule, times)
            for key, times in counts.items()
            for node in self._search.graphs[key].nodes
            if node.rule is not None
        ]

    def weight_bytes(self, name: str, number: int, label: int = R) -> int:
        """Bytes a device holds of a weight; a shard of an uneven dim is the largest one."""
        value = self._graph(name).values[self._graph(name).param_value(number)]
        if label < 0:
            return value.size_bytes
        size = value.shape[label]
        if not isinstance(size, int):
            return int(ceil_div(value.size_bytes, self.ranks))
        return int(value.size_bytes // max(size, 1) * ceil_div(size, self.ranks))

    def obstacles(self, name: str, number: int) -> list[str]:
        """Return why a weight can be sharded on none of its dims; nothing when it can.

        Every consumer must take the dim as it lies, through layout ops and calls.
        """
        g, reasons = self._graph(name), list[str]()
        v = g.param_value(number)
        for d in range(len(g.values[v].shape)):
            why = self._obstacle(g, v, d)
            if why is None:
                return []
            reasons.append(why)
        return list(dict.fromkeys(reasons)) or ["a scalar"]

    def _obstacle(self, g: Graph, v: int, d: int) -> str | None:
        """Return what keeps value v from being sharded on dim d."""
        size = g.values[v].shape[d]
        if not fits(size, self.ranks, 1, True):
            return f"its dim {d} of size {size} is too small for {self.ranks} devices"
        for k, positions in g.uses[v]:
            node, why = g.nodes[k], None
            if node.kind == "call":
                inner = self._search.graphs[node.callee]
                found = [self._obstacle(inner, inner.param_value(i), d) for i in positions]
                why = next((one for one in found if one is not None), None)
            elif node.rule is not None:
                why = self._refusal(g, k, positions, d)
            if why is not None:
                return why
        return None

    def _refusal(self, g: Graph, k: int, positions: Sequence[int], d: int) -> str | None:
        node = g.nodes[k]
        rule = node.rule
        if rule is None:
            return None
        for f in rule.factors:
            takes = all(f.ins[i] == d for i in positions)
            if not takes or not fits(f.size, self.ranks, 1, f.uneven):
                continue
            out = f.outs[0]
            if rule.op not in LAYOUT_OPS or out is None:
                return None
            return self._obstacle(g, node.results[0], out)
        why = rule.why_whole.get(f"in{positions[0]}.dim{d}", "it does not divide")
        return f"{rule.op} takes its dim {d} whole: {why}"

    def _pins(self, decision: Decision, labels: Labels) -> tuple[Pin, ...]:
        """Return the sharded results that the chosen labels do not reach."""
        self._search.ask(labels)
        reach = _Seeds(
            self._search.graphs, self._search.order, self._search.axes, self._search.asked
        ).run()
        pins: dict[tuple[str, str], set[int]] = {}
        waiting, seen = [decision.entries[name] for name in labels], set[int]()
        while waiting:
            inst = waiting.pop(0)
            if inst.number in seen:
                continue
            seen.add(inst.number)
            waiting += [kid for _, kid in sorted(inst.kids.items())]
            g = inst.graph
            names = Counter(str(var.name) for var in g.variables.values())
            for key, k in g.node_of.items():
                node, name = g.nodes[k], str(g.variables[key].name)
                if node.rule is None or len(node.results) != 1 or names[name] > 1:
                    continue
                v = node.results[0]
                wants = {form[0] for form in decision.wants(inst, v)}
                label = decision.value_form(inst, v)[0]
                if label < 0 and len(wants) == 1:
                    (label,) = wants
                if label >= 0 and reach[g.key].active[0][g.offset[v] + label]:
                    label = R
                pins.setdefault((g.name, name), set()).add(label)
        return tuple(
            Pin(function, variable, min(found))
            for (function, variable), found in pins.items()
            if len(found) == 1 and min(found) >= 0
        )

    def _graph(self, name: str) -> Graph:
        return self._search.graphs[self._search.entries[name]]

    # measuring -------------------------------------------------------------------------

    def _measure(self, decision: Decision, labels: Labels) -> Footprint:
        held = sum(
            self.weight_bytes(name, i, label)
            for name, found in labels.items()
            for i, label in found.items()
        )
        done: dict[int, _Counts] = {}
        parts = [self._instance(decision, decision.entries[name], done) for name in labels]
        return Footprint(held, *(sum(column) for column in zip(*parts, strict=True)))

    def _instance(self, decision: Decision, inst: Instance, done: dict[int, _Counts]) -> _Counts:
        """FLOPs, wire bytes and collectives of an instance and all it calls."""
        if inst.number in done:
            return done[inst.number]
        flops, wire, count = 0, 0, 0
        for k, node in enumerate(inst.graph.nodes):
            if node.kind == "call":
                inner = self._instance(decision, inst.kids[k], done)
                flops, wire, count = flops + inner[0], wire + inner[1], count + inner[2]
            elif node.rule is not None:
                alternative = inst.choice[0][k]
                split = self.ranks if alternative.factor is not None else 1
                flops += ceil_div(node.rule.flops, split)
                sent = self._inside(node.rule, alternative)
                wire, count = wire + sent, count + (sent > 0)
        for v, value in enumerate(inst.graph.values):
            needs = frozenset(form[0] for form in decision.wants(inst, v))
            if needs:
                have = decision.value_form(inst, v)[0]
                cost, steps = self._wires.supply(have, needs, value.size_bytes, self.ranks)
                wire += cost // BYTE
                count += sum(1 for source, _ in steps if source != R)
        done[inst.number] = flops, wire, count
        return done[inst.number]

    def _inside(self, rule: Rule, alternative: Alternative) -> int:
        """Bytes sent within an op: halos, statistics, reductions other than sums."""
        if alternative.factor is None:
            return 0
        factor, n = rule.factors[alternative.factor], self.ranks
        if factor.kind == "halo":
            return factor.comm_bytes
        if factor.kind == "stat":
            return 4 * factor.comm_bytes * (n - 1) // n
        if factor.reduces and factor.kind != "sum":
            return 2 * sum(rule.out_bytes) * (n - 1) // n
        return 0


__all__ = ["Explorer", "Footprint", "Labels", "Pin", "Trial"]
