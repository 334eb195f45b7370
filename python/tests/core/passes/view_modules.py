# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random modules at level 3 whose values lie on several views of one mesh."""

from __future__ import annotations

import itertools
import math

import numpy as np
from tvm import relax

from tvm_distir.core.ir.mesh import mesh_key
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import R, labels_of, placement_text
from tvm_distir.core.ir.types import as_dtensor, flat_types
from tvm_distir.core.ir.views import Tiling, family, labels_on, mesh_of, tiling


def views_of(sizes, devices=None):
    """All views of a mesh, that with the axes in order first."""
    own = tuple(sizes), tuple(devices or range(math.prod(sizes)))
    first = mesh_of(own, tuple(range(len(sizes))))
    view = family(first)
    orders = itertools.permutations(range(len(sizes)))
    return [mesh_of(view.family, tuple(view.axes[a] for a in order)) for order in orders]


def module(builder, views):
    """Declare the views that the module uses, with names of axes that are the same on all."""
    mod = builder.get()
    variables = [*mod["main"].params, *(b.var for b in mod["main"].body.blocks[0].bindings)]
    used = {mesh_key(ty.device_mesh) for var in variables for ty in flat_types(var.ty)}
    views = [mesh for mesh in views if mesh_key(mesh) in used]
    mod.update_global_info("mesh", views)
    names = [[f"a{number}" for number in family(mesh).axes] for mesh in views]
    return mod.with_attr("mesh_axes", names)


def stated(rng, views, tiles):
    """A random view that states tiles, and the labels there."""
    found = [(mesh, labels_on(family(mesh), tiles)) for mesh in views]
    found = [(mesh, labels) for mesh, labels in found if labels is not None]
    return found[rng.integers(len(found))]


def tiles_of(cuts, ndim, partial=()):
    """The tiling with the axes ``cuts[d]`` on each dim."""
    return Tiling(tuple(tuple(cuts.get(d, ())) for d in range(ndim)), frozenset(partial))


class Values:
    """Parameters of a module with the arrays that they hold."""

    def __init__(self, rng, views):
        self.rng, self.views = rng, views
        self.params, self.arrays = [], []

    def add(self, shape, tiles):
        """A parameter on a random view that states its tiles."""
        mesh, labels = stated(self.rng, self.views, tiles)
        ty = as_dtensor(relax.TensorType(shape, "float32"), mesh, labels)
        self.params.append(relax.Var(f"x{len(self.params)}", ty))
        self.arrays.append(self.rng.integers(-4, 5, shape).astype("float32"))
        return self.params[-1]


def random_cuts(rng, axes, factors):
    """Mesh axes on factors, in a random order on each: what a call may follow."""
    cuts = {f: [] for f in factors}
    for axis in rng.permutation(axes):
        factor = rng.integers(len(factors) + 1)
        if factor < len(factors):
            cuts[factors[factor]].append(int(axis))
    return cuts


SHAPES = {"m": 8, "k": 12, "n": 24}


def random_call(values, kind):
    """A call on operands of random placements and views; the call, its array and its tiles."""
    rng, axes, sizes = values.rng, len(values.views[0].shape), SHAPES
    if kind == "matmul":
        cuts = random_cuts(rng, axes, ["m", "k", "n"])
        x = values.add((sizes["m"], sizes["k"]), tiles_of({0: cuts["m"], 1: cuts["k"]}, 2))
        y = values.add((sizes["k"], sizes["n"]), tiles_of({0: cuts["k"], 1: cuts["n"]}, 2))
        want = tiles_of({0: cuts["m"], 1: cuts["n"]}, 2)
        return relax.op.matmul(x, y), np.matmul(*values.arrays[-2:]), want
    cuts = random_cuts(rng, axes, ["m", "n"])
    tiles = tiles_of({0: cuts["m"], 1: cuts["n"]}, 2)
    x = values.add((sizes["m"], sizes["n"]), tiles)
    if kind == "add":
        y = values.add((sizes["m"], sizes["n"]), tiles)
        return relax.op.add(x, y), values.arrays[-2] + values.arrays[-1], tiles
    if kind == "bias":
        y = values.add((sizes["n"],), tiles_of({0: cuts["n"]}, 1))
        return relax.op.add(x, y), values.arrays[-2] + values.arrays[-1], tiles
    if kind == "sum":
        return relax.op.sum(x, [1]), values.arrays[-1].sum(1), tiles_of({0: cuts["m"]}, 1)
    want = tiles_of({0: cuts["m"], 2: cuts["n"]}, 3)
    shape = (sizes["m"], 1, sizes["n"])
    return relax.op.reshape(x, shape), values.arrays[-1].reshape(shape), want


