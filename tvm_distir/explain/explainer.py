# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gathers all there is to say about one value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvm import ir

from ..analysis import check_level
from ..errors import DistIRError
from ..ir import (
    P,
    R,
    ceil_div,
    handle,
    local_shape,
    mesh_names,
    mesh_shape,
    meshes,
    placement_text,
)
from ..ir.branches import lift_branches
from ..plan import Plan
from ..plan.schema import OpenLabels
from ..propagation import Costs, Decision, Instance, propagate
from ..propagation.forms import fits
from ..propagation.graph import divisible
from ..rules.dims import nominal
from ..transform import AnnotateSharding
from .chains import Chain, Chains
from .explanation import Alternative, AxisReason, Collective, Dim, Explanation, Move
from .picture import picture
from .pinning import annotate_otherwise, annotated_labels, annotation_of
from .scene import Scene, Target
from .traffic import Traffic, conversions, moves_of, price_bytes, traffic_of

MOST_ALSO = 8
"""Further annotations named per axis."""


def explain(
    mod: ir.IRModule,
    value: str,
    *,
    plan: Plan | None = None,
    costs: Costs | None = None,
    prices: bool = True,
) -> Explanation:
    """Say why propagation places a value as it does, and what other placements would cost.

    Parameters
    ----------
    mod : IRModule
        Level 2 (annotated), or level 1 with a plan. It is not changed.
    value : str
        A variable (``lv19``), one of a function or specialisation (``layer_1/lv3``), or a
        parameter by the model's own name. ``lv#1`` is the second variable of that name,
        ``lv.0`` the first field of a tuple.
    plan : Plan, optional
        Annotates the module first.
    costs : Costs, optional
        The weights propagation decides with.
    prices : bool
        Whether to solve again for each other placement of the value.

    Returns
    -------
    Explanation

    Raises
    ------
    PropagationError
        DIST0430 for an unknown name, DIST0431 for one that is not clear or is no tensor; and what
        propagation raises.
    LevelError
        DIST0451 when the module is distributed already.
    """
    if plan is not None:
        mod = AnnotateSharding(plan)(mod)
    check_level(mod, "annotated")
    mod = lift_branches(mod)
    decision = propagate(mod, costs)
    scene = Scene(mod, decision)
    return _Explainer(scene, scene.find(value), costs, prices).run()


