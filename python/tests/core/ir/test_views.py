# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Views of a mesh: recognised from device ids, and the placements that they can state."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import mesh_devices
from tvm_distir.core.ir.placement import R, shard_slices
from tvm_distir.core.ir.views import (
    are_views,
    common_view,
    family,
    first_views,
    mesh_of,
    moved_axes,
    relabelled,
)

SIZES = [(4,), (2, 3), (3, 1), (2, 2, 2), (2, 1, 3), (2, 2, 3)]


def table_of(sizes, permuted):
    ids = np.random.default_rng(5).permutation(math.prod(sizes)) if permuted else None
    return (np.arange(math.prod(sizes)) if ids is None else ids).reshape(sizes)


def mesh_on(table):
    return DeviceMesh(table.shape, table.ravel().tolist())


def tiles(mesh, labels, shape):
    """The bounds of the shard of each device."""
    table = mesh_devices(mesh)
    return {
        int(table[c]): shard_slices(shape, labels, table.shape, c) for c in np.ndindex(table.shape)
    }


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_views_are_the_transposes(sizes, permuted):
    table = table_of(sizes, permuted)
    first = mesh_on(table)
    for order in itertools.permutations(range(len(sizes))):
        view = mesh_on(table.transpose(order))
        assert are_views(first, view)
        own = family(view)
        assert np.array_equal(mesh_devices(mesh_of(own.family, own.axes)), mesh_devices(view))
        for axis, old in enumerate(order):
            if sizes[old] > 1:  # an axis of a single device is any of these
                assert moved_axes((axis,), view, first) == {old}
        assert first_views([first, view])[
            tuple(view.shape), tuple(mesh_devices(view).ravel().tolist())
        ][0] == (sizes, tuple(table.ravel().tolist()))
    swapped = table.copy().ravel()
    swapped[[0, -1]] = swapped[[-1, 0]]
    if len(set(swapped)) > 3:
        assert not are_views(first, mesh_on(swapped.reshape(sizes)))
    assert not are_views(first, mesh_on(table.reshape(1, *sizes)))
    assert not are_views(first, mesh_on(table + 1))


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_placement_has_the_same_tiles_on_all_views_that_state_it(sizes, permuted):
    """And no view states it that has other tiles, where these tell orders apart."""
    table, shape = table_of(sizes, permuted), (24, 36)
    first = mesh_on(table)
    for labels in itertools.product((R, 0, 1), repeat=len(sizes)):
        for order in itertools.permutations(range(len(sizes))):
            view = mesh_on(table.transpose(order))
            moved = relabelled(labels, first, view, 2)
            plain = tuple(labels[a] for a in order)
            same = tiles(view, plain, shape) == tiles(first, labels, shape)
            assert (moved is not None) == same
            if moved is not None:
                assert tiles(view, moved, shape) == tiles(first, labels, shape)


def test_a_common_view_is_the_first_that_states_all():
    a, b = (mesh_of(((2, 2, 2), tuple(range(8))), order) for order in ((0, 1, 2), (2, 1, 0)))
    mesh, rows = common_view([(a, (0, 1, R), 2), (b, (R, 0, 0), 2)])
    assert mesh.shape == b.shape and rows == [(R, 1, 0), (R, 0, 0)]
    # Two orders that neither mesh has together: axis 0 before 1, and 2 before 0.
    mesh, rows = common_view([(a, (0, 0, R), 2), (b, (1, R, 1), 2)])
    assert family(mesh).axes == (2, 0, 1)
    assert rows == [(R, 0, 0), (1, 1, R)]
    assert common_view([(a, (0, 0, R), 1), (b, (R, 0, 0), 1)]) is None
