# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expert parallel: place some of the experts of every layer on each device of an axis.

Experts are weights stacked along a dim that every consumer processes slice by slice: the rules of
the ops that multiply by them have a factor over this dim of the weight, of the other operand and of
the product, beside the dim that is summed over; or, where rows name their expert, a sum over this
dim alone. No name of a parameter, an op or a model plays a
part.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import R, value_types
from tvm_distir.core.ops import Factor, rule_of
from tvm_distir.core.plan import MeshSpec, Plan, data_positions, faults_of_plan
from tvm_distir.support import PlanError

from .cache_placement import cache_positions
from .consumers import Consumers, WeightConsumer
from .data_parallelism import BATCH_DIM, batched_inputs
from .expert_rows import rows_of_groups
from .head_groups import tensor_axes
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    check_divisible,
    entries,
    named_axes,
    names_of,
    parameter_rule,
    tensor_parameters,
)
from .occupied_dims import weight_rules
from .registry import plan_maker

_STACKED_NDIM = 3
"""Dims of stacked weights."""


@plan_maker
def expert_parallel(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "ep",
    data: bool = True,
    *,
    beside: Plan | None = None,
) -> Plan:
    """Plan that shards the experts of a mixture, and the batch, over one or several mesh axes.

    Stacked weights of experts are sharded on the dim that counts them; all other weights are
    replicated; all are stationary. With ``data`` the batch is sharded too: outside the experts
    the axis is one of data parallelism, and tokens go to their experts and come back by an
    all-to-all each, which propagation finds. Without, every device has all tokens, and the
    results of the experts are summed.

    An axis along which another strategy shards weights or the sequence does not shard the batch.
    It shards experts, which that strategy would divide otherwise, and nothing else: the experts
    of a device are whole, as with ``--expert-tensor-parallel-size 1`` of Megatron-LM.

    Parameters
    ----------
    mod : IRModule
        Any model with stacked experts, at level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axes, as "dp/tp"; other axes remain open.
    data : bool
        Whether the axes shard the batch as well.
    beside : Plan, optional
        What other strategies want on this mesh.

    Returns
    -------
    Plan
        One rule per parameter.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 an axis twice; DIST0233 no stacked experts, or no batch; DIST0234 experts or batch
        are not divisible by the axis; of all weights and entries at once.
    """
    spec = as_mesh_spec(mesh)
    named = [spec.axis_names[number] for number in named_axes(spec, axis, "expert_parallel")]
    numbers = sorted(number for name in named for number in tensor_axes(spec, name))
    consumers = Consumers(mod)
    rules, count, faults = [], 0, faults_of_plan('strategy "expert_parallel"')
    for name, fn, rule_name in entries(mod):
        parameters = tensor_parameters(name, fn, rule_name)
        inputs = data_positions(fn, name)
        chosen = [p for p in parameters if p.position in inputs]
        caches = cache_positions(mod, fn, chosen)
        used = _axes_of_others(parameters, {*inputs}, {*caches}, beside)
        batched: dict[int, list[int]] = {}
        for number in [n for n in numbers if data and n not in used]:
            with faults.gathered():
                batch_axis = spec.axis_names[number]
                batched[number] = batched_inputs(chosen, spec, batch_axis, name, caches=caches)
        for parameter in parameters:
            is_data, is_cache = parameter.position in inputs, parameter.position in caches
            labels = {
                number: BATCH_DIM if parameter.position in batched.get(number, ()) else R
                for number in numbers
                if not is_data or number not in used
            }
            if not is_data:
                dim = expert_dim(mod, consumers, parameter, fn.params[parameter.position])
                if dim is not None:
                    labels, count = dict.fromkeys(numbers, dim), count + 1
                    with faults.gathered():
                        _check_experts(parameter, dim, spec, numbers)
            rules.append(parameter_rule(parameter, spec, labels, not is_data or is_cache))
        rules += rows_of_groups(mod, spec, batched, used.intersection(numbers))
    if not count:
        faults.add(_no_experts(mod))
    faults.raise_all()
    return Plan((spec,), tuple(rules))


