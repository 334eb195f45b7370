# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the mesh axes that shard the training state, and the dims of weights along them.

Gradients are summed over the devices that divide the batch and over those that divide the
sequence. All of these can share the training state, as `dp_shard_cp` of torchtitan and the
distributed optimizer of Megatron-LM do.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tvm import ir
from tvm.relax import Var

from tvm_distir.core.ir import R
from tvm_distir.core.plan import MeshSpec, Plan, data_positions
from tvm_distir.transforms import is_training_step

from .consumers import Consumers
from .data_parallelism import BATCH_DIM
from .expert_parallelism import expert_dim
from .model_info import Parameter, entries, named_axes, tensor_parameters
from .occupied_dims import occupied_dims, weight_rules

DATA_AXIS = "dp"


@dataclass(frozen=True)
class StateAxes:
    """The mesh axes over which the training state is sharded.

    Attributes
    ----------
    names : tuple of str
        In the order of the mesh.
    batch : tuple of str
        Those of them that shard the batch; other strategies shard the sequence over the others.
    """

    names: tuple[str, ...]
    batch: tuple[str, ...]


def find_state_axes(
    mod: ir.IRModule, mesh: MeshSpec, option: str, others: Plan | None, strategy: str
) -> StateAxes:
    """Find the axes that an option names, or by default the axes that have the same weights.

    Parameters
    ----------
    mod : IRModule
    mesh : MeshSpec
    option : str
        Names of axes, separated by slashes. Empty: :data:`DATA_AXIS` and, in a training step,
        the axes along which other strategies shard inputs, but neither batch nor weights. A ring
        takes part with another axis only: what is gathered along it alone are keys and values.
    others : Plan or None
        The plan of the other strategies.
    strategy : str
        The strategy that messages name.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 an axis is given twice.
    """
    sequence = _sequence_axes(mod, mesh, others)
    excluded = {DATA_AXIS, *(_rings(others) if mesh.axes.get(DATA_AXIS, 1) == 1 else ())}
    shared = [axis for axis in sequence if axis not in excluded] if is_training_step(mod) else []
    numbers = named_axes(mesh, option or "/".join([DATA_AXIS, *shared]), strategy)
    ordered = tuple(mesh.axis_names[number] for number in numbers)
    return StateAxes(ordered, tuple(name for name in ordered if name not in sequence))


def _rings(others: Plan | None) -> tuple[str, ...]:
    """Return the axes of a plan that are rings."""
    return others.ring if others is not None else ()


def _sequence_axes(mod: ir.IRModule, mesh: MeshSpec, others: Plan | None) -> list[str]:
    """Return the axes along which a plan shards data inputs, but neither batch nor weights.

    Weights of experts do not count: the devices of the axis have other tokens in other layers.
    """
    placed = {(r.function, r.name): r for r in others.rules if r.kind == "param"} if others else {}
    dims: list[set[int]] = [set() for _ in mesh.axes]
    weights: list[list[tuple[Parameter, Var]]] = [[] for _ in mesh.axes]
    for name, fn, rule_name in entries(mod) if placed else ():
        data = data_positions(fn, name)
        for parameter in tensor_parameters(name, fn, rule_name):
            rule = placed.get((parameter.function, glob.escape(parameter.name)))
            for number, label in enumerate(rule.placement if rule is not None else ()):
                if label is None or label == R:
                    continue
                if parameter.position in data:
                    dims[number].add(label)
                else:
                    weights[number].append((parameter, fn.params[parameter.position]))
    numbers = [n for n, labels in enumerate(dims) if labels and BATCH_DIM not in labels]
    consumers = Consumers(mod) if any(weights[n] for n in numbers) else None
    return [
        mesh.axis_names[n]
        for n in numbers
        if consumers is None
        or all(expert_dim(mod, consumers, weight, var) is not None for weight, var in weights[n])
    ]


def state_labels(
    name: str,
    weights: Mapping[int, Parameter],
    mesh: MeshSpec,
    axes: StateAxes,
    others: Plan | None,
) -> dict[int, dict[int, int]]:
    """Choose the dims along which each weight of an entry is sharded.

    All axes shard the same dim if it is evenly divisible by their product, so that one collective
    per weight suffices. Otherwise each axis in turn, but for rings, takes the best dim that is
    left. A dim is padded for the first axis only. An axis along which another strategy shards a
    weight, as experts over the axis of the batch, shards its states along the same dim.

    Parameters
    ----------
    name : str
        The entry function.
    weights : mapping of int to Parameter
        Its weights, by position.
    mesh : MeshSpec
    axes : StateAxes
    others : Plan or None
        The plan of the other strategies, whose dims are avoided.

    Returns
    -------
    dict
        By position, the dim per number of a mesh axis; an axis that no dim fits is missing.
    """
    occupied = occupied_dims(others, {name: weights}, without=axes.names)
    numbers = [mesh.axis_number(axis) for axis in axes.names]
    sizes = [mesh.axes[axis] for axis in axes.names]
    fixed = labels_of_others(weights, numbers, others)
    chosen: dict[int, dict[int, int]] = {}
    for position, weight in weights.items():
        shape = weight.shape or ()
        parts = [occupied.get((name, position, dim), 1) for dim in range(len(shape))]
        labels = fixed[position]
        joint = _best_dim(shape, parts, math.prod(sizes), pads=len(sizes) == 1)
        if joint != R and {*labels.values()} <= {joint}:
            chosen[position] = dict.fromkeys(numbers, joint)
            continue
        chosen[position] = labels
        for number, dim in labels.items():
            parts[dim] *= mesh.shape[number]
        for axis, number, size in zip(axes.names, numbers, sizes, strict=True):
            if axis in _rings(others) or number in labels:
                continue
            dim = _best_dim(shape, parts, size, pads=not labels)
            if dim != R:
                labels[number] = dim
                parts[dim] *= size
    return chosen


def labels_of_others(
    weights: Mapping[int, Parameter], numbers: Collection[int], others: Plan | None
) -> dict[int, dict[int, int]]:
    """Return the dims that other strategies shard of each weight along axes, by axis number."""
    rules = weight_rules(others, weights) if others is not None else {}
    placements = {position: rules[position].placement for position in rules}
    return {
        position: {
            number: label
            for number, label in enumerate(placements.get(position, ()))
            if number in numbers and label is not None and label >= 0
        }
        for position in weights
    }


def _best_dim(shape: tuple[object, ...], parts: list[int], ranks: int, pads: bool) -> int:
    """Return the best dim of a weight to shard over ``ranks`` devices, R where there is none.

    Parameters
    ----------
    shape : tuple
    parts : list of int
        Into how many parts each dim is sharded already.
    ranks : int
    pads : bool
        Whether a dim that is not evenly divisible may be padded.
    """
    ranked = []
    for dim, size in enumerate(shape):
        if not isinstance(size, int):
            continue
        even, shared = size % (ranks * parts[dim]) == 0, parts[dim] > 1
        if even or (pads and not shared and size > ranks):
            ranked.append((not even, shared, dim))
    return min(ranked, default=(True, True, R))[2]
