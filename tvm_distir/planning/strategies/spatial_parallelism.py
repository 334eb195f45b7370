# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Spatial parallel: compute some rows of every image on each device of the axis."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.ir import R
from tvm_distir.core.plan import Plan, data_positions
from tvm_distir.support import PlanError

from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    entries,
    mesh_axis,
    names_of,
    parameter_rule,
    tensor_parameters,
)
from .registry import plan_maker

IMAGE_NDIM = 4
ROWS_DIM = 2


@plan_maker
def spatial_parallel(
    mod: ir.IRModule, mesh: MeshLike, axis: str = "sp", dim: int = ROWS_DIM
) -> Plan:
    """Plan that shards the rows of images over a mesh axis and replicates the weights.

    Images are the data inputs of four dims. Convolutions and pools then exchange the rows at
    the borders with their neighbours; where rows run out, propagation goes on in another way.

    Parameters
    ----------
    mod : IRModule
        Any model of images, at level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open.
    dim : int
        The sharded dim: 2 for rows and 3 for columns of (batch, channels, rows, columns).

    Returns
    -------
    Plan
        One rule per parameter.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0231 a dim that images do not have; DIST0233 no data input is an image.
    """
    spec = as_mesh_spec(mesh)
    number = mesh_axis(spec, axis, "spatial_parallel")
    if not 0 <= dim < IMAGE_NDIM:
        raise PlanError(
            "DIST0231", f"dim={dim} is not a dim of an image",
            location='strategy "spatial_parallel"', remedy=f"Use the default, {ROWS_DIM}.",
        )  # fmt: skip
    rules, images, seen = [], 0, list[Parameter]()
    for name, fn, rule_name in entries(mod):
        data = data_positions(fn, name)
        for parameter in tensor_parameters(name, fn, rule_name):
            is_data = parameter.position in data
            is_image = is_data and parameter.ndim == IMAGE_NDIM
            seen += [parameter] * is_data
            images += is_image
            label = dim if is_image else R
            rules.append(parameter_rule(parameter, spec, {number: label}, stationary=not is_data))
    if not images:
        raise PlanError(
            "DIST0233", f"no data input has four dims: {names_of(seen) or 'there is none'}",
            location="main (spatial_parallel)", remedy='Shard the batch instead: "data_parallel".',
        )  # fmt: skip
    return Plan((spec,), tuple(rules))
