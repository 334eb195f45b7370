# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name what the axes of a plan do, in the words of trainers, and group plans that do the same.

Trainers choose placements by kinds of parallelism and their degrees alone. Plans of a search with
the same kinds and degrees are one plan for them, whatever the shape of the mesh is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from tvm import ir

from tvm_distir.core.ir import is_private, known_shape, relax_functions
from tvm_distir.core.ir.attributes import param_names, training_notes
from tvm_distir.core.plan import Plan, PlanRule, data_positions
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.planning.strategies.training_parts import noted_names

from .found_plan import FoundPlan, PlanGroup

_MOST = 0.5
"""A larger share of bytes or of values is most of them."""
_HIDDEN_NDIM = 3
"""Dims of activations, (batch, sequence, features), and of stacked weights of experts."""

Rules = dict[tuple[str, str | None, str], PlanRule]


@dataclass
class _AxisFacts:
    """Elements of parameters by kind, and values by dim, that a plan shards along an axis."""

    elements: Counter[str] = field(default_factory=Counter)
    data: Counter[int] = field(default_factory=Counter)
    values: Counter[int] = field(default_factory=Counter)

    def most_values(self, dim: int) -> bool:
        """Return whether most activations are sharded along a dim."""
        return self.values[dim] > _MOST * sum(self.values.values())


def parallelism_text(module: ir.IRModule, plan: Plan) -> str:
    """Return the kinds of parallelism of a plan and their degrees, as ``ZeRO-3/4 tensor/2``.

    Kinds are read from the rules, without propagation. An axis along which most activations are
    sharded by the batch is of data parallelism or, with most of the states or weights, of ZeRO; by
    the sequence, of context parallelism; others that shard weights are of tensor parallelism. Axes
    of the same kind are joined.

    Parameters
    ----------
    module : IRModule
        The training step that the plan is for.
    plan : Plan
        Empty text where it has several meshes, or a single device.
    """
    if len(plan.meshes) != 1 or plan.meshes[0].device_count == 1:
        return ""
    degrees: dict[str, int] = {}
    totals, axes = _facts(module, plan)
    for facts, size in zip(axes, plan.meshes[0].shape, strict=True):
        kind = _kind(facts, totals)
        if size > 1 and kind:
            degrees[kind] = degrees.get(kind, 1) * size
    return " ".join(f"{kind}/{degree}" for kind, degree in sorted(degrees.items())) or "replicated"


def _kind(facts: _AxisFacts, totals: Counter[str]) -> str:
    """Return the kind of parallelism of an axis, empty for none."""
    elements, known = facts.elements, any(facts.values.values())
    weights = elements["weights"] > _MOST * totals["weights"]
    by_batch = facts.most_values(0) if known else facts.data[0] > 0
    by_sequence = facts.data[1] > 0 and (facts.most_values(1) or not known)
    if not by_batch and not by_sequence:
        words = ["tensor", *(["sequence"] if facts.values[1] else [])]
        return "+".join(words) if elements["weights"] else ""
    words = [] if by_batch else ["context"]
    if elements["experts"] and (elements["stationary"] or not weights):
        words.append("expert")
    stage = 2 if elements["gradients"] else 1
    if weights or elements["states"] > _MOST * totals["states"]:
        words.append(f"ZeRO-{3 if weights else stage}")
    return "+".join(words) or "data"


def _facts(module: ir.IRModule, plan: Plan) -> tuple[Counter[str], list[_AxisFacts]]:
    """Return the elements of all parameters by kind, and what each axis shards."""
    totals: Counter[str] = Counter()
    axes = [_AxisFacts() for _ in plan.meshes[0].shape]
    rules: Rules = {(rule.kind, rule.function, rule.name): rule for rule in plan.rules}
    functions = [(str(gv.name_hint), fn) for gv, fn in relax_functions(module)]
    batches: set[int] = set()
    private = {name for name, fn in functions if is_private(fn)}
    for name, fn in functions:
        if name in private:
            continue
        data = set(data_positions(fn, name))
        states = {str(s) for names in training_notes(fn, "states").values() for s in names}
        for position, (text, var) in enumerate(zip(param_names(fn), fn.params, strict=True)):
            rule, shape = _rule(rules, "param", name, private, text), known_shape(var.ty)
            if rule is None or not shape:
                continue
            if position in data:
                batches.add(shape[0])
            kind = "data" if position in data else "states" if text in states else "weights"
            _count(totals, axes, rule, shape, kind)
    for name, fn in functions:
        gradients = {*noted_names(fn, "gradients").values(), *noted_names(fn, "terms").values()}
        for var in (*fn.params, *(binding.var for binding in all_bindings(fn.body))):
            rule, shape = (
                _rule(rules, "value", name, private, str(var.name)),
                known_shape(var.ty) or (),
            )
            is_activation = len(shape) == _HIDDEN_NDIM and shape[0] in batches
            for facts, label in zip(axes, rule.placement if rule else (), strict=False):
                if label is not None and is_activation:
                    facts.values[label] += 1
                if label is not None and label >= 0 and var.name in gradients:
                    facts.elements["gradients"] += 1
    return totals, axes


def _rule(rules: Rules, kind: str, function: str, private: Set[str], name: str) -> PlanRule | None:
    """Return the rule of a value or parameter; rules without a function are of entries."""
    entry = None if function in private else rules.get((kind, None, name))
    return rules.get((kind, function, name)) or entry


def _count(
    totals: Counter[str],
    axes: list[_AxisFacts],
    rule: PlanRule,
    shape: tuple[int, ...],
    kind: str,
) -> None:
    """Count a parameter of an entry function; stacked weights of experts are a kind of their own.

    Their states are left out: they are sharded as the experts are.
    """
    is_stacked = kind != "data" and len(shape) == _HIDDEN_NDIM
    if is_stacked:
        kind = "experts" if kind == "weights" else "expert states"
    size = math.prod(shape)
    totals[kind] += size
    for facts, label in zip(axes, rule.placement, strict=True):
        if label is None or label < 0:
            continue
        facts.elements[kind] += size
        if kind == "data":
            facts.data[label] += 1
        if kind == "experts" and rule.stationary:
            facts.elements["stationary"] += size


def grouped(
    plans: Sequence[FoundPlan], name_of: Callable[[FoundPlan], str], most: int
) -> tuple[PlanGroup, ...]:
    """Return groups of plans with the same parallelism and the same other choices.

    Parameters
    ----------
    plans : sequence of FoundPlan
        The fastest first.
    name_of : callable
        A function from a plan to its parallelism; plans without a name are alone.
    most : int
        The number of groups. Of the plans after them, only those of strategies are named.
    """
    groups: dict[tuple[object, ...], PlanGroup] = {}
    for number, plan in enumerate(plans):
        if len(groups) >= most and not plan.row.why:
            continue
        name, candidate = name_of(plan), plan.row.candidate
        choices = candidate.stages, candidate.micro_batches, candidate.chunks, candidate.recompute
        key = (name, *choices) if name else (number,)
        if key in groups:
            groups[key] = PlanGroup(name, (*groups[key].plans, plan))
        elif len(groups) < most:
            groups[key] = PlanGroup(name, (plan,))
    return tuple(groups.values())


def chosen(groups: Sequence[PlanGroup], most: int) -> tuple[FoundPlan, ...]:
    """Return so many plans, the fastest first: one of each group, then others of the groups."""
    firsts = [group.first for group in groups]
    others = [plan for group in groups for plan in group.plans[1:]]
    others.sort(key=lambda plan: (not plan.row.why, plan.time_s))
    return tuple(sorted([*firsts, *others][:most], key=lambda plan: plan.time_s))