KINDS = ("add", "bias", "matmul", "reshape", "sum")


def calls_module(seed, sizes, count):
    """A module of calls; the module, inputs, results, and (type, tiles) of the calls."""
    rng = np.random.default_rng(seed)
    views = views_of(sizes, None if seed % 2 else rng.permutation(math.prod(sizes)).tolist())
    values, calls = Values(rng, views), []
    for number in range(count):
        calls.append(random_call(values, KINDS[number % len(KINDS)]))
    builder, types, outs = relax.BlockBuilder(), [], []
    with builder.function("main", values.params):
        with builder.dataflow():
            for call, _, tiles in calls:
                y = builder.emit(call)
                types.append((y.ty, tiles))
                outs.append(builder.emit_output(y))
        builder.emit_func_output(relax.Tuple(outs))
    return module(builder, views), values.arrays, [array for _, array, _ in calls], types


def moves_module(seed, sizes, count, shapes=((8, 12), (7, 5), (11,))):
    """A module of redistributes between random placements on random views."""
    rng = np.random.default_rng(seed)
    views = views_of(sizes, None if seed % 2 else rng.permutation(math.prod(sizes)).tolist())
    values, ends = Values(rng, views), []
    for number in range(count):
        shape = shapes[number % len(shapes)]
        factors = list(range(len(shape)))
        cuts = random_cuts(rng, len(sizes), factors)
        used = {a for axes in cuts.values() for a in axes}
        partial = [a for a in range(len(sizes)) if a not in used and rng.integers(2)]
        values.add(shape, tiles_of(cuts, len(shape)))
        after = tiles_of(random_cuts(rng, len(sizes), factors), len(shape))
        ends.append((partial, *stated(rng, views, after)))
    builder, outs = relax.BlockBuilder(), []
    with builder.function("main", values.params):
        with builder.dataflow():
            for x, (partial, mesh, labels) in zip(values.params, ends):
                if partial:
                    axes = [family(x.ty.device_mesh).axes.index(a) for a in partial]
                    x = builder.emit(ops.partial(x, x.ty.device_mesh, axes, "sum"))
                outs.append(builder.emit_output(redistribute(x, mesh, labels)))
        builder.emit_func_output(relax.Tuple(outs))
    return module(builder, views), values.arrays


def redistribute(x, mesh, labels):
    """Call ``R.dist.redistribute``."""
    from tvm.relax.distributed import Placement

    return relax.op.distributed.redistribute(x, mesh, Placement.from_text(placement_text(labels)))


def chain_module(seed, sizes, count):
    """A module whose calls read each other's results; the module, inputs and results."""
    rng = np.random.default_rng(seed)
    views = views_of(sizes)
    values, builder, pool, shape = Values(rng, views), relax.BlockBuilder(), [], (8, 12)
    of_family = family(views[0]).family[0]

    def tiles():
        """Random tiles, the axes of a single device last on each dim."""
        cuts = random_cuts(rng, len(sizes), [0, 1])
        key = [(size == 1, a * (size == 1)) for a, size in enumerate(of_family)]
        return tiles_of({d: sorted(axes, key=key.__getitem__) for d, axes in cuts.items()}, 2)

    def moved(x, target):
        return builder.emit(redistribute(x, *stated(rng, views, target)))

    def viewed(x):
        ty = x.ty
        have = tiling(family(ty.device_mesh), labels_of(ty.placement), 2)
        return builder.emit(ops.view(x, stated(rng, views, have)[0]))

    def unfinished(x):
        axes = [a for a, label in enumerate(labels_of(x.ty.placement)) if label == R]
        return builder.emit(ops.partial(x, x.ty.device_mesh, axes[:1], "sum")) if axes else x

    for _ in range(3):
        pool.append((values.add(shape, tiles()), values.arrays[-1]))
    with builder.function("main", values.params):
        with builder.dataflow():
            for number in range(count):
                (x, a), (y, c) = (pool[rng.integers(len(pool))] for _ in range(2))
                if number % 3 == 0:
                    target = tiles()
                    total = relax.op.add(moved(x, target), moved(y, target))
                    pool.append((builder.emit(total), a + c))
                elif number % 3 == 1:
                    pool.append((moved(viewed(unfinished(x)), tiles()), a))
                else:
                    pool.append((viewed(x), a))
            outs = [builder.emit_output(x) for x, _ in pool[-4:]]
        builder.emit_func_output(relax.Tuple(outs))
    return module(builder, views), values.arrays, [a for _, a in pool[-4:]]
