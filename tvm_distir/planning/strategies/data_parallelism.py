# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Data parallel: compute a part of the batch on each device of the axis."""

from __future__ import annotations

from collections.abc import Collection

from tvm import ir

from tvm_distir.core.ir import R
from tvm_distir.core.ir.operators import POOLS_DIM
from tvm_distir.core.plan import MeshSpec, Plan, data_positions, faults_of_plan
from tvm_distir.support import PlanError

from .cache_placement import cache_positions, check_pools
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    check_divisible,
    entries,
    mesh_axis,
    parameter_rule,
    same_size,
    tensor_parameters,
)
from .registry import plan_maker

BATCH_DIM = 0


@plan_maker
def data_parallel(mod: ir.IRModule, mesh: MeshLike, axis: str = "dp", dim: int = BATCH_DIM) -> Plan:
    """Plan that shards the batch of every data input and replicates the weights.

    The batch is dim 0 of the first data input that has dims. Data inputs whose dim 0 has the
    same size are sharded on it, and so are caches of requests, on their pools; others, and
    scalars, are replicated. Entry points of servers take the tokens of all sequences as
    ``(1, tokens, hidden)``: for them give ``dim=1``. Weights are
    replicated and stationary. Which parameters are data: see :func:`.data_positions`.

    Parameters
    ----------
    mod : IRModule
        Any model, at level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open.
    dim : int
        The dim of data inputs that is the batch.

    Returns
    -------
    Plan
        One rule per parameter.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 no data input with a batch; DIST0234 the batch is not divisible by the axis;
        of all entries at once; DIST0231 a negative dim.
    """
    spec = as_mesh_spec(mesh)
    if dim < 0:
        raise PlanError(
            "DIST0231", f"dim={dim} is negative",
            location='strategy "data_parallel"', remedy="Count dims from 0.",
        )  # fmt: skip
    number = mesh_axis(spec, axis, "data_parallel")
    rules, faults = [], faults_of_plan('strategy "data_parallel"')
    for name, fn, rule_name in entries(mod):
        parameters = tensor_parameters(name, fn, rule_name)
        if not parameters:  # it creates an object, say
            continue
        data = data_positions(fn, name)
        batched: list[int] = []
        caches = cache_positions(mod, fn, parameters)
        with faults.gathered():
            chosen = [p for p in parameters if p.position in data]
            batched = batched_inputs(chosen, spec, axis, name, dim, caches)
        for parameter in parameters:
            is_data, is_cache = parameter.position in data, parameter.position in caches
            label = R
            if parameter.position in batched:
                label = POOLS_DIM if is_cache else dim
            stays = is_cache or not is_data
            rules.append(parameter_rule(parameter, spec, {number: label}, stationary=stays))
    faults.raise_all()
    return Plan((spec,), tuple(rules))


def batched_inputs(
    data: list[Parameter],
    mesh: MeshSpec,
    axis: str,
    name: str,
    dim: int = BATCH_DIM,
    caches: Collection[int] = (),
) -> list[int]:
    """Return the positions of the data inputs that have the batch.

    Parameters
    ----------
    data : list of Parameter
        The data inputs of an entry; the batch is a dim of the first that has it.
    mesh : MeshSpec
    axis : str
        The axis that is to divide the batch.
    name : str
        The name of the entry, for messages.
    dim : int
        The number of the dim.
    caches : collection of int
        Positions of caches, which are sharded with the requests, by their pools.

    Raises
    ------
    PlanError
        DIST0233 no data input with a batch; DIST0234 the batch, or the number of pools, is not
        divisible by the axis.
    """
    for parameter in data:
        if parameter.position in caches:
            check_pools(parameter, mesh, axis)
    batched = [p for p in data if p.shape is not None and len(p.shape) > dim]
    batch = _batch_input(batched, name, dim)
    size = batch.shape[dim] if batch.shape else None
    tokens = (batch.shape or ())[1:2] if dim == 0 and size == 1 else ()
    remedy = f"Dim 1 has {tokens[0]}: shard it by data_parallel:dim=1." if tokens else None
    check_divisible(size, mesh.axes[axis], "the batch", axis, batch.location, remedy)
    return [
        p.position
        for p in batched
        if p.shape
        and (mesh.axes[axis] > 1 if p.position in caches else same_size(p.shape[dim], size))
    ]


def _batch_input(batched: list[Parameter], name: str, dim: int) -> Parameter:
    if batched:
        return batched[0]
    dims = "one dim" if dim == 0 else f"{dim + 1} dims"
    problem = f"no data input has a batch: none is a tensor of known shape with at least {dims}"
    remedy = 'Name the data inputs in the function attribute "dist.inputs".'
    raise PlanError("DIST0233", problem, location=name, remedy=remedy)
