# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Resolve conflicts between strategies that want a value replicated or sharded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tvm_distir.core.ir import R
from tvm_distir.core.plan import OpenLabels, Plan, PlanRule

EXPERTS = "expert_parallel"


def agreeing(plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, Plan]]:
    """Let plans that divide the batch, or experts and other weights, over an axis have it for both.

    ``data_parallel`` wants weights whole, ``expert_parallel``, which divides the batch too, wants
    those of experts cut: these are what it is asked for. ``megatron`` wants experts cut in their
    width, and ``expert_parallel`` over the same axis cuts the dim that counts them instead.
    """
    divided = [_divided(plan) for _, plan in plans] if len(plans) > 1 else [set()]
    shared = {k: _shared_axes(plan) for k, (name, plan) in enumerate(plans) if name == EXPERTS}
    out = []
    for i, (name, plan) in enumerate(plans):
        for k, (_, other) in enumerate(plans):
            if i == k:
                continue
            if divided[i] & divided[k]:
                plan = resolve_conflicts(plan, other)
            if i in shared:
                plan = resolve_conflicts(plan, other, shared[i])
            elif k in shared:
                plan = resolve_conflicts(plan, other, shared[k], also_sharded=True)
        out.append((name, plan))
    return out


def _shared_axes(plan: Plan) -> set[int]:
    """Return the axes along which a plan of experts leaves the data to other strategies."""
    return {
        axis
        for rule in plan.rules
        if rule.kind == "param" and not rule.stationary
        for axis, label in enumerate(rule.placement)
        if label is None
    }


def _divided(plan: Plan) -> set[tuple[object, ...]]:
    """Return the data that a plan shards, with the mesh axes."""
    return {
        (target_of(rule), axis, label)
        for rule in plan.rules
        if rule.kind == "param" and not rule.stationary
        for axis, label in enumerate(rule.placement)
        if label is not None and label >= 0
    }


def resolve_conflicts(
    plan: Plan, other: Plan, axes: Collection[int] | None = None, also_sharded: bool = False
) -> Plan:
    """Leave open the targets that a plan replicates and another shards.

    Parameters
    ----------
    plan, other : Plan
    axes : collection of int, optional
        The numbers of the mesh axes; None: all of them.
    also_sharded : bool
        Whether to also leave open those that the plan shards along another dim.
    """
    cuts = {target_of(rule): rule.placement for rule in other.rules}
    rules = []
    for rule in plan.rules:
        target_labels = cuts.get(target_of(rule), (None,) * len(rule.placement))
        labels = tuple(
            None
            if (label == R or (also_sharded and label != cut))
            and (axes is None or axis in axes)
            and cut is not None
            and cut >= 0
            else label
            for axis, (label, cut) in enumerate(zip(rule.placement, target_labels, strict=True))
        )
        rules.append(placed(rule, labels))
    return replace(plan, rules=tuple(rules))


def placed(rule: PlanRule, placement: OpenLabels) -> PlanRule:
    """Return the rule with another placement, itself where it has that placement."""
    return rule if rule.placement == placement else replace(rule, placement=placement)


def target_of(rule: PlanRule) -> tuple[object, ...]:
    """Return the target of a rule; rules of strategies with the same target are merged."""
    return rule.kind, rule.function, rule.name, rule.index, rule.arg, rule.mesh
