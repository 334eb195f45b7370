# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search for placements of weights within bounds that move the fewest bytes.

A stored byte and a FLOP get a price; the exact assignment of propagation minimizes their cost
together with the bytes sent (Lagrange multipliers of the two bounds). The prices fall as long as
the bounds hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tvm_distir.core.propagation import (
    CandidatePlacement,
    DeviceCost,
    PlacementSearch,
    WeightLabels,
)
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.support import PlanError

from .model_info import Parameter

SLACK_PERCENT = 10
"""The percentage by which a device may hold and compute more than an equal share."""

EXCHANGE_COSTS = (2.0, 8.0, 64.0, 512.0)
"""Multiples of the first prices tried until the bounds hold, where these do not."""

CUTS = 3
"""The maximum number of times that the first multiple that holds is divided by four; where that
fails, half of it is tried."""

LOPSIDED = ((8.0, 1 / 64), (1 / 64, 8.0))
"""Factors on the two prices: a bound may hold by itself."""

LAUNCH = 1 << 20
"""Price of a collective, tried last: fewer of them where the bytes are the same."""

SHOWN = 4
"""Weights that a message names."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on what a device holds and computes.

    Attributes
    ----------
    param_bytes, flops : int
        Bounds: the parts that can be cut over the ranks, with slack, and the others.
    replicated : mapping of str to str
        Weights that no op takes cut, and why. They count as cut all the same, where a dim has
        enough entries: they can lie cut and be gathered where they are used.
    unsharded_flops : mapping of str to int
        FLOPs no rule can shard, by op.
    """

    param_bytes: int
    flops: int
    replicated: Mapping[str, str]
    unsharded_flops: Mapping[str, int]

    def excess(self, cost: DeviceCost) -> float:
        """Return the ratio by which a device cost exceeds the bounds; 0 within them."""
        memory_share = cost.param_bytes / max(self.param_bytes, 1)
        worked = cost.flops / max(self.flops, 1)
        return max(memory_share - 1, 0) + max(worked - 1, 0)

    def order(self, explorer: PlacementSearch, trial: CandidatePlacement) -> tuple[float, int]:
        """Return the sort key of a trial: the excess over the bounds, then the bytes sent."""
        return self.excess(trial.footprint), explorer.sent(trial.footprint)


def bounds_for(
    explorer: PlacementSearch,
    weights: Mapping[str, Mapping[int, Parameter]],
    ranks: int,
    slack: int,
) -> Bounds:
    """Return the bounds (DIST0233 when no op takes any weight sharded)."""
    replicated: dict[str, str] = {}
    cut, fixed, used = 0, 0, False
    for name, parameters in weights.items():
        for i, parameter in parameters.items():
            reasons = explorer.obstacles(name, i)
            if reasons:
                replicated[parameter.location] = "; ".join(reasons)
            used = used or not reasons
            size = explorer.weight_bytes(name, i)
            if explorer.storage_dim(name, i) is None:
                fixed += size
            else:
                cut += size
    if not used:
        why = [f"{location}: {reason}" for location, reason in list(replicated.items())[:SHOWN]]
        raise PlanError(
            "DIST0233",
            "no weight can be sharded" + (f" ({'. '.join(why)})" if why else ": there is none"),
            location='strategy "tensor_parallel"',
            remedy='Shard the data instead: "data_parallel".',
        )  # fmt: skip
    unsharded_flops = explorer.unsharded_flops()
    alone, rest = explorer.alone().flops, sum(unsharded_flops.values())

    def share(amount: int) -> int:
        return amount * (100 + slack) // (100 * ranks)

    return Bounds(fixed + share(cut), rest + share(alone - rest), replicated, unsharded_flops)


def find(explorer: PlacementSearch, bounds: Bounds, parts: int) -> CandidatePlacement:
    """Find the best placement: weights used as placed, and, where that holds too much, stored.

    Parameters
    ----------
    explorer : PlacementSearch
    bounds : Bounds
    parts : int
        Devices of the mesh: what ops may divide the batch by.
    """
    with gc_paused():
        best = _used_as_they_lie(explorer, bounds, parts)
        over = best.footprint.param_bytes - bounds.param_bytes
        if over <= 0:
            return best
        for stored in _storable(explorer, best.labels, over):
            explorer.store(stored)
            trial = _used_as_they_lie(explorer, bounds, parts)
            best = min(best, trial, key=lambda t: bounds.order(explorer, t))
        explorer.store(best.stored)
        return best


def _used_as_they_lie(explorer: PlacementSearch, bounds: Bounds, parts: int) -> CandidatePlacement:
    plain, cost_tables = search(explorer, bounds)
    wide, _ = search(explorer, bounds, parts, cost_tables)
    return min(plain, wide, key=lambda trial: bounds.order(explorer, trial))