class _Explainer:
    """One value of one decision."""

    def __init__(self, scene: Scene, target: Target, costs: Costs | None, prices: bool) -> None:
        self.scene, self.target, self.costs, self.prices = scene, target, costs, prices
        self.decision = scene.decision
        self.inst, self.v = target.inst, target.value
        self.value = self.inst.graph.values[self.v]
        self.mesh = meshes(scene.mod)[self.value.mesh]
        self.axes = self.decision.mesh_axes(self.value.mesh)
        self.produced = self.decision.value_form(self.inst, self.v)
        self.form = self.decision.route(self.inst, self.v).root

    def run(self) -> Explanation:
        """Everything, in the order it is printed."""
        local = local_shape(self.value.shape, self.form, mesh_shape(self.mesh))
        local_bytes = math.prod(nominal(n) for n in local) * self.value.item_bytes
        traffic = traffic_of(self.decision)
        axes = tuple(self._reason(i) for i in range(len(self.axes)))
        title = f"{self.target.specialisation}/{self.target.name}"
        names = mesh_names(self.scene.mod)
        return Explanation(
            name=title,
            function=self.target.function,
            made_by=self._made_by(),
            shape=tuple(str(n) for n in self.value.shape),
            local_shape=tuple(str(n) for n in local),
            mesh=names[self.value.mesh],
            mesh_axes=tuple((self._name(i), self._ranks(i)) for i in range(len(self.axes))),
            placement=placement_text(self.form),
            size_bytes=self.value.size_bytes,
            bytes_per_device=local_bytes,
            axes=axes,
            dims=tuple(self._dim(d) for d in range(len(self.value.shape))),
            users=tuple(self._users()),
            moves=tuple(self._moves()),
            alternatives=tuple(self._alternatives(traffic, axes)) if self.prices else (),
            specialisations=tuple(self._specialisations()),
            price=price_bytes(traffic, self.decision.conversions.costs),
            cost=cost_bytes(self.decision),
            wire_bytes=traffic.total_wire_bytes,
            picture=picture(self.value.shape, self.form, self.mesh),
        )

    def _name(self, i: int) -> str:
        return self.decision.axes[self.axes[i]].name

    def _ranks(self, i: int) -> int:
        return self.decision.axes[self.axes[i]].size

    def _made_by(self) -> str:
        node = self.inst.graph.nodes[self.inst.graph.producer[self.v][0]]
        if node.kind == "op" and node.rule is not None:
            return node.rule.op.removeprefix("relax.")
        if node.kind == "call":
            kid = self.inst.kids[self.inst.graph.producer[self.v][0]]
            return f"call {self.scene.name(kid)}"
        words = {"param": "parameter", "pin": "annotate_sharding", "move": "another mesh"}
        return words[node.kind]

    # why -------------------------------------------------------------------------------

    def _reason(self, i: int) -> AxisReason:
        """Why the label along mesh axis ``i`` is what it is."""
        chains, axis = Chains(self.scene, self.axes[i]), self.decision.axes[self.axes[i]]
        label, node = self.form[i], self.inst.graph.nodes[self.inst.graph.producer[self.v][0]]
        claims, also = self._claims(chains)
        here = self.scene.place(self.inst, self.v)
        chain: Chain | None = None
        reason = "cheapest" if claims else "unreached"
        if node.pin is not None and node.pin_on(axis) and node.pin[axis.index] == label:
            chain, reason = Chain(here, (), True), "annotated"
            if label < 0:
                claims = [(placement_text((label,)), here), *claims]
        elif self.produced[i] == P:
            chain, reason = chains.of_partial(self.inst, self.v), "summed"
        elif label >= 0:
            chain = chains.to(self.inst, self.v, label)
            reason = "followed" if chain is not None and chain.followed else "tied"
        else:
            chain = chains.given(self.inst, self.v)
            reason = "followed" if chain is not None else reason
        annotation = chain.annotation if chain is not None else ""
        others = [name for name in also.get(label, []) if name != annotation]
        return AxisReason(
            axis=self._name(i),
            size=self._ranks(i),
            label=placement_text((label,)),
            produced=placement_text((self.produced[i],)),
            reason=reason,
            annotation=annotation,
            steps=chain.steps if chain is not None else (),
            also=tuple(others[:MOST_ALSO]),
            claims=tuple(claims),
        )

    def _claims(self, chains: Chains) -> tuple[list[tuple[str, str]], dict[int, list[str]]]:
        """Labels annotations reach the value with, and all annotations of each."""
        claims, every = [], {}
        for d in range(len(self.value.shape)):
            found = chains.annotations(self.inst, self.v, d)
            if found:
                claims.append((placement_text((d,)), found[0]))
                every[d] = found
        return claims, every

    # what limits it --------------------------------------------------------------------

    def _dim(self, d: int) -> Dim:
        size = self.value.shape[d]
        sharding = tuple(self._name(i) for i, label in enumerate(self.form) if label == d)
        found: dict[str, None] = {}
        for i in range(len(self.axes)):
            text = self._size_obstacle(d, i)
            if text:
                found[text] = None
        for inst, k, j in self._makers(self.inst, self.v):
            rule = inst.graph.nodes[k].rule
            why = rule.why_whole.get(f"out{j}.dim{d}") if rule is not None else None
            if why:
                found[f"{self._node(inst, k)} makes it whole: {why}"] = None
        for inst, k, j in self._takers(self.inst, self.v):
            rule = inst.graph.nodes[k].rule
            why = rule.why_whole.get(f"in{j}.dim{d}") if rule is not None else None
            if why:
                found[f"{self._node(inst, k)} takes it whole: {why}"] = None
        return Dim(d, str(size), sharding, tuple(found))

    def _taken(self, d: int, i: int) -> int:
        """Devices of axes other than ``i`` that shard dim ``d``."""
        return math.prod(
            self._ranks(b) for b, label in enumerate(self.form) if label == d and b != i
        )

    def _size_obstacle(self, d: int, i: int) -> str:
        """What the size of a dim says against an axis: nothing, padding, or never."""
        size, ranks, taken = self.value.shape[d], self._ranks(i), self._taken(d, i)
        if divisible(size, ranks * taken):
            return ""
        over = f'"{self._name(i)}" ({ranks})'
        if taken > 1:
            over += f", where another axis cuts it into {taken} parts already"
        if not fits(size, ranks, taken, True):
            return f"{size} is too small for {over}: some devices would hold nothing"
        padded = ceil_div(int(size), ranks * taken) * ranks * taken
        return f"{size} does not divide by {over}: the shards would be padded to {padded} in all"

    def _makers(self, inst: Instance, v: int) -> Iterator[tuple[Instance, int, int]]:
        """The op that makes a value, looked for inside the function called."""
        k, j = inst.graph.producer[v]
        node = inst.graph.nodes[k]
        if node.kind == "op":
            yield inst, k, j
        elif node.kind == "call":
            inner = inst.kids[k].graph.result_value(j)
            if inner >= 0:
                yield from self._makers(inst.kids[k], inner)

    def _takers(self, inst: Instance, v: int) -> Iterator[tuple[Instance, int, int]]:
        """Ops that take a value, looked for inside the functions called."""
        for k, positions in inst.graph.uses[v]:
            node = inst.graph.nodes[k]
            for i in positions:
                if node.kind == "op":
                    yield inst, k, i
                elif node.kind == "call":
                    yield from self._takers(inst.kids[k], inst.kids[k].graph.param_value(i))

    def _node(self, inst: Instance, k: int) -> str:
        node = inst.graph.nodes[k]
        text = f"{self.scene.name(inst)}/{node.label}"
        if node.kind == "call":
            return f"{text} (call {self.scene.name(inst.kids[k])})"
        return text

    # where it goes ---------------------------------------------------------------------

    def _users(self) -> Iterator[tuple[str, str]]:
        for k, positions in self.inst.graph.uses[self.v]:
            for i in positions:
                form = self.decision.needs(self.inst, k, i, self.value.mesh)
                yield self._node(self.inst, k), placement_text(form)

    def _moves(self) -> Iterator[Move]:
        users = list(self._users())
        for have, want in moves_of(self.decision, self.inst, self.v):
            text = placement_text(want)
            steps = conversions(self.decision, self.inst, self.v, have, want)
            yield Move(
                placement_text(have),
                text,
                tuple(Collective(name, axis, 1, sent) for (name, axis), sent in steps),
                tuple(dict.fromkeys(user for user, form in users if form == text)),
            )

    def _specialisations(self) -> Iterator[tuple[str, str]]:
        if self.inst.graph.public:
            return
        for inst in self.scene.specialisations(self.target.function):
            form = self.decision.route(inst, self.v).root
            yield self.scene.name(inst), placement_text(form)

    # what else would cost --------------------------------------------------------------

    def _alternatives(self, now: Traffic, reasons: tuple[AxisReason, ...]) -> Iterator[Alternative]:
        """Every other label along every axis, each solved for."""
        var = self._variable()
        if var is None:
            return
        fn = self.scene.mod[self.target.function]
        binding = annotation_of(fn, var)
        labels: OpenLabels = (None,) * len(self.axes)
        if binding is not None:
            labels = annotated_labels(fn, binding)
        for i in range(len(self.axes)):
            claims = {label for label, _ in reasons[i].claims}
            current = self.form[i] if labels[i] is None else labels[i]
            choices: list[int | None] = [*range(len(self.value.shape)), R]
            if labels[i] is not None:
                choices.append(None)
            for label in choices:
                if label == current:
                    continue
                if label is not None and label >= 0:
                    ranks, taken = self._ranks(i), self._taken(label, i)
                    if not fits(self.value.shape[label], ranks, taken, True):
                        text = placement_text((label,))
                        why = self._size_obstacle(label, i)
                        asked = text in claims
                        yield Alternative(
                            self._name(i), text, text, asked, None, None, impossible=why
                        )
                        continue
                wanted = (*labels[:i], label, *labels[i + 1 :])
                yield self._alternative(var, wanted, i, now, claims)

    def _variable(self) -> Any:
        """A variable of the module that holds exactly this value."""
        g = self.inst.graph
        known = self.target.var is not None
        if known and g.env.get(handle(self.target.var)) == (self.v,):
            return self.target.var
        keys = (key for key, leaves in g.env.items() if leaves == (self.v,))
        return next((g.variables[key] for key in keys), None)

    def _alternative(
        self, var: Any, labels: OpenLabels, i: int, now: Traffic, claims: set[str]
    ) -> Alternative:
        """The module with the value annotated so, solved."""
        label, name = labels[i], self._name(i)
        text = "?" if label is None else placement_text((label,))
        try:
            other = annotate_otherwise(
                self.scene.mod, self.target.function, var, self.value.mesh, labels
            )
            decision = propagate(other, self.costs)
        except DistIRError as error:  # the answer to what this placement would cost: it cannot be
            why = f"{error.code} {error.what}"
            return Alternative(name, text, text, text in claims, None, None, impossible=why)
        then = traffic_of(decision)
        becomes = text
        if label is None or any(var.same_as(p) for p in other[self.target.function].params):
            becomes = self._found_label(other, decision, i)
        kinds = sorted({*now.counts, *then.counts})
        changes = [
            Collective(
                kind,
                axis,
                then.counts[kind, axis] - now.counts[kind, axis],
                then.wire_bytes[kind, axis] - now.wire_bytes[kind, axis],
            )
            for kind, axis in kinds
        ]
        weights = decision.conversions.costs
        return Alternative(
            name,
            text,
            becomes,
            text in claims or label in (None, R),
            price_bytes(then, weights) - price_bytes(now, weights),
            cost_bytes(decision) - cost_bytes(self.decision),
            then.total_wire_bytes - now.total_wire_bytes,
            then.flops - now.flops,
            then.memory_bytes - now.memory_bytes,
            tuple(c for c in changes if c.count or c.wire_bytes),
        )

    def _found_label(self, other: ir.IRModule, decision: Decision, i: int) -> str:
        """Label the value gets along axis ``i``; its number is still the same."""
        found = [
            placement_text((decision.route(inst, self.v).root[i],))
            for inst in Scene(other, decision).specialisations(self.target.function)
        ]
        return " or ".join(sorted(set(found)))


def cost_bytes(decision: Decision) -> float:
    """Propagation's cost of a decision, in bytes on the wire."""
    costs = decision.conversions.costs
    return (decision.cost << costs.shift) / costs.wire
