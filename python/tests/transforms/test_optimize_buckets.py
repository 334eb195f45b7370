# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Buckets of gathers and of reductions that scatter: what lies flat comes back as it was."""

from __future__ import annotations

import pytest
import tvm

from tests.core.passes.local_harness import held, module, ops_of, reduce
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions
from tvm_distir.transforms.optimize.traffic import traffic


def gather(x, axes, dim):
    return f'R.dist.all_gather({x}, "mesh[0]", {axes}, {dim})'


def cut(x, axes, dim):
    return f'R.dist.local_slice({x}, "mesh[0]", {axes}, {dim})'


def scatter(x, axes, dim, op="sum"):
    return f'R.dist.reduce_scatter({x}, "mesh[0]", {axes}, {dim}, "{op}")'


VIEWS = {"p": ("x0", (8, 8)), "q": ("x1", (2, 4, 8)), "r": ("x1", (64,)), "s": ("x0", (4, 16))}
"""Inputs seen in several shapes."""


def views():
    return [f"{n} = R.reshape({x}, R.shape({list(shape)}))" for n, (x, shape) in VIEWS.items()]


def back(names):
    return [f"o{n} = R.reshape({n}, R.shape([8, 8]))" for n in names]


@pytest.mark.parametrize("axes", ["0", "1", "[0, 1]"])
@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (1, 1, 0, 1), (0, 2, 0, 1)], ids=str)
def test_gathers_of_any_dims(axes, dims):
    """Slices of each view, gathered again: the views."""
    body = views()
    ranks = 4 if "," in axes else 2
    for (name, (_, shape)), dim in zip(VIEWS.items(), dims):
        dim = dim if shape[dim] % ranks == 0 else 0 if shape[0] % ranks == 0 else 1
        body += [f"c{name} = {cut(name, axes, dim)}", f"g{name} = {gather(f'c{name}', axes, dim)}"]
    names = [f"g{name}" for name in VIEWS]
    mod = module(2, [*body, *back(names)], [f"o{n}" for n in names])
    new = held(BucketGathers(), mod, 2)
    assert ops_of(new).count("all_gather") == 1
    assert traffic(new).total_sent_bytes == traffic(mod).total_sent_bytes
    tvm.ir.assert_structural_equal(BucketReductions()(mod), mod)


DIMS = [(0, 1, 0, 1), (1, 1, 0, 0), (1, 2, 0, 1)]


# The reduction goes into the bucket as it is, whatever is scattered: one case of another one.
@pytest.mark.parametrize(
    ("axes", "op", "dims"),
    [*((axes, "sum", dims) for axes in ("0", "[0, 1]") for dims in DIMS), ("0", "max", DIMS[2])],
    ids=str,
)
def test_scatters_of_any_dims(axes, op, dims):
    """What is scattered is gathered again, so that all of it is compared."""
    body = views()
    for name, dim in zip(VIEWS, dims):
        body += [f"t{name} = {scatter(name, axes, dim, op)}", f"u{name} = R.negative(t{name})"]
    for name, dim in zip(VIEWS, dims):
        body.append(f"g{name} = {gather(f'u{name}', axes, dim)}")
    names = [f"g{name}" for name in VIEWS]
    mod = module(2, [*body, *back(names)], [f"o{n}" for n in names])
    new = held(BucketReductions(), mod, 2)
    assert ops_of(new).count("reduce_scatter") == 1
    assert ops_of(new).count("all_gather") == 4
    assert traffic(new).total_sent_bytes == traffic(mod).total_sent_bytes
    both = held(BucketGathers(), new, 2, ("virtual", "threads"))
    assert ops_of(both).count("all_gather") == 1


def test_reductions_that_scatter_are_apart_from_those_that_do_not():
    body = [
        f"a = {reduce('x0', 0)}",
        f"b = {scatter('x1', '0', 0)}",
        f"c = {gather('b', '0', 0)}",
        "y = R.add(a, c)",
    ]
    mod = module(2, body, ["y"])
    tvm.ir.assert_structural_equal(BucketReductions()(mod), mod)
    tvm.ir.assert_structural_equal(BucketGathers()(mod), mod)


def test_buckets_count_the_larger_end():
    """Of a scatter what goes in, of a gather what comes out: 256 bytes each."""
    body = []
    for i in range(3):
        body += [f"t{i} = {scatter(f'x{i}', '0', 1)}", f"u{i} = R.abs(t{i})"]
    body += [f"g{i} = {gather(f'u{i}', '0', 1)}" for i in range(3)]
    mod = module(3, body, ["g0", "g1", "g2"])
    for most, left in ((256, 3), (512, 2), (768, 1)):
        for make, kind in ((BucketReductions, "reduce_scatter"), (BucketGathers, "all_gather")):
            assert ops_of(held(make(most), mod, 3)).count(kind) == left, (most, kind)


def test_what_is_gathered_twice_is_in_two_buckets():
    """A weight that is freed between two readings is not held from the first to the second."""
    body = [
        f"c = {cut('x0', '0', 0)}",
        f"d = {cut('x1', '0', 0)}",
        *(f"g{i} = {gather(x, '0', 0)}" for i, x in enumerate("cddc")),
        "y = R.matmul(g0, g1)",
        "z = R.matmul(g2, g3)",
    ]
    new = held(BucketGathers(), module(2, body, ["y", "z"]), 2)
    assert ops_of(new).count("all_gather") == 2


def test_gathers_that_depend_on_each_other_stay():
    body = [f"c = {cut('x0', '[0, 1]', 0)}", f"g = {gather('c', '1', 0)}", "h = R.negative(g)"]
    body += [f"k = {cut('h', '1', 0)}", f"l = {gather('k', '1', 0)}", f"m = {gather('l', '0', 0)}"]
    mod = module(1, body, ["m"])
    tvm.ir.assert_structural_equal(BucketGathers()(mod), mod)
