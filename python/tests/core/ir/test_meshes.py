# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Meshes, groups and shards against NumPy's own indexing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import ir
from tvm.relax.distributed import DeviceMesh

import tvm_distir as td
from tvm_distir.core.ir.mesh import (
    axis_groups,
    device_coordinates,
    mesh_axes,
    mesh_devices,
    mesh_key,
)
from tvm_distir.core.ir.placement import (
    labels_of,
    local_shape,
    parse_placement,
    placement_of,
    placement_text,
    shard_slices,
)
from tvm_distir.core.redistribution.shards import bounds_of
from tvm_distir.support.errors.tree import MeshError

MESHES = [
    td.device_mesh({"a": 4}),
    td.device_mesh({"a": 2, "b": 3}, start=5),
    td.device_mesh({"a": 2, "b": 2, "c": 2}, device_ids=[7, 3, 1, 0, 2, 4, 6, 5]),
]


@pytest.mark.parametrize("mesh", MESHES, ids=range(3))
def test_groups_hold_the_devices_that_differ_in_their_axes_only(mesh):
    """By brute force over coordinates."""
    devices = mesh_devices(mesh)
    for count in range(1, devices.ndim + 1):
        for axes in itertools.combinations(range(devices.ndim), count):
            groups = axis_groups(mesh, axes)
            assert sorted(d for g in groups for d in g) == sorted(devices.ravel().tolist())
            for group in groups:
                coords = [device_coordinates(mesh, d) for d in group]
                fixed = [[c[i] for i in range(devices.ndim) if i not in axes] for c in coords]
                assert all(f == fixed[0] for f in fixed)
                assert coords == sorted(coords)


def test_a_range_and_its_list_are_the_same_mesh():
    """TVM compares them as different; the key does not."""
    assert mesh_key(DeviceMesh((2, 2), ir.Range(0, 4))) == mesh_key(
        DeviceMesh((2, 2), [0, 1, 2, 3])
    )


@pytest.mark.parametrize(
    ("axes", "options", "code"),
    [
        ({}, {}, "DIST0201"),
        ({"a": 0}, {}, "DIST0201"),
        ({"a": -2}, {}, "DIST0201"),
        ({"a": 1.5}, {}, "DIST0201"),
        ({"a": True}, {}, "DIST0201"),
        ({"": 2}, {}, "DIST0201"),
        ({"a": 2}, {"start": -1}, "DIST0202"),
        ({"a": 2}, {"device_ids": [0]}, "DIST0202"),
        ({"a": 2}, {"device_ids": [1, 1]}, "DIST0202"),
        ({"a": 2}, {"device_ids": [-1, 1]}, "DIST0202"),
    ],
)
def test_bad_meshes_are_refused(axes, options, code):
    """Each with its code."""
    with pytest.raises(MeshError, match=code):
        td.device_mesh(axes, **options)


def test_duplicate_devices_of_tvm_are_found():
    """TVM's constructor takes them; the first use does not."""
    with pytest.raises(MeshError, match="DIST0202"):
        mesh_devices(DeviceMesh((2,), [3, 3]))


def test_axis_names_must_fit_the_meshes():
    """The attribute mesh_axes against global_infos."""
    mod = tvm.IRModule(attrs={"mesh_axes": [["a", "b"]]})
    mod.update_global_info("mesh", [td.device_mesh({"a": 2})])
    with pytest.raises(MeshError, match="DIST0201"):
        mesh_axes(mod)


@pytest.mark.parametrize("text", ["R", "S[0]", "S[1], R", "R, S[0], S[0]"])
def test_placements_round_trip(text):
    """Text to labels to TVM's object and back."""
    labels = parse_placement(text)
    assert placement_text(labels) == text
    assert labels_of(placement_of(labels)) == labels


@pytest.mark.parametrize("text", ["", "X", "S", "S[-1]", "S[a]", "S[0] R", "R,,R", "P"])
def test_bad_placements_are_refused(text):
    """What TVM's own parser takes or dies of."""
    with pytest.raises(MeshError, match="DIST0203"):
        parse_placement(text)


@pytest.mark.parametrize("seed", range(40))
def test_shards_tile_the_tensor(seed):
    """The slices of all devices, in coordinate order, put the tensor together again."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 4, size=rng.integers(1, 4))]
    shape = [int(n) for n in rng.integers(1, 9, size=rng.integers(1, 4))]
    labels = [int(x) for x in rng.integers(-1, len(shape), size=len(sizes))]
    whole = np.arange(np.prod(shape)).reshape(shape)
    padded = local_shape(shape, labels, sizes)
    seen = np.zeros(shape, dtype=int)
    replicas = int(np.prod([n for n, x in zip(sizes, labels) if x < 0]))
    for coords in np.ndindex(*sizes):
        bounds = shard_slices(shape, labels, sizes, coords)
        index = tuple(slice(a, b) for a, b in bounds)
        assert all(b - a <= n for (a, b), n in zip(bounds, padded))
        seen[index] += 1
        for d, (start, stop) in enumerate(bounds):  # major to minor, in mesh order
            block = np.arange(shape[d])
            for c, n, x in zip(coords, sizes, labels):
                if x == d:  # every block padded, cut into equal parts
                    block = np.pad(block, (0, -len(block) % n), constant_values=-1)
                    block = np.split(block, n)[c]
            assert len(block) == padded[d]
            assert np.array_equal(np.arange(shape[d])[start:stop], block[block >= 0])
        assert whole[index].size == np.prod([b - a for a, b in bounds])
    assert (seen == replicas).all()


@pytest.mark.parametrize("seed", range(20))
def test_shards_of_all_devices_at_once_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(1, 4)))
    shape = tuple(int(n) for n in rng.integers(1, 12, size=rng.integers(0, 4)))
    labels = tuple(int(x) for x in rng.integers(-2, len(shape), size=len(sizes)))
    bounds = bounds_of(shape, labels, sizes)
    each = [shard_slices(shape, labels, sizes, coords) for coords in np.ndindex(*sizes)]
    assert bounds.transpose(1, 2, 0).tolist() == [[list(x) for x in item] for item in each]
