# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every plan of a redistribution, executed on NumPy shards, gives the wanted placement."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tvm_distir.errors import LoweringError
from tvm_distir.ir import P, R
from tvm_distir.transform.legalize import plan_steps
from tvm_distir.transform.legalize.planner import apply_step, check_sharding

MESHES = [(2,), (3,), (4,), (2, 2), (2, 3), (2, 2, 2)]


def coordinates(mesh):
    return list(itertools.product(*(range(n) for n in mesh)))


def cut(x, dim, number, count):
    """Block ``number`` of ``count`` along a dim, padded with zeros."""
    size = -(-x.shape[dim] // count)
    pad = [(0, 0)] * x.ndim
    pad[dim] = (0, size * count - x.shape[dim])
    x = np.pad(x, pad)
    return np.take(x, range(number * size, (number + 1) * size), axis=dim)


def shards(whole, labels, mesh, rng):
    """Per device: its block, and along partial axes a random term of the sum."""
    parts = {c: whole for c in coordinates(mesh)}
    for axis, label in enumerate(labels):
        if label == P:
            new = {}
            for c, x in parts.items():
                if c[axis] == 0:
                    group = [(*c[:axis], i, *c[axis + 1 :]) for i in range(mesh[axis])]
                    rest = [rng.integers(-2, 3, x.shape) for _ in group[1:]]
                    new.update(zip(group, [x - sum(rest), *rest]))
            parts = new
    out = {}
    for c, x in parts.items():
        for dim in range(whole.ndim):
            axes = [a for a, label in enumerate(labels) if label == dim]
            count = math.prod(mesh[a] for a in axes)
            number = 0
            for a in axes:
                number = number * mesh[a] + c[a]
            x = cut(x, dim, number, count)
        out[c] = x
    return out


def execute(parts, step, mesh, before, shape):
    """One step on all devices, by the meaning of the ops, whole sizes known for padding."""
    out = {}
    for c in parts:
        group = [
            parts[tuple(i)]
            for i in coordinates(mesh)
            if all(i[a] == c[a] for a in range(len(mesh)) if a not in step.axes)
        ]
        axis = step.axes[0]
        k, mine = mesh[axis], c[axis]
        x = parts[c]
        if step.kind == "partial":
            out[c] = x if mine == 0 else np.zeros_like(x)
            continue
        if step.kind in ("all_reduce", "reduce_scatter"):
            x = sum(group)
        if step.gather_dim is not None:
            x = np.concatenate(group, axis=step.gather_dim)
            others = math.prod(
                mesh[a] for a, label in enumerate(before) if label == step.gather_dim and a != axis
            )
            keep = -(-shape[step.gather_dim] // others)
            x = np.take(x, range(keep), axis=step.gather_dim)
        if step.split_dim is not None:
            x = cut(x, step.split_dim, mine, k)
        out[c] = x
    return out


def finished(parts, labels, mesh):
    """Sum the terms along partial axes, so that shards can be compared."""
    for axis, label in enumerate(labels):
        if label == P:
            parts = {
                c: sum(parts[(*c[:axis], i, *c[axis + 1 :])] for i in range(mesh[axis]))
                for c in parts
            }
    return parts


def legal(labels, step):
    """No later axis shards a dim that the step joins or cuts."""
    dims = {step.gather_dim, step.split_dim} - {None}
    return all(d not in labels[axis + 1 :] for axis in step.axes for d in dims)


def check(shape, src, dst, mesh, rng):
    whole = rng.integers(-2, 3, shape)
    steps = plan_steps(shape, src, dst, mesh)
    parts, labels = shards(whole, src, mesh, rng), tuple(src)
    for step in steps:
        assert legal(labels, step), (src, dst, step)
        parts = execute(parts, step, mesh, labels, shape)
        labels = apply_step(labels, step)
    assert labels == tuple(dst)
    want = finished(shards(whole, dst, mesh, rng), dst, mesh)
    got = finished(parts, labels, mesh)
    for c in want:
        np.testing.assert_array_equal(got[c], want[c], err_msg=f"{src} -> {dst} at {c}")
    return steps


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(24,), (24, 24), (7, 12), (12, 12, 12)], ids=str)
def test_all_pairs(shape, mesh):
    labels = [
        p
        for p in itertools.product([P, R, *range(len(shape))], repeat=len(mesh))
        if not check_sharding(shape, p, mesh)
    ]
    pairs = list(itertools.product(labels, labels))
    rng = np.random.default_rng(0)
    if len(pairs) > 400:
        pairs = [pairs[i] for i in sorted(rng.choice(len(pairs), 400, replace=False))]
    for src, dst in pairs:
        check(shape, src, dst, mesh, rng)


def kinds(*args):
    return [s.kind for s in plan_steps(*args)]


def test_plans_are_the_natural_ones():
    big = (1024, 1024)
    assert kinds(big, (R, 0), (R, 0), (2, 2)) == []
    assert kinds(big, (0,), (R,), (4,)) == ["all_gather"]
    assert kinds(big, (0,), (1,), (4,)) == ["all_to_all"]
    assert kinds(big, (P,), (R,), (4,)) == ["all_reduce"]
    assert kinds(big, (P,), (1,), (4,)) == ["reduce_scatter"]
    assert kinds(big, (R,), (1,), (4,)) == ["local_slice"]
    assert kinds(big, (P, P), (R, R), (2, 4)) == ["all_reduce"]
    assert kinds(big, (P, P), (0, 0), (2, 4)) == ["reduce_scatter", "reduce_scatter"]
    assert kinds(big, (0, R), (0, 0), (2, 4)) == ["local_slice"]
    # Cut along the other axis before gathering, so that less is gathered.
    assert kinds(big, (0, R), (R, 1), (2, 4)) == ["local_slice", "all_gather"]


def test_only_the_minor_axis_of_a_dim_is_gathered_directly():
    steps = plan_steps((8,), (0, 0), (R, 0), (2, 2))
    assert (steps[0].kind, steps[0].axes) == ("all_gather", (1,))


def test_a_large_tensor_is_not_gathered_whole_where_an_exchange_does():
    assert kinds((1024, 1024), (0, 0), (R, 0), (2, 2)) == ["all_to_all", "all_gather", "all_to_all"]


def test_an_uneven_dim_over_two_axes_is_refused():
    with pytest.raises(LoweringError) as caught:
        plan_steps((6,), (0, 0), (R, R), (2, 2))
    assert caught.value.code == "DIST0501"


def test_planning_is_quick_on_many_axes():
    steps = plan_steps((64,) * 6, (0, 0, 1, 1), (2, R, 3, 0), (2, 2, 2, 2))
    assert steps
