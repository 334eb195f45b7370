# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What all stages share about the IR: meshes, placements, DTensor types and the ops we add."""

from __future__ import annotations

from . import ops
from .mesh import (
    axis_groups,
    axis_number,
    check_axes,
    device_coordinates,
    device_mesh,
    mesh_axes,
    mesh_devices,
    mesh_index,
    mesh_key,
    mesh_names,
    mesh_shape,
    meshes,
)
from .placement import (
    Labels,
    P,
    R,
    ceil_div,
    check_placement,
    labels_of,
    local_shape,
    parse_placement,
    placement_of,
    placement_text,
    replica_count,
    shard_counts,
    shard_number,
    shard_slices,
)
from .types import (
    as_dtensor,
    flat_types,
    is_private,
    static_shape,
    tensor_type,
)

__all__ = [
    "Labels",
    "P",
    "R",
    "as_dtensor",
    "axis_groups",
    "axis_number",
    "ceil_div",
    "check_axes",
    "check_placement",
    "device_coordinates",
    "device_mesh",
    "flat_types",
    "is_private",
    "labels_of",
    "local_shape",
    "mesh_axes",
    "mesh_devices",
    "mesh_index",
    "mesh_key",
    "mesh_names",
    "mesh_shape",
    "meshes",
    "ops",
    "parse_placement",
    "placement_of",
    "placement_text",
    "replica_count",
    "shard_counts",
    "shard_number",
    "shard_slices",
    "static_shape",
    "tensor_type",
]
