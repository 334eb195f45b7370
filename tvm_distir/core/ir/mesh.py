# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Construct device meshes and query their axis names, coordinates and rank groups."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.support import MAX_DEVICES, MAX_INT, MeshError, shortened

from .handles import handle

MESH_INFO = "mesh"
AXES_ATTR = "mesh_axes"
NAMES_ATTR = "mesh_names"
DEVICE_NUM_ATTR = "device_num"

MOST_KEYS = 64
MOST_DEVICES_KEPT = 1 << 12
"""Limits of the cache of mesh keys: the number of meshes and of devices of each."""

MeshKey = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and device ids of a mesh."""

_KEYS: dict[int, tuple[DeviceMesh, MeshKey]] = {}  # by handle
_turn = threading.Lock()


def check_axes(axes: Mapping[str, int], location: str = "mesh") -> None:
    """Refuse a mesh without axes, or with an axis whose size is not a positive integer."""
    if not axes:
        remedy = 'Name at least one axis: {"dp": 2}.'
        raise MeshError("DIST0201", "the mesh has no axis", location=location, remedy=remedy)
    for name, size in axes.items():
        if not isinstance(name, str) or not name:
            problem = f"{name!r} is not the name of an axis"
            raise MeshError("DIST0201", problem, location=location, remedy="Use an identifier.")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            size_text = shortened(size if isinstance(size, int) else repr(size))
            problem = f'axis "{shortened(name)}" has size {size_text}'
            raise MeshError(
                "DIST0201", problem, location=location, remedy="Give a positive integer."
            )
    if math.prod(axes.values()) > MAX_DEVICES:
        sizes = " x ".join(shortened(size) for size in axes.values())
        problem = f"a mesh of {sizes} devices is too large"
        remedy = f"A mesh has at most {MAX_DEVICES:,} devices."
        raise MeshError("DIST0201", problem, location=location, remedy=remedy)


def device_mesh(
    axes: Mapping[str, int] | Sequence[int],
    *,
    start: int = 0,
    device_ids: Sequence[int] | None = None,
) -> DeviceMesh:
    """Make a TVM ``DeviceMesh`` from named axes.

    Parameters
    ----------
    axes : mapping of str to int, or sequence of int
        Axis names and sizes, or sizes alone (``[2, 4]``), major first.
        TVM's mesh holds no names: they live in the module
        attribute ``mesh_axes``.
    start : int
        The first device id, when ``device_ids`` is not given.
    device_ids : sequence of int, optional
        The devices in row-major order of the axes.

    Raises
    ------
    MeshError
        DIST0201 for bad axes, DIST0202 for device ids that do not fit.

    Examples
    --------
    >>> td.device_mesh({"dp": 2, "tp": 4})
    R.device_mesh((2, 4), R.Range(0, 8))
    """
    if isinstance(axes, (list, tuple)):
        axes = {str(number): size for number, size in enumerate(axes)}
    if not isinstance(axes, Mapping):
        problem = f"the axes are {shortened(repr(axes))}"
        remedy = 'Give names and sizes, {"dp": 2, "tp": 4}, or sizes alone, [2, 4].'
        raise MeshError("DIST0201", problem, location="mesh", remedy=remedy)
    check_axes(axes)
    count = math.prod(axes.values())
    if device_ids is None:
        good = isinstance(start, int) and not isinstance(start, bool)
        if not good or not 0 <= start <= MAX_INT - count:
            remedy = f"Give 0 or more; device ids are at most {MAX_INT}."
            raise MeshError(
                "DIST0202", f"start is {shortened(start)}", location="mesh", remedy=remedy
            )
        return DeviceMesh(tuple(axes.values()), ir.Range(start, start + count))
    ids = [int(d) for d in device_ids]
    if len(ids) != count:
        problem = f"{len(ids)} device ids for a mesh of {count} devices"
        raise MeshError("DIST0202", problem, location="mesh", remedy=f"Give {count} ids.")
    if len(set(ids)) != count or min(ids) < 0 or max(ids) > MAX_INT:
        problem = "a device id is negative, too large or listed twice"
        remedy = f"Give ids from 0 to {MAX_INT}, each once."
        raise MeshError("DIST0202", problem, location="mesh", remedy=remedy)
    if ids == list(range(ids[0], ids[0] + count)):
        return DeviceMesh(tuple(axes.values()), ir.Range(ids[0], ids[0] + count))
    return DeviceMesh(tuple(axes.values()), ids)


def mesh_shape(mesh: DeviceMesh) -> tuple[int, ...]:
    """Return the sizes of the mesh's axes, major first."""
    return tuple(mesh.shape)


