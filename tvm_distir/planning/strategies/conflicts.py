# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Resolve conflicts between strategies that want a value replicated or sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_distir.core.ir import R
from tvm_distir.core.plan import OpenLabels, Plan, PlanRule


def sharing_batches(plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, Plan]]:
    """Let plans that divide the batch over the same axis have it for both.

    ``data_parallel`` wants weights whole, ``expert_parallel``, which divides the batch too, wants
    those of experts cut: these are what it is asked for.
    """
    divided = [_divided(plan) for _, plan in plans] if len(plans) > 1 else [set()]
    out = []
    for i, (name, plan) in enumerate(plans):
        for k, (_, other) in enumerate(plans):
            if i != k and divided[i] & divided[k]:
                plan = resolve_conflicts(plan, other)
        out.append((name, plan))
    return out


def _divided(plan: Plan) -> set[tuple[object, ...]]:
    """Return the data that a plan shards, with the mesh axes."""
    return {
        (target_of(rule), axis, label)
        for rule in plan.rules
        if rule.kind == "param" and not rule.stationary
        for axis, label in enumerate(rule.placement)
        if label is not None and label >= 0
    }


def resolve_conflicts(plan: Plan, other: Plan) -> Plan:
    """Leave open the targets that a plan replicates and another shards."""
    cuts = {target_of(rule): rule.placement for rule in other.rules}
    rules = []
    for rule in plan.rules:
        target_labels = cuts.get(target_of(rule), (None,) * len(rule.placement))
        labels = tuple(
            None if label == R and cut is not None and cut >= 0 else label
            for label, cut in zip(rule.placement, target_labels, strict=True)
        )
        rules.append(placed(rule, labels))
    return replace(plan, rules=tuple(rules))


def placed(rule: PlanRule, placement: OpenLabels) -> PlanRule:
    """Return the rule with another placement, itself where it has that placement."""
    return rule if rule.placement == placement else replace(rule, placement=placement)


def target_of(rule: PlanRule) -> tuple[object, ...]:
    """Return the target of a rule; rules of strategies with the same target are merged."""
    return rule.kind, rule.function, rule.name, rule.index, rule.arg, rule.mesh
