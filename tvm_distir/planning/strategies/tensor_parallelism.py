# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel for any model: shard weights by the sharding rules alone.

Every weight may be sharded on any of its dims or replicated, and is used as placed. The exact
assignment of propagation minimizes, at given prices of a stored byte and of an operation, their
cost together with the bytes sent (Lagrange multipliers of the two bounds). The strategy looks for
the lowest prices that meet the bounds: that assignment moves the fewest bytes.
No name of a parameter, an op or a model plays a part.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator, Mapping, Sequence

from tvm import ir

from tvm_distir.core.ir import R, axis_groups, lift_branches, relax_functions
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions
from tvm_distir.core.propagation import (
    CandidatePlacement,
    Costs,
    PlacementConstraint,
    PlacementSearch,
    WeightLabels,
)
from tvm_distir.core.rewriting import all_bindings, canonical
from tvm_distir.hardware import System, costs_of_axes, main_dtype
from tvm_distir.support import PlanError, warn

from .cache_placement import cache_positions, warn_of_full_caches
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    entries,
    flat_positions,
    mesh_axis,
    one_axis,
    parameter_rule,
    tensor_parameters,
)
from .occupied_dims import avoid_occupied, occupied_dims
from .registry import plan_maker
from .weight_search import SHOWN, SLACK_PERCENT, Bounds, bounds_for, find


@plan_maker
def tensor_parallel(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "tp",
    slack: int = SLACK_PERCENT,
    *,
    before: Plan | None = None,
    system: System | None = None,
) -> Plan:
    """Plan that shards the weights of any model over one mesh axis.

    Each device holds at most ``(1 + slack/100) / n`` of the bytes of the weights that have a dim
    for n devices, and does at most that part of the FLOPs of the ops that the rules can shard;
    within that few bytes move: the fewest of all placements that are cheapest at some prices of
    a byte held and of a FLOP. Weights are stationary, but for some of those that no op takes cut:
    where the bound asks for it they lie cut and are gathered where they are used. Data inputs
    are whole along the axis, but what follows from them may be sharded: where that moves fewer
    bytes, light weights are replicated and the ops on them divide the batch. A model that cannot
    meet the bounds gets the nearest placement, and a warning that says why. Caches of keys and
    values count as weights.

    Parameters
    ----------
    mod : IRModule
        Any model, at level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open.
    slack : int
        Percentage by which the memory and work of a device may exceed its share.
    before : Plan, optional
        What other strategies want on this mesh: dims of weights that they use up are avoided.
    system : System, optional
        Whose times decide between placements; None: bytes do.

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
        problem = f"slack={slack} is negative"
        remedy = f"Give a percentage of 0 or more, by default {SLACK_PERCENT}."
        raise PlanError("DIST0231", problem, location='strategy "tensor_parallel"', remedy=remedy)
    ranks = spec.shape[number]
    parameters = {
        name: tensor_parameters(name, fn, rule_name) for name, fn, rule_name in entries(mod)
    }
    weights = _weights(mod, parameters)
    labels: WeightLabels = {name: dict.fromkeys(numbers, R) for name, numbers in weights.items()}
    pins: tuple[PlacementConstraint, ...] = ()
    stored: WeightLabels = {}
    if ranks > 1:
        costs, lifted = _costs(mod, spec, axis, system), lift_branches(canonical(mod))
        explorer = PlacementSearch(lifted, axis, ranks, weights, costs)
        bounds = bounds_for(explorer, weights, ranks, slack)
        trial, occupied = (
            find(explorer, bounds, math.prod(spec.shape)),
            occupied_dims(before, weights),
        )
        trial = avoid_occupied(explorer, trial, weights, occupied, bounds.param_bytes)
        pins = _standing(mod, trial.pins)
        labels, stored = trial.labels, trial.stored
        _report(trial, bounds, axis)
        warn_of_full_caches(_full_caches(mod, parameters, weights, labels), "tensor_parallel", axis)
    rules = []
    for name, entry_parameters in parameters.items():
        flat = {p.position: i for i, p in weights[name].items()}
        for parameter in entry_parameters:
            i = flat.get(parameter.position)
            label = R if i is None else labels[name][i]
            is_stored = i is not None and i not in stored.get(name, ())
            rules.append(parameter_rule(parameter, spec, {number: label}, stationary=is_stored))
    rules += _pinned(mod, spec, number, pins)
    return Plan((spec,), tuple(rules))


def _pinned(
    mod: ir.IRModule, mesh: MeshSpec, number: int, pins: Sequence[PlacementConstraint]
) -> Iterator[PlanRule]:
    """Yield the rules of values that have a placement of their own."""
    named = {name: rule_name for name, _, rule_name in entries(mod)}
    for pin in pins:
        placement, title = one_axis(mesh, number, pin.label), glob.escape(pin.variable)
        function = named.get(pin.function, pin.function)
        yield PlanRule("value", title, placement, mesh.name, function=function)


def _costs(mod: ir.IRModule, mesh: MeshSpec, axis: str, system: System | None) -> Costs:
    """Return the weights along a single axis of a mesh."""
    if system is None:
        return Costs()
    groups = axis_groups(mesh.device_mesh(), (mesh.axis_number(axis),))
    return costs_of_axes(system, main_dtype(mod), [groups])


def _standing(
    mod: ir.IRModule, pins: Sequence[PlacementConstraint]
) -> tuple[PlacementConstraint, ...]:
    """Return the values to be pinned that the module has too, not only its lifted branches."""
    functions = {pin.function for pin in pins}
    names = {
        str(gv.name_hint): {str(b.var.name) for b in all_bindings(fn.body)}
        for gv, fn in relax_functions(mod)
        if str(gv.name_hint) in functions
    }
    return tuple(pin for pin in pins if pin.variable in names.get(pin.function, ()))


def _weights(
    mod: ir.IRModule, parameters: Mapping[str, Sequence[Parameter]]
) -> dict[str, dict[int, Parameter]]:
    """Return the weights and caches of each entry by their number among its flat parameters."""
    weights: dict[str, dict[int, Parameter]] = {}
    for name, known in parameters.items():
        fn = mod[name]
        data, first = set(data_positions(fn, name)), flat_positions(fn)
        data -= cache_positions(mod, fn, known)
        weights[name] = {first[p.position]: p for p in known if p.position not in data}
    return weights


def _full_caches(
    mod: ir.IRModule,
    parameters: Mapping[str, Sequence[Parameter]],
    weights: Mapping[str, Mapping[int, Parameter]],
    labels: WeightLabels,
) -> list[Parameter]:
    """Return the caches that every device stores in full."""
    result = []
    for name, known in parameters.items():
        caches = cache_positions(mod, mod[name], known)
        flat = weights[name].items()
        result += [p for i, p in flat if p.position in caches and labels[name][i] == R]
    return result


def _report(trial: CandidatePlacement, bounds: Bounds, axis: str) -> None:
    """Warn of a bound that does not hold."""
    cost, missed = trial.footprint, []
    if cost.param_bytes > bounds.param_bytes:
        missed.append(f"stores {cost.param_bytes} bytes of weights, not {bounds.param_bytes}")
    if cost.flops > bounds.flops:
        missed.append(f"does {cost.flops} FLOPs, not {bounds.flops}")
    if missed:
        replicated = [
            f"{location} ({why})" for location, why in list(bounds.replicated.items())[:SHOWN]
        ]
        because = (
            f" Weights that no op can use sharded: {', '.join(replicated)}." if replicated else ""
        )
        warn(
            f'tensor_parallel over "{axis}": each device {" and ".join(missed)}.{because}',
            stacklevel=3,
        )