def _storable(explorer: PlacementSearch, labels: WeightLabels, over: int) -> list[WeightLabels]:
    """Return sets of weights to store sharded although no op uses them so: few, and all.

    Parameters
    ----------
    explorer : PlacementSearch
    labels : mapping
        The labels of the search.
    over : int
        Bytes too many.
    """
    saved: dict[tuple[str, int, int], int] = {}
    for name, dims in labels.items():
        for i in dims:
            dim = explorer.storage_dim(name, i)
            if dim is not None and explorer.obstacles(name, i):
                size = explorer.weight_bytes(name, i)
                saved[name, i, dim] = size - explorer.weight_bytes(name, i, dim)
    enough: list[tuple[str, int, int]] = []
    left = sorted(saved, key=lambda weight: (-saved[weight], weight))
    while over > 0 and left:
        fitting = [weight for weight in left if saved[weight] >= over]
        enough.append(fitting[-1] if fitting else left[0])
        left.remove(enough[-1])
        over -= saved[enough[-1]]
    sets = [enough, sorted(saved)] if left else [enough]
    return [
        {name: {i: dim for n, i, dim in chosen if n == name} for name in labels}
        for chosen in sets
        if chosen
    ]


def search(
    explorer: PlacementSearch,
    bounds: Bounds,
    parts: int = 0,
    start: tuple[float, float] = (1.0, 1.0),
) -> tuple[CandidatePlacement, tuple[float, float]]:
    """Find the labels that meet the bounds and move the fewest bytes.

    Both prices fall together until a bound breaks, then each alone. A duality gap may remain:
    placements that are cheapest at no prices are not seen. Trials are compared by excess
    over the bounds, then by bytes sent, pinned values, collectives, bytes held and FLOPs: both
    with pins, and as propagation settles the placements of the weights without any.

    Parameters
    ----------
    explorer : PlacementSearch
    bounds : Bounds
    parts : int
        Where it is not 0, ops may shard values that follow from the data inputs (the batch), if
        this number divides it.
    start : (float, float)
        Prices to begin with. At 1, all weights cost what all results cost to send.

    Returns
    -------
    CandidatePlacement
    (float, float)
        The lowest prices, of bytes held and of FLOPs, that met the bounds.
    """
    alone = explorer.alone()
    known: dict[object, float] = {}
    ranked: list[tuple[tuple[float, ...], int, CandidatePlacement]] = []

    def note(trial: CandidatePlacement) -> float:
        f, excess = trial.footprint, bounds.excess(trial.footprint)
        order = (excess, explorer.sent(f), len(trial.pins), f.collectives, f.param_bytes, f.flops)
        ranked.append((order, len(ranked), trial))
        return excess

    def attempt(memory_share: float, worked: float, launch: int = explorer.costs.launch) -> bool:
        unit = explorer.costs.wire * alone.sent_bytes
        costs = replace(
            explorer.costs,
            memory=1,
            launch=launch,
            hold=max(1, int(memory_share * unit / max(alone.param_bytes, 1))),
            flop=max(1, int(worked * unit / max(alone.flops, 1))),
        )
        tried = explorer.best(costs, parts)
        labels = tuple((name, tuple(dims.items())) for name, dims in tried.labels.items())
        if labels not in known:
            known[labels] = note(explorer.settled(tried.labels))
        if tried.pins and (labels, tried.pins) not in known:
            known[labels, tried.pins] = note(tried)
        return min(known[labels], known.get((labels, tried.pins), math.inf)) == 0

    memory_share, worked = start
    first = attempt(memory_share, worked)
    if not first:
        memory_share = worked = min(start)
    scale = (_lowest if first else _least)(lambda x: attempt(memory_share * x, worked * x))
    memory_share, worked = memory_share * scale, worked * scale
    for factors in LOPSIDED:
        attempt(memory_share * factors[0], worked * factors[1])
    memory_share *= _lowest(lambda x: attempt(memory_share * x, worked))
    worked *= _lowest(lambda x: attempt(memory_share, worked * x))
    attempt(memory_share, worked, max(LAUNCH, explorer.costs.launch))
    return min(ranked, key=lambda item: item[:2])[2], (memory_share, worked)


def _least(holds: Callable[[float], bool]) -> float:
    """Return the least multiple of prices that holds, of those tried above 1; or the largest."""
    failed = 1.0
    for multiple in EXCHANGE_COSTS:
        if holds(multiple):
            return _lowest(holds, multiple, failed)
        failed = multiple
    return failed


def _lowest(holds: Callable[[float], bool], multiple: float = 1.0, failed: float = 0.0) -> float:
    """Return the least multiple of prices that holds, of those tried: from one that does down.

    All are above a multiple that failed.
    """
    for _ in range(CUTS):
        if multiple / 4 <= failed or not holds(multiple / 4):
            return multiple / 2 if multiple / 2 > failed and holds(multiple / 2) else multiple
        multiple /= 4
    return multiple
