# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Avoid the dims of weights that other strategies have sharded already.

A dim may be shared by several mesh axes where it divides by all of them. Eight experts over eight
devices are occupied: another axis has to shard another dim.
"""

from __future__ import annotations

import glob
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from tvm_distir.core.ir import R
from tvm_distir.core.plan import Plan, PlanRule
from tvm_distir.core.propagation import CandidatePlacement, PlacementSearch, WeightLabels

from .model_info import Parameter

Weights: TypeAlias = Mapping[str, Mapping[int, Parameter]]
"""The weights of each entry function, by their flat number among its parameters."""

MOST_TRIALS = 100


def occupied_dims(
    before: Plan | None, weights: Weights, without: Collection[str] = ()
) -> dict[tuple[str, int, int], int]:
    """Return into how many parts a plan shards dims of weights.

    Parameters
    ----------
    before : Plan or None
    weights : mapping
    without : collection of str, optional
        Mesh axes that do not count.

    Returns
    -------
    dict of (str, int, int) to int
        Entry, flat number and dim of what is cut, to the number of parts.
    """
    occupied: dict[tuple[str, int, int], int] = {}
    if before is None:
        return occupied
    for name, known in weights.items():
        for i, rule in weight_rules(before, known).items():
            axes = before.mesh(rule.mesh).axes.items()
            for label, (axis, count) in zip(rule.placement, axes, strict=True):
                if label is not None and label >= 0 and axis not in without:
                    occupied[name, i, label] = occupied.get((name, i, label), 1) * count
    return occupied


def weight_rules(plan: Plan, weights: Mapping[int, Parameter]) -> dict[int, PlanRule]:
    """Return the rules that a plan has for weights of an entry function, by their number."""
    rules = {(rule.function, rule.name): rule for rule in plan.rules if rule.kind == "param"}
    names = {i: (weight.function, glob.escape(weight.name)) for i, weight in weights.items()}
    return {i: rules[name] for i, name in names.items() if name in rules}


def avoid_occupied(
    explorer: PlacementSearch,
    trial: CandidatePlacement,
    weights: Weights,
    occupied: Mapping[tuple[str, int, int], int],
    most_bytes: int,
) -> CandidatePlacement:
    """Move weights off dims that are used up, to where the fewest bytes move.

    Weights of the same shape on an occupied dim move together. All combinations are tried, as far
    as there are not too many; those that hold more than ``most_bytes`` come last. The FLOPs of the
    ops on these weights are divided whichever of their dims is sharded.

    Parameters
    ----------
    explorer : PlacementSearch
    trial : CandidatePlacement
        The placement chosen without regard to other strategies.
    weights, occupied : mapping
        See :func:`occupied_dims`.
    most_bytes : int
        The maximum bytes of the weights that a device may hold.
    """

    def used_up(name: str, i: int, label: int) -> bool:
        parts = occupied.get((name, i, label), 1) * explorer.ranks
        size = (weights[name][i].shape or ())[label] if label >= 0 else parts
        return parts > explorer.ranks and not (isinstance(size, int) and size % parts == 0)

    groups: dict[tuple[object, ...], list[tuple[str, int]]] = {}
    for name, dims in trial.labels.items():
        for i, label in dims.items():
            if used_up(name, i, label):
                shape = weights[name][i].shape or ()
                groups.setdefault((*shape, label), []).append((name, i))
    if not groups:
        return trial
    explorer.store(trial.stored)

    def choices(members: list[tuple[str, int]]) -> list[int]:
        name, i = members[0]
        dims = range(weights[name][i].ndim)
        free = [d for d in dims if not any(used_up(n, k, d) for n, k in members)]
        return [*[d for d in free if _divides(weights[name][i].shape, d, explorer.ranks)], R]

    def moved() -> Iterator[CandidatePlacement]:
        members = list(groups.values())
        options, trials = [], 1
        for group in members:
            offered = choices(group)
            offered = offered if trials * len(offered) <= MOST_TRIALS else [R]
            trials *= len(offered)
            options.append(offered)
        for combination in itertools.product(*options):
            labels: WeightLabels = {name: dict(dims) for name, dims in trial.labels.items()}
            for group, label in zip(members, combination, strict=True):
                for name, i in group:
                    labels[name][i] = label
            yield explorer.settled(labels)

    def order(candidate: CandidatePlacement) -> tuple[int, int]:
        cost = candidate.footprint
        return max(cost.param_bytes - most_bytes, 0), explorer.sent(cost)

    return min(moved(), key=order)


def _divides(shape: tuple[Any, ...] | None, dim: int, ranks: int) -> bool:
    size = shape[dim] if shape else None
    return isinstance(size, int) and size % ranks == 0
