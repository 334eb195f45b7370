# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the parts of a training step that strategies need: forward pass, weight updates.

A strategy places the weights by the forward pass alone. The new weights and the optimizer's
states are placed as their weights.
"""

from __future__ import annotations

import functools
import glob
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import relax_functions, unpack
from tvm_distir.core.ir.attributes import STAGE_KIND_ATTR, param_names, training_notes
from tvm_distir.core.plan import (
    ACTIVATION,
    GRADIENT,
    Pipeline,
    Plan,
    PlanRule,
    match_name,
    plain_name,
    policies_of,
)

from .state_placement import parameter_shapes, placement_of_state


def state_names(fn: relax.Function) -> set[str]:
    """Return the names of the parameters that are states of weights; none of other functions."""
    return {name for names in states_of(fn).values() for name in names}


def states_of(fn: relax.Function) -> dict[str, list[str]]:
    """Return the names of the optimizer's states of each weight; none of other functions."""
    return {w: [str(n) for n in names[:]] for w, names in training_notes(fn, "states").items()}


def new_names(mod: ir.IRModule) -> set[str]:
    """Return the names of the values of a training step that replace parameters."""
    return {
        str(value)
        for _, fn in relax_functions(mod)
        for value in training_notes(fn, "updated").values()
    }


def noted_names(fn: relax.Function, key: str) -> dict[str, str]:
    """Return the names of the values of weights that a function notes; none of other functions.

    ``gradients``; ``terms``: the gradients of micro-batches in pipelined steps, those of weights
    that other stages have too among them; ``sums`` of these terms over the micro-batches.
    """
    return {w: str(n) for w, n in training_notes(fn, key).items()}


def boundary_positions(fn: relax.Function) -> list[int]:
    """Return the parameters of a stage's function that come from other stages, or none."""
    attrs: Any = fn.attrs or {}
    notes = (
        list(map(str, unpack(attrs[STAGE_KIND_ATTR]["params"]))) if STAGE_KIND_ATTR in attrs else []
    )
    return [i for i, n in enumerate(notes) if n.partition(":")[0] in (ACTIVATION, GRADIENT)]


_escape = functools.lru_cache(maxsize=1 << 16)(glob.escape)


class _Finder:
    """Lookup of the last rule that matches a parameter, with exact names first."""

    def __init__(self, rules: Sequence[PlanRule]) -> None:
        self.exact = {rule.name: (i, rule) for i, rule in enumerate(rules)}
        self.patterns = [(i, r) for i, r in enumerate(rules) if "*" in r.name or "?" in r.name]

    @staticmethod
    def of(rules: Sequence[PlanRule], function: str) -> _Finder:
        """Make the lookup among the rules for parameters of a function."""
        return _Finder([r for r in rules if r.kind == "param" and r.function in (None, function)])

    def __call__(self, parameter: str) -> PlanRule | None:
        matches = [r for r in self.patterns if match_name(r[1].name, parameter)]
        return max([*matches, *self._named(parameter)], key=lambda r: r[0], default=(0, None))[1]

    def exactly(self, parameter: str) -> PlanRule | None:
        """Return the last rule that gives the parameter's name."""
        return max(self._named(parameter), key=lambda r: r[0], default=(0, None))[1]

    def _named(self, parameter: str) -> list[tuple[int, PlanRule]]:
        names = {parameter, plain_name(parameter), _escape(parameter)}
        return [self.exact[name] for name in names if name in self.exact]


def with_updates(mod: ir.IRModule, plan: Plan) -> Plan:
    """Place new weights and optimizer states of a training step as a plan places the weights.

    Parameters
    ----------
    mod : IRModule
        Any module, at level 1.
    plan : Plan
        The plan; of several rules that match a weight the last counts.

    Returns
    -------
    Plan
        A plan with more rules: a ``param`` rule per state that the plan does not name itself, a
        ``value`` rule per new weight and state, and per weight that the backward pass reads again:
        as stationary as the weight. In a pipelined step a value that goes to another stage is
        placed as that stage takes it.
    """
    rules = list(plan.rules)
    for gv, fn in mod.functions.items():
        updated = training_notes(fn, "updated") if isinstance(fn, relax.Function) else {}
        if not updated:
            continue
        states, gathered_twice = training_notes(fn, "states"), training_notes(fn, "again")
        find, shapes = _Finder.of(rules, str(gv.name_hint)), parameter_shapes(fn)
        for parameter in param_names(fn):
            rule = find(parameter)
            if rule is None or parameter not in updated:
                continue
            if parameter in gathered_twice:
                rules.append(replace(rule, kind="value", name=str(gathered_twice[parameter])))
            values = [(str(updated[parameter]), rule)]
            for state in map(str, states.get(parameter, ())[:]):
                placed = find.exactly(state)
                if placed is None:
                    labels, mesh = rule.placement, plan.mesh(rule.mesh)
                    labels = placement_of_state(shapes, parameter, state, labels, mesh)
                    placed = replace(rule, name=_escape(state), placement=labels)
                    rules.append(placed)
                values.append((str(updated[state]), placed))
            rules.extend(
                PlanRule("value", value, like.placement, like.mesh, function=like.function)
                for value, like in values
            )
    rules += _between_stages(mod, rules)
    return replace(plan, rules=tuple(rules), recompute=policies_of(mod) or plan.recompute)


def _between_stages(mod: ir.IRModule, rules: Sequence[PlanRule]) -> list[PlanRule]:
    """Return the rules for values sent between stages, where there are some for parameters."""
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return []
    stages, rules_of = pipeline.stages, {}
    finder_of = functools.cache(functools.partial(_Finder.of, rules))
    meshes, ranks = pipeline.schedule.meshes, pipeline.schedule.rank_of
    count = len(stages)
    beside = [(i, j) for i in range(count) for j in (i - 1, i + 1) if 0 <= j < count]
    for source, target in beside:
        if meshes and meshes[ranks[source]] != meshes[ranks[target]]:
            continue
        maker, reader = mod[stages[source].function], mod[stages[target].function]
        kind = ACTIVATION if source < target else GRADIENT
        names = dict(zip(stages[target].params, param_names(reader), strict=True))
        find = finder_of(stages[target].function)
        values = unpack(maker.attrs[STAGE_KIND_ATTR]["values"])
        for slot, value in zip(stages[source].results, values, strict=True):
            rule = find(names[slot]) if slot.startswith(f"{kind}:") else None
            if rule is not None:
                key = (stages[source].function, str(value))
                rules_of[key] = PlanRule(
                    "value", key[1], rule.placement, rule.mesh, function=key[0]
                )
    known = {(r.function, r.name) for r in rules if r.kind == "value"}
    return [rule for key, rule in rules_of.items() if key not in known]
