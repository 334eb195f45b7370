# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ZeRO: shard over data-parallel devices what they would otherwise all store.

Stages as in Rajbhandari et al. 2020: the optimizer's states, then the gradients, then the weights
are stored in parts over the axis that divides the batch. A plan places them; propagation then
gathers a weight before its use and reduces a gradient in parts.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping

from tvm import ir, relax

from tvm_distir.core import MeshSpec, Plan, PlanRule, R, data_positions, faults_of_plan
from tvm_distir.support import PlanError
from tvm_distir.transforms import is_training_step

from .cache_placement import cache_positions
from .data_parallelism import BATCH_DIM, batched_inputs
from .gathered_weights import gathered_in_layers
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    entries,
    mesh_axis,
    one_axis,
    parameter_rule,
    tensor_parameters,
)
from .occupied_dims import occupied_dims
from .registry import plan_maker
from .training_parts import gradient_names, states_of, term_names

STAGES = (1, 2, 3)


@plan_maker
def zero(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "dp",
    stage: int = 3,
    *,
    others: Plan | None = None,
) -> Plan:
    """Plan of data parallelism that shards the training state (ZeRO).

    The batch is sharded as :func:`~.data_parallel.data_parallel` does. Stage 1 stores the
    optimizer's states in parts, stage 2 the gradients as well, stage 3 the weights as well. Parts
    are cut along the first dim of a weight that divides evenly, one that no other strategy cuts
    where there is one; a dim that does not divide is padded. What has no dim for all devices
    stays whole. Weights stored in parts are not stationary: each is gathered where it is used,
    once, or once for either part of a step that reads its weights anew
    (:func:`~tvm_distir.transforms.training.train_step.train_step` with ``reread``). The layers of a
    training step gather the weights that they use, unless another strategy cuts weights too.

    Parameters
    ----------
    mod : IRModule
        A training step, at level 1; stage 3 takes any model.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open. ``data_parallel`` can use the same axis.
    stage : int
        The sharded state: 1 for optimizer states, 2 for gradients too, 3 for weights too.
    others : Plan, optional
        What the other strategies want on this mesh: their dims are avoided.

    Returns
    -------
    Plan
        One rule per parameter and optimizer state; rules for gradients from stage 2 on.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 no such stage; DIST0233 nothing to store in parts, or no data input with a batch;
        DIST0234 the batch is not divisible by the axis.
    """
    return stored_in_parts(mod, mesh, axis, stage, others, "zero")


def stored_in_parts(
    mod: ir.IRModule, mesh: MeshLike, axis: str, stage: int, others: Plan | None, strategy: str
) -> Plan:
    """Return the plan of :func:`zero`, with results of updates not yet placed.

    Parameters
    ----------
    mod, mesh, axis, stage, others
        The arguments, as :func:`zero` has them.
    strategy : str
        The strategy that messages name.
    """
    spec = as_mesh_spec(mesh)
    number = mesh_axis(spec, axis, strategy)
    if stage not in STAGES:
        raise PlanError(
            "DIST0231",
            f"stage={stage} is not 1, 2 or 3",
            place=f'strategy "{strategy}"',
            remedy="Use 1 to shard the optimizer states, 2 for gradients too, 3 for weights too.",
        )
    rules: list[PlanRule] = []
    parts, faults = 0, faults_of_plan(f'strategy "{strategy}"')
    in_parts: dict[str, list[int]] = {}
    batches: dict[str, int] = {}
    cut = False
    for name, fn, rule_name in entries(mod):
        parameters = tensor_parameters(name, fn, rule_name)
        inputs = data_positions(fn, name)
        chosen = [p for p in parameters if p.position in inputs]
        batched: list[int] = []
        caches = cache_positions(mod, fn, chosen)
        with faults.gathered():
            batched = batched_inputs(chosen, spec, axis, name, caches=caches)
        if batched:
            batches[name] = int(fn.params[batched[0]].ty.shape[BATCH_DIM])
        for parameter in chosen:
            label = BATCH_DIM if parameter.position in batched else R
            stays = parameter.position in caches
            rules.append(parameter_rule(parameter, spec, number, label, stationary=stays))
        weights = {p.position: p for p in parameters if p.position not in inputs}
        dims = _dims(name, weights, spec, axis, others)
        stored = [*_stored(fn, weights, dims, spec, number, stage)]
        parts += sum(r.placement[number] != R for r in stored)
        rules += stored
        in_parts[name] = [position for position, dim in dims.items() if dim != R]
        cut |= bool(occupied_dims(others, {name: weights}, without=axis))
    if not parts:
        faults.add(_nothing(entries(mod)[0][0], stage, strategy))
    faults.raise_all()
    if stage == 3 and not cut and is_training_step(mod):
        rules += gathered_in_layers(mod, in_parts, batches, spec, number)
    return Plan((spec,), tuple(rules))


def _stored(
    fn: relax.Function,
    weights: Mapping[int, Parameter],
    dims: Mapping[int, int],
    mesh: MeshSpec,
    number: int,
    stage: int,
) -> Iterator[PlanRule]:
    """Yield the rules of weights, gradients and states of a function."""
    gradients, terms, states = gradient_names(fn), term_names(fn), states_of(fn)
    for position, weight in weights.items():
        dim = dims[position]
        label = dim if stage == 3 else R
        yield parameter_rule(weight, mesh, number, label, stationary=label == R)
        if dim == R:
            continue
        cut = one_axis(mesh, number, dim)
        for state in states.get(weight.name, ()):
            title = glob.escape(state)
            yield PlanRule("param", title, cut, mesh.name, function=weight.function)
        for named in (terms, gradients) if stage > 1 else ():
            if weight.name in named:
                title = glob.escape(named[weight.name])
                yield PlanRule("value", title, cut, mesh.name, function=weight.function)


def _dims(
    name: str,
    weights: Mapping[int, Parameter],
    mesh: MeshSpec,
    axis: str,
    others: Plan | None,
) -> dict[int, int]:
    """Return the dim along which each weight is sharded, R where there is none."""
    occupied = occupied_dims(others, {name: weights}, without=axis)
    ranks = mesh.axes[axis]

    def rank(position: int, dim: int) -> tuple[bool, bool, int] | None:
        """Return the rank of a dim (lower is better), None where it cannot be sharded."""
        size = (weights[position].shape or ())[dim]
        cut = occupied.get((name, position, dim), 1)
        if not isinstance(size, int):
            return None
        even = size % (ranks * cut) == 0
        if not even and (cut > 1 or size <= ranks):
            return None
        return not even, cut > 1, dim

    dims = {}
    for position, weight in weights.items():
        ranked = [rank(position, dim) for dim in range(len(weight.shape or ()))]
        dims[position] = min((rank for rank in ranked if rank), default=(True, True, R))[2]
    return dims


def _nothing(name: str, stage: int, strategy: str) -> PlanError:
    if stage == 3:
        problem, remedy = (
            "no weight has a dim large enough for all devices of the axis",
            "Use fewer devices.",
        )
    else:
        problem = f"there are no optimizer states{' and no gradients' if stage == 2 else ''}"
        remedy = 'Use a training step (--train --optimizer adam), or use "zero:stage=3".'
    return PlanError("DIST0233", problem, place=f"{name} ({strategy})", remedy=remedy)


__all__ = ["stored_in_parts", "zero"]
