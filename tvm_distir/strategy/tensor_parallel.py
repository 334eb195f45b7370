# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel for any model: weight placements from the sharding rules alone.

Every weight may be sharded on any of its dims or replicated, and is used as it lies. The exact
labelling of propagation picks, at given prices of a byte held and of an operation, what is
cheapest together with the bytes sent (Lagrange multipliers of the two bounds). The strategy
looks for the lowest prices that meet the bounds: what is left then moves the fewest bytes.
No name of a parameter, an op or a model plays a part.
"""

from __future__ import annotations

import glob
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir

from ..errors import PlanError
from ..ir import R
from ..ir.branches import lift_branches
from ..ir.types import value_types
from ..plan import Plan, Rule
from ..plan.matching import bindings_of
from ..propagation import Costs
from ..propagation.explore import Explorer, Footprint, Labels, Pin, Trial
from .facts import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    data_positions,
    entries,
    mesh_axis,
    one_axis,
    parameter_rule,
    tensor_parameters,
)
from .registry import register_strategy
from .taken import avoid, taken_dims

SLACK_PERCENT = 10
"""How much more than an equal share a device may hold and compute."""

PRICES = (1.0, 8.0, 64.0, 512.0)
"""Prices tried until the bounds hold. At 1, all weights cost what all results cost to send."""

CUTS = 3
"""Of the prices by four, from the first that holds; then one step back by two."""

LOPSIDED = ((8.0, 1 / 64), (1 / 64, 8.0))
"""Factors on the two prices: one bound may hold by itself."""

LAUNCH = 1 << 20
"""Price of a collective, tried last: fewer of them where the bytes are the same."""

SHOWN = 4


@dataclass(frozen=True)
class Bounds:
    """What a device may hold and compute at most.

    Attributes
    ----------
    param_bytes, flops : int
        Bounds: the parts that can be sharded over the ranks, with slack, and the others.
    whole : mapping of str to str
        Weights no rule can shard, and why.
    whole_flops : mapping of str to int
        FLOPs no rule can shard, by op.
    """

    param_bytes: int
    flops: int
    whole: Mapping[str, str]
    whole_flops: Mapping[str, int]

    def excess(self, found: Footprint) -> float:
        """By how much a footprint is over the bounds, as a ratio; 0 within them."""
        held = found.param_bytes / max(self.param_bytes, 1)
        worked = found.flops / max(self.flops, 1)
        return max(held - 1, 0) + max(worked - 1, 0)


@register_strategy("tensor_parallel")
def tensor_parallel(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "tp",
    slack: int = SLACK_PERCENT,
    *,
    before: Plan | None = None,
) -> Plan:
    """Plan that shards the weights of any model over one mesh axis.

    Each device holds at most ``(1 + slack/100) / n`` of the bytes of the weights that the rules
    can shard, and does at most that part of the FLOPs of the ops they can shard; within that
    few bytes move: the fewest of all placements that are cheapest at some prices of a byte held
    and of a FLOP. Weights are stationary. Data inputs are whole along the axis, but what follows
    from them may be sharded: where that moves fewer bytes, light weights are replicated and the
    ops on them divide the batch. A model that cannot meet the bounds gets the nearest placement,
    and a warning that says why.

    Parameters
    ----------
    mod : IRModule
        Any model, at level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; other axes stay open.
    slack : int
        In percent.
    before : Plan, optional
        What other strategies want on this mesh: dims of weights that they use up are avoided.

    Returns
    -------
    Plan
        One rule per parameter; rules for values where the placement does not follow from these.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 a negative slack; DIST0233 no weight can be sharded.
    PropagationError
        DIST0401 an op without a rule; DIST0410 the model is too entangled to be solved.
    """
    spec = as_mesh_spec(mesh)
    number = mesh_axis(spec, axis, "tensor_parallel")
    if slack < 0:
        raise PlanError(
            "DIST0231",
            f"slack={slack} is negative",
            place='strategy "tensor_parallel"',
            remedy=f"Its default is {SLACK_PERCENT} (percent).",
        )
    ranks = spec.shape[number]
    parameters = {
        name: tensor_parameters(name, fn, rule_name) for name, fn, rule_name in entries(mod)
    }
    weights = _weights(mod, parameters)
    labels: Labels = {name: dict.fromkeys(found, R) for name, found in weights.items()}
    pins: tuple[Pin, ...] = ()
    if ranks > 1:
        explorer = Explorer(lift_branches(mod), axis, ranks, weights)
        bounds = _bounds(explorer, weights, ranks, slack)
        plain, prices = search(explorer, bounds)
        wide, _ = search(explorer, bounds, math.prod(spec.shape), prices)

        def order(found: Footprint) -> tuple[float, int]:
            return bounds.excess(found), found.wire_bytes

        trial = min(plain, wide, key=lambda one: order(one.footprint))
        trial = avoid(explorer, trial, weights, taken_dims(before, weights), bounds.param_bytes)
        pins = tuple(pin for pin in trial.pins if _stands(mod, pin))
        labels = trial.labels
        _report(trial, bounds, axis)
    rules = []
    for name, found in parameters.items():
        flat = {p.position: i for i, p in weights[name].items()}
        for parameter in found:
            held = parameter.position in flat
            label = labels[name][flat[parameter.position]] if held else R
            rules.append(parameter_rule(parameter, spec, number, label, stationary=held))
    named = {name: rule_name for name, _, rule_name in entries(mod)}
    for pin in pins:
        placement = one_axis(spec, number, pin.label)
        function = named.get(pin.function, pin.function)
        title = glob.escape(pin.variable)
        rules.append(Rule("value", title, placement, spec.name, function=function))
    return Plan((spec,), tuple(rules))


def _stands(mod: ir.IRModule, pin: Pin) -> bool:
    """Whether a value to be pinned has its name in the module too, not in lifted branches only."""
    names = [str(gv.name_hint) for gv in mod.functions]
    if pin.function not in names:
        return False
    return any(str(b.var.name) == pin.variable for b in bindings_of(mod[pin.function].body))


def _weights(
    mod: ir.IRModule, parameters: Mapping[str, Sequence[Parameter]]
) -> dict[str, dict[int, Parameter]]:
    """Return the weights of each entry by their number among its flat parameters."""
    found: dict[str, dict[int, Parameter]] = {}
    for name, known in parameters.items():
        fn = mod[name]
        data, first = set(data_positions(fn, name)), [0]
        for param in fn.params:
            first.append(first[-1] + len(value_types(param.ty)))
        found[name] = {first[p.position]: p for p in known if p.position not in data}
    return found


def bounds_of(mod: ir.IRModule, ranks: int, axis: str = "tp", slack: int = SLACK_PERCENT) -> Bounds:
    """Bounds that a plan of :func:`tensor_parallel` over ``ranks`` devices has to meet.

    Raises
    ------
    PlanError
        DIST0233 no weight can be sharded.
    PropagationError
        DIST0401 an op without a rule.
    """
    parameters = {
        name: tensor_parameters(name, fn, rule_name) for name, fn, rule_name in entries(mod)
    }
    weights = _weights(mod, parameters)
    explorer = Explorer(lift_branches(mod), axis, ranks, weights)
    return _bounds(explorer, weights, ranks, slack)


def _bounds(
    explorer: Explorer, weights: Mapping[str, Mapping[int, Parameter]], ranks: int, slack: int
) -> Bounds:
    """Return the bounds (DIST0233 when there is nothing to shard)."""
    whole: dict[str, str] = {}
    held, fixed = 0, 0
    for name, found in weights.items():
        for i, parameter in found.items():
            size = explorer.weight_bytes(name, i)
            reasons = explorer.obstacles(name, i)
            if reasons:
                whole[parameter.place] = "; ".join(reasons)
                fixed += size
            else:
                held += size
    if not held:
        why = [f"{place}: {reason}" for place, reason in list(whole.items())[:SHOWN]]
        raise PlanError(
            "DIST0233",
            "no weight can be sharded" + (f" ({'. '.join(why)})" if why else ": there is none"),
            place='strategy "tensor_parallel"',
            remedy='Shard the data instead: "data_parallel".',
        )
    whole_flops = explorer.whole_flops()
    alone, rest = explorer.alone().flops, sum(whole_flops.values())

    def share(amount: int) -> int:
        return amount * (100 + slack) // (100 * ranks)

    return Bounds(fixed + share(held), rest + share(alone - rest), whole, whole_flops)


def search(
    explorer: Explorer,
    bounds: Bounds,
    parts: int = 0,
    start: tuple[float, float] = (1.0, 1.0),
) -> tuple[Trial, tuple[float, float]]:
    """Find the labels that meet the bounds and move the fewest bytes.

    Both prices fall together until a bound breaks, then each alone. A duality gap may remain:
    placements that are cheapest at no prices are not seen. Trials are compared by excess
    over the bounds, then by bytes sent, pinned values, collectives, bytes held and FLOPs: both
    with pins, and as propagation settles the placements of the weights without any.

    Parameters
    ----------
    explorer : Explorer
    bounds : Bounds
    parts : int
        Not 0: ops may divide what follows from the data inputs (the batch), where this number
        divides it.
    start : (float, float)
        Prices to begin with.

    Returns
    -------
    Trial
    (float, float)
        The lowest prices, of bytes held and of FLOPs, that met the bounds.
    """
    alone = explorer.alone()
    known: dict[object, float] = {}
    ranked: list[tuple[tuple[float, ...], int, Trial]] = []

    def note(trial: Trial) -> float:
        f, excess = trial.footprint, bounds.excess(trial.footprint)
        order = (excess, f.wire_bytes, len(trial.pins), f.collectives, f.param_bytes, f.flops)
        ranked.append((order, len(ranked), trial))
        return excess

    def attempt(held: float, worked: float, launch: int = Costs.launch) -> bool:
        unit = Costs().wire * alone.wire_bytes
        costs = Costs(
            memory=1,
            launch=launch,
            hold=max(1, int(held * unit / max(alone.param_bytes, 1))),
            flop=max(1, int(worked * unit / max(alone.flops, 1))),
        )
        tried = explorer.best(costs, parts)
        labels = tuple((name, tuple(found.items())) for name, found in tried.labels.items())
        if labels not in known:
            known[labels] = note(explorer.settled(tried.labels))
        if tried.pins and (labels, tried.pins) not in known:
            known[labels, tried.pins] = note(tried)
        return min(known[labels], known.get((labels, tried.pins), math.inf)) == 0

    held, worked = start
    if start == (1.0, 1.0) or not attempt(held, worked):
        held = worked = next((price for price in PRICES if attempt(price, price)), PRICES[-1])
    scale = _lowest(1.0, lambda factor: attempt(held * factor, worked * factor))
    held, worked = held * scale, worked * scale
    for factors in LOPSIDED:
        attempt(held * factors[0], worked * factors[1])
    held = _lowest(held, lambda price: attempt(price, worked))
    worked = _lowest(worked, lambda price: attempt(held, price))
    attempt(held, worked, LAUNCH)
    return min(ranked, key=lambda item: item[:2])[2], (held, worked)


def _lowest(price: float, holds: Callable[[float], bool]) -> float:
    """Return the lowest price that holds, of those tried."""
    for _ in range(CUTS):
        if not holds(price / 4):
            return price / 2 if holds(price / 2) else price
        price /= 4
    return price


def _report(trial: Trial, bounds: Bounds, axis: str) -> None:
    """Warn of a bound that does not hold."""
    found, missed = trial.footprint, []
    if found.param_bytes > bounds.param_bytes:
        missed.append(f"holds {found.param_bytes} bytes of weights, not {bounds.param_bytes}")
    if found.flops > bounds.flops:
        missed.append(f"does {found.flops} FLOPs, not {bounds.flops}")
    if missed:
        whole = [f"{place} ({why})" for place, why in list(bounds.whole.items())[:SHOWN]]
        because = f" Weights no rule can shard: {', '.join(whole)}." if whole else ""
        warnings.warn(
            f'tensor_parallel over "{axis}": each device {" and ".join(missed)}.{because}',
            stacklevel=3,
        )


__all__ = ["Bounds", "bounds_of", "search", "tensor_parallel"]
