# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Group the names of the ``R.dist`` ops that move data by their effect; find free names."""

from __future__ import annotations

from collections.abc import Collection

COLLECTIVES: tuple[str, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "exchange",
)
"""Ops in which the devices of a group of a mesh send each other data. Each has a start."""

REDUCTIONS: tuple[str, ...] = ("all_reduce", "reduce_scatter")
"""The collectives that finish a reduction."""

TRANSFERS: tuple[str, ...] = ("send", "recv")
"""The two ends of a move between meshes."""

LOCAL_STEPS: tuple[str, ...] = ("local_slice", "partial")
"""Ops that change how a value lies without traffic."""

LOCAL_OPS: tuple[str, ...] = (*LOCAL_STEPS, "axis_index")
"""Ops that need a device's position in its group and no data of others."""

REDUCE_OPS: tuple[str, ...] = ("sum", "prod", "min", "max")
"""Kinds of reduction; their position is their code in a compiled call."""

PACKED_PREFIX = "tvm_distir.ccl."
"""Prefix of the packed functions that compiled code calls for these ops."""

PACKED_ARGS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("op",),
    "all_gather": ("dim",),
    "reduce_scatter": ("dim", "op"),
    "all_to_all": ("gather_dim", "split_dim"),
    "collective_permute": ("shift", "wrap"),
    "local_slice": ("dim",),
    "partial": ("op",),
    "axis_index": (),
}
"""Names of the integer arguments of packed functions, between ``group_size`` and ``out``."""

HOST_PREFIX = "tvm_distir.host."
"""Prefix of the packed functions that copy a tensor to the host's memory, ``store``, and back,
``fetch``: a tensor of the host, and memory of the device to be filled."""


def free_name(name: str, used_names: Collection[str]) -> str:
    """Return a name, with the first free number behind it where it is used."""
    number, free = 0, name
    while free in used_names:
        number += 1
        free = f"{name}_{number}"
    return free


def new_name(name: str, used_names: set[str]) -> str:
    """Return a free name, which is used from now on."""
    free = free_name(name, used_names)
    used_names.add(free)
    return free


def first_or_new_name(name: str, used_names: set[str], reserved: set[str]) -> str:
    """Return a name, or where it is used a new one that is not reserved; it is used from now on."""
    free = free_name(name, used_names | reserved) if name in used_names else name
    used_names.add(free)
    return free


def relax_names(words: str) -> list[str]:
    """Return the full op names of a list of words."""
    return [f"relax.{word}" for word in words.split()]


def each_rank(name: str) -> list[str]:
    """Return the names of an op of 1, 2 and 3 spatial dims; ``{}`` stands for their number."""
    return [name.format(count) for count in (1, 2, 3)]


CONVOLUTIONS = tuple(each_rank("relax.nn.conv{}d"))
TRANSPOSED = tuple(each_rank("relax.nn.conv{}d_transpose"))
AVERAGES = tuple(each_rank("relax.nn.avg_pool{}d"))