def _axes_of_others(
    parameters: Sequence[Parameter],
    inputs: Collection[int],
    caches: Collection[int],
    beside: Plan | None,
) -> set[int]:
    """Return the numbers of the axes along which a plan shards weights, or inputs by another dim.

    Parameters
    ----------
    parameters : sequence of Parameter
        Those of an entry.
    inputs, caches : collection of int
        The positions of data inputs, caches among them.
    beside : Plan or None
    """
    by_position = {parameter.position: parameter for parameter in parameters}
    rules = {} if beside is None else weight_rules(beside, by_position)
    return {
        number
        for position, rule in rules.items()
        if position not in caches
        for number, label in enumerate(rule.placement)
        if label is not None and label >= (BATCH_DIM + 1 if position in inputs else 0)
    }


def expert_dim(
    mod: ir.IRModule, consumers: Consumers, parameter: Parameter, var: Any
) -> int | None:
    """Return the dim of a weight that counts experts; None when there is none."""
    if parameter.ndim < _STACKED_NDIM:
        return None
    uses = consumers.uses(parameter.entry, var)
    for dim in range(parameter.ndim):
        if uses and all(_multiplies_slices(mod, use, dim) for use in uses):
            return dim
    return None


def _multiplies_slices(mod: ir.IRModule, use: WeightConsumer, dim: int) -> bool:
    """Return whether a consumer multiplies by each slice of the dim separately."""
    if not isinstance(use.value, ir.Call) or not isinstance(use.value.op, ir.Op):
        return False
    operands = _operands(use.value)
    here = [i for i, operand in enumerate(operands) if operand.same_as(use.operand)]
    if len(here) != 1 or dim not in use.dims:
        return False
    at, operand = use.dims.index(dim), here[0]
    factors = rule_of(use.value, mod).factors
    if _adds_slices(factors, operand, at):
        return True
    for other in range(len(operands)):
        if other == operand:
            continue
        walks = any(
            f.kind == "map"
            and f.ins[operand] == at
            and f.ins[other] is not None
            and all(out is not None for out in f.outs)
            for f in factors
        )
        summed = any(
            f.kind == "sum" and f.ins[operand] is not None and f.ins[other] is not None
            for f in factors
        )
        if walks and summed:
            return True
    return False


def _adds_slices(factors: Sequence[Factor], operand: int, at: int) -> bool:
    """Return whether each row of another operand is multiplied by the slice that its group names.

    A device that has some of the slices gives terms: the dim is summed over and is in the weight
    alone, beside a dim that is contracted with the other operand.
    """
    summed = [f for f in factors if f.kind == "sum" and f.ins[operand] is not None]
    alone = [f for f in summed if sum(i is not None for i in f.ins) == 1]
    return len(alone) == 1 and alone[0].ins[operand] == at and len(summed) > 1


def _operands(call: ir.Call) -> list[Any]:
    """Return the tensor operands of a call, tuples flattened, as its rule counts them."""
    leaves = []
    for arg in call.args:
        leaves += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return [leaf for leaf in leaves if value_types(leaf.ty)]


def _check_experts(parameter: Parameter, dim: int, mesh: MeshSpec, axes: Sequence[int]) -> None:
    count = math.prod(mesh.shape[number] for number in axes)
    size = parameter.shape[dim] if parameter.shape else None
    names = "/".join(mesh.axis_names[number] for number in axes)
    check_divisible(size, count, "the number of experts", names, parameter.location)


def _no_experts(mod: ir.IRModule) -> PlanError:
    name, fn, rule_name = entries(mod)[0]
    inputs = data_positions(fn, name)
    heavy = [
        p for p in tensor_parameters(name, fn, rule_name) if p.position not in inputs and p.ndim > 2
    ]
    looked = f" (considered {names_of(heavy)})" if heavy else ""
    return PlanError(
        "DIST0233", f"no weight stacks experts along a batch dim of a product{looked}",
        location=f"{name} (expert_parallel)",
        remedy="Keep the weights of experts in one tensor (experts, in, out), or use "
        '"tensor_parallel".',
    )  # fmt: skip
