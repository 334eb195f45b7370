# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What all stages share about the IR: meshes, placements, DTensor types and the ops we add.

The names below load their modules when they are first used: the arithmetic of shards
(:mod:`.placement`) also works with TVM's runtime-only library, which has no IR.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .nodes import argument, handle, make_binding, make_call, make_var
    from .placement import (
        Labels,
        P,
        R,
        blocks_fault,
        ceil_div,
        check_placement,
        is_padded_inside,
        labels_of,
        local_shape,
        parse_placement,
        placement_of,
        placement_text,
        replica_count,
        shard_counts,
        shard_number,
        shard_range,
        shard_slices,
    )
    from .types import (
        as_dtensor,
        flat_types,
        is_private,
        known_shape,
        static_shape,
        tensor_type,
    )

_HOME = {
    "Labels": "placement",
    "P": "placement",
    "R": "placement",
    "argument": "nodes",
    "as_dtensor": "types",
    "axis_groups": "mesh",
    "axis_number": "mesh",
    "blocks_fault": "placement",
    "ceil_div": "placement",
    "check_axes": "mesh",
    "check_placement": "placement",
    "device_coordinates": "mesh",
    "device_mesh": "mesh",
    "flat_types": "types",
    "handle": "nodes",
    "is_padded_inside": "placement",
    "is_private": "types",
    "known_shape": "types",
    "labels_of": "placement",
    "local_shape": "placement",
    "make_binding": "nodes",
    "make_call": "nodes",
    "make_var": "nodes",
    "mesh_axes": "mesh",
    "mesh_devices": "mesh",
    "mesh_index": "mesh",
    "mesh_key": "mesh",
    "mesh_names": "mesh",
    "mesh_shape": "mesh",
    "meshes": "mesh",
    "parse_placement": "placement",
    "placement_of": "placement",
    "placement_text": "placement",
    "replica_count": "placement",
    "shard_counts": "placement",
    "shard_number": "placement",
    "shard_range": "placement",
    "shard_slices": "placement",
    "static_shape": "types",
    "tensor_type": "types",
}

__all__ = [
    "Labels",
    "P",
    "R",
    "argument",
    "as_dtensor",
    "axis_groups",
    "axis_number",
    "blocks_fault",
    "ceil_div",
    "check_axes",
    "check_placement",
    "device_coordinates",
    "device_mesh",
    "flat_types",
    "handle",
    "is_padded_inside",
    "is_private",
    "known_shape",
    "labels_of",
    "local_shape",
    "make_binding",
    "make_call",
    "make_var",
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
    "shard_range",
    "shard_slices",
    "static_shape",
    "tensor_type",
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module(".ops", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