def mesh_devices(mesh: DeviceMesh) -> npt.NDArray[np.int64]:
    """Return the device ids, as an array of the mesh's shape."""
    shape = mesh_shape(mesh)
    count = math.prod(shape)
    if mesh.device_range is not None:
        first = int(mesh.device_range.min)
        return np.arange(first, first + count, dtype=np.int64).reshape(shape)
    ids = np.array([int(d) for d in mesh.device_ids], dtype=np.int64)
    if ids.size != count or len(set(ids.tolist())) != count:
        problem = f"{ids.size} device ids ({len(set(ids.tolist()))} distinct) for the shape {shape}"
        remedy = "Give each device of the mesh a unique id."
        raise MeshError("DIST0202", problem, location="mesh", remedy=remedy)
    return ids.reshape(shape)


def mesh_key(mesh: DeviceMesh) -> MeshKey:
    """Return (shape, device ids): equal exactly when two meshes are the same, hashable."""
    cached = _KEYS.get(handle(mesh))
    if cached is not None:
        return cached[1]
    key = mesh_shape(mesh), tuple(mesh_devices(mesh).ravel().tolist())
    if len(key[1]) <= MOST_DEVICES_KEPT:
        with _turn:
            while len(_KEYS) >= MOST_KEYS:
                _KEYS.pop(next(iter(_KEYS)))
            _KEYS[handle(mesh)] = mesh, key
    return key


def same_mesh(mesh: DeviceMesh, other: DeviceMesh) -> bool:
    """Return whether two meshes are the same: equal keys, which one object has without a look."""
    return handle(mesh) == handle(other) or mesh_key(mesh) == mesh_key(other)


def axis_groups(mesh: DeviceMesh, axes: Sequence[int]) -> list[list[int]]:
    """Return the rank groups over the product of some axes.

    Parameters
    ----------
    mesh : DeviceMesh
    axes : sequence of int
        Mesh axis numbers; the order of ranks in a group is row-major over these axes in
        mesh order.

    Returns
    -------
    groups : list of list of int
        Device ids; groups in row-major order of the other axes.
    """
    devices = mesh_devices(mesh)
    moved = sorted({int(a) for a in axes})
    if not moved or moved[0] < 0 or moved[-1] >= devices.ndim:
        problem = f"mesh axes {list(axes)} of a mesh with {devices.ndim} axes"
        raise MeshError("DIST0206", problem, remedy=f"Use axes 0 to {devices.ndim - 1}.")
    rest = [a for a in range(devices.ndim) if a not in moved]
    size = math.prod(devices.shape[a] for a in moved)
    table = devices.transpose(rest + moved).reshape(-1, size)
    return [[int(d) for d in row] for row in table]


def groups_by_axes(mesh: DeviceMesh) -> Iterator[tuple[tuple[int, ...], list[list[int]]]]:
    """Yield all sets of mesh axes with their rank groups, small sets first."""
    axes = range(len(mesh_shape(mesh)))
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            yield chosen, axis_groups(mesh, chosen)


def device_coordinates(mesh: DeviceMesh, device: int) -> tuple[int, ...]:
    """Return the coordinates of a device in the mesh."""
    where = np.argwhere(mesh_devices(mesh) == device)
    if len(where) != 1:
        remedy = "Check the device ids of the mesh."
        raise MeshError("DIST0206", f"device {device} is not in the mesh", remedy=remedy)
    return tuple(int(c) for c in where[0])


def meshes(mod: ir.IRModule) -> list[DeviceMesh]:
    """Return all meshes of the module, ``global_infos["mesh"]``."""
    infos: Any = mod.global_infos
    return list(infos[MESH_INFO]) if MESH_INFO in infos else []


def mesh_index(mod: ir.IRModule, mesh: DeviceMesh) -> int:
    """Return the position of a mesh in ``global_infos["mesh"]``."""
    key = mesh_key(mesh)
    for i, other in enumerate(meshes(mod)):
        if mesh_key(other) == key:
            return i
    problem = f"a mesh of shape {key[0]} is not among the module's global_infos"
    raise MeshError("DIST0206", problem, remedy='Add it: mod.update_global_info("mesh", meshes).')


def mesh_axes(mod: ir.IRModule) -> list[list[str]]:
    """Return the axis names per mesh; unnamed axes are "0", "1", ..."""
    device_meshes = meshes(mod)
    attrs: Any = mod.attrs or {}
    if AXES_ATTR not in attrs:
        return [[str(a) for a in range(len(mesh_shape(m)))] for m in device_meshes]
    names = [[str(n) for n in row] for row in attrs[AXES_ATTR]]
    if [len(row) for row in names] != [len(mesh_shape(m)) for m in device_meshes]:
        problem = f"the attribute {AXES_ATTR} is {names}, which does not fit the module's meshes"
        remedy = "Give one list of names per mesh, one name per axis."
        raise MeshError("DIST0201", problem, remedy=remedy)
    return names


def mesh_names(mod: ir.IRModule) -> list[str]:
    """Return the names of the meshes; unnamed ones are "mesh0", "mesh1", ..."""
    attrs: Any = mod.attrs or {}
    if NAMES_ATTR in attrs:
        return [str(n) for n in attrs[NAMES_ATTR]]
    return [f"mesh{i}" for i in range(len(meshes(mod)))]
