# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ZeRO: shard over data-parallel devices what they would otherwise all store.

Stages as in Rajbhandari et al. 2020: the optimizer's states, then the gradients, then the weights
are stored in parts over the axes that divide the batch and the sequence. A plan places them;
propagation then gathers a weight before its use and reduces a gradient in parts.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence

from tvm import ir, relax

from tvm_distir.core.ir import P, R
from tvm_distir.core.plan import (
    MeshSpec,
    OpenLabels,
    Plan,
    PlanRule,
    data_positions,
    faults_of_plan,
)
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
    parameter_rule,
    some_axes,
    tensor_parameters,
)
from .occupied_dims import weight_rules
from .registry import plan_maker
from .state_axes import find_state_axes, labels_of_others, state_labels
from .state_placement import parameter_shapes, placement_of_state
from .training_parts import noted_names, states_of

STAGES = (1, 2, 3)


@plan_maker
def zero(
    mod: ir.IRModule, mesh: MeshLike, axis: str = "", stage: int = 3, *, others: Plan | None = None
) -> Plan:
    """Plan of data parallelism that shards the training state (ZeRO).

    The batch is sharded as :func:`.data_parallel` does. Stage 1 stores the
    optimizer's states in parts, stage 2 the gradients as well, stage 3 the weights as well. Parts
    are cut along the first dim of a weight that divides evenly, one that no other strategy cuts
    where there is one; a dim that does not divide is padded. Several axes cut the same dim, or
    different dims where no dim divides evenly by all of them. What has no dim for the devices of
    an axis is replicated along it. Weights stored in parts are not stationary: each is gathered
    where it is used, once, or once for either part of a step that reads its weights anew
    (:func:`~tvm_distir.transforms.training.train_step.train_step` with ``reread``). The layers of a
    training step gather the weights that they use, unless another strategy cuts weights too.

    Parameters
    ----------
    mod : IRModule
        A training step, at level 1; stage 3 takes any model.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axes that shard the state, as "dp/cp"; empty: "dp" and, in a training step, the
        axes along which another strategy shards the sequence. The others shard the batch;
        ``data_parallel`` can use them too.
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
        DIST0231 no such stage, or an axis twice; DIST0233 nothing to store in parts, or no data
        input with a batch; DIST0234 the batch is not divisible by the axis.
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
    axes = find_state_axes(mod, spec, axis, others, strategy)
    if stage not in STAGES:
        problem = f"stage={stage} is not 1, 2 or 3"
        remedy = "Use 1 to shard the optimizer states, 2 for gradients too, 3 for weights too."
        raise PlanError("DIST0231", problem, location=f'strategy "{strategy}"', remedy=remedy)
    numbers = [spec.axis_number(name) for name in axes.names]
    rules: list[PlanRule] = []
    parts, faults = 0, faults_of_plan(f'strategy "{strategy}"')
    in_parts: dict[str, list[int]] = {}
    batches: dict[str, int] = {}
    cut: dict[str, dict[int, OpenLabels]] = {}
    for name, fn, rule_name in entries(mod):
        parameters = tensor_parameters(name, fn, rule_name)
        inputs = data_positions(fn, name)
        chosen = [p for p in parameters if p.position in inputs]
        caches = cache_positions(mod, fn, chosen)
        batched: dict[int, list[int]] = {}
        for batch_axis in axes.batch:
            number = spec.axis_number(batch_axis)
            with faults.gathered():
                batched[number] = batched_inputs(chosen, spec, batch_axis, name, caches=caches)
                if batched[number]:
                    batches[name] = int(fn.params[batched[number][0]].ty.shape[BATCH_DIM])
        for parameter in chosen if batched else ():
            labels = {n: BATCH_DIM if parameter.position in b else R for n, b in batched.items()}
            stays = parameter.position in caches
            rules.append(parameter_rule(parameter, spec, labels, stationary=stays))
        weights = {p.position: p for p in parameters if p.position not in inputs}
        dims = state_labels(name, weights, spec, axes, others)
        in_parts[name] = [position for position in dims if dims[position]]
        fixed = labels_of_others(weights, numbers, others)
        stored = [*_stored(fn, weights, dims, fixed, spec, numbers, stage)]
        parts += sum(any(r.placement[number] != R for number in numbers) for r in stored)
        rules += stored
        cut[name] = _cut_twice(weights, dims, spec, others)
    if not parts:
        faults.add(_nothing(entries(mod)[0][0], stage, strategy))
    faults.raise_all()
    if stage == 3 and is_training_step(mod):
        samples = [spec.axis_number(name) for name in axes.batch]
        rules += gathered_in_layers(mod, in_parts, batches, spec, samples, numbers, cut)
    return Plan((spec,), tuple(rules))


def _stored(
    fn: relax.Function,
    weights: Mapping[int, Parameter],
    dims: Mapping[int, Mapping[int, int]],
    fixed: Mapping[int, Mapping[int, int]],
    mesh: MeshSpec,
    numbers: Sequence[int],
    stage: int,
) -> Iterator[PlanRule]:
    """Yield the rules of weights, gradients and states of a function.

    Gradients are partial sums along the axes, but for those along which another strategy shards
    the weight.
    """
    gradients, terms, states = noted_names(fn, "gradients"), noted_names(fn, "terms"), states_of(fn)
    shapes = parameter_shapes(fn)
    for position, weight in weights.items():
        labels = {**dict.fromkeys(numbers, R), **dims[position]}
        sharded = stage == 3 and bool(dims[position])
        stored = labels if sharded else dict.fromkeys(numbers, R)
        yield parameter_rule(weight, mesh, stored, stationary=not sharded)
        if not dims[position]:
            continue
        cut = some_axes(mesh, labels)
        for state in states.get(weight.name, ()):
            placement = placement_of_state(shapes, weight.name, state, cut, mesh)
            title = glob.escape(state)
            yield PlanRule("param", title, placement, mesh.name, function=weight.function)
        sums = {**dict.fromkeys(numbers, P), **fixed[position]}
        label = cut if stage > 1 else some_axes(mesh, sums)
        for named in (terms, gradients if stage > 1 else noted_names(fn, "sums")):
            if weight.name in named:
                title = glob.escape(named[weight.name])
                yield PlanRule("value", title, label, mesh.name, function=weight.function)


def _cut_twice(
    weights: Mapping[int, Parameter],
    dims: Mapping[int, Mapping[int, int]],
    mesh: MeshSpec,
    others: Plan | None,
) -> dict[int, OpenLabels]:
    """Return the labels of weights that are stored in parts and that others shard too."""
    cut: dict[int, OpenLabels] = {}
    for position, rule in weight_rules(others, weights).items() if others is not None else ():
        labels = {axis: label for axis, label in enumerate(rule.placement) if label is not None}
        if dims[position] and any(label != R for label in labels.values()):
            cut[position] = some_axes(mesh, {**labels, **dims[position]})
    return cut


def _nothing(name: str, stage: int, strategy: str) -> PlanError:
    if stage == 3:
        problem, remedy = (
            "no weight has a dim large enough for all devices of the axis",
            "Use fewer devices.",
        )
    else:
        problem = f"there are no optimizer states{' and no gradients' if stage == 2 else ''}"
        remedy = 'Use a training step (--train --optimizer adam), or use "zero:stage=3".'
    return PlanError("DIST0233", problem, location=f"{name} ({strategy})", remedy=remedy)
