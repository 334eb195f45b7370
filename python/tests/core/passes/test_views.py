# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules with values on several views of a mesh: typed, legalized, lowered, run, simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DTensorType
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.core.passes import view_modules as views
from tests.core.passes.redistribute_whole import lowered
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.mesh import mesh_axes, meshes
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.operators.names import COLLECTIVES
from tvm_distir.core.ir.operators.ops import call_axes, dist_op_name
from tvm_distir.core.ir.placement import labels_of, placement_of
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.ir.views import family, mesh_of, tiling
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.execution.runtime.engines.registry import engine
from tvm_distir.support.errors.tree import MeshError, PropagationError
from tvm_distir.transforms.spec import PassSpec

ENGINES = ("virtual", "threads")
SIZES = [(2, 3), (2, 2, 2)]


MESH, VIEW = views.views_of((2, 3))


def value(mesh, labels, shape=(12, 18)):
    return relax.Var("x", as_dtensor(relax.TensorType(shape, "float32"), mesh, labels))


def infer(call):
    return relax.BlockBuilder().normalize(call).ty


def test_the_type_of_a_view():
    ty = infer(ops.view(value(MESH, (0, 1)), VIEW))
    assert labels_of(ty.placement) == (1, 0) and ty.device_mesh.shape == VIEW.shape
    with pytest.raises(MeshError, match="in an order") as order:
        infer(ops.view(value(MESH, (0, 0)), VIEW))
    assert order.value.code == "DIST0207"
    with pytest.raises(MeshError, match="no view"):
        infer(ops.view(value(MESH, (0, 1)), views.views_of((3, 2), range(6, 12))[0]))
    with pytest.raises(MeshError, match="level 5"):
        infer(ops.view(relax.Var("x", relax.TensorType((4,), "float32")), VIEW))


def test_calls_on_views():
    """The result is on the first view that states all; opposite orders have none."""
    add = infer(relax.op.add(value(MESH, (0, 1)), value(VIEW, (1, 0))))
    assert add.placement == placement_of((0, 1)) and add.device_mesh.shape == MESH.shape
    add = infer(relax.op.add(value(MESH, (-1, 0)), value(VIEW, (0, -1))))
    assert tiling(family(add.device_mesh), labels_of(add.placement), 2).dims == ((1,), ())
    with pytest.raises(PropagationError, match="opposite orders") as opposite:
        infer(relax.op.add(value(MESH, (0, 0)), value(VIEW, (0, 0))))
    assert opposite.value.code == "DIST0405"


def check_text(mod):
    """The text parses back to an equal module, whose meshes have a row of names each."""
    assert tvm_ffi.structural_equal(tvm.script.from_source(mod.script(show_meta=True)), mod)
    assert len(mesh_axes(mod)) == len(meshes(mod))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_calls_of_mixed_views_keep_their_placement(sizes, seed):
    """25 calls: adds, matmuls, reshapes, reductions, with operands on random views."""
    mod, inputs, wanted, types = views.calls_module(seed, sizes, 25)
    for ty, tiles in types:
        assert isinstance(ty, DTensorType)
        ndim = int(ty.tensor_ty.ndim)
        assert tiling(family(ty.device_mesh), labels_of(ty.placement), ndim) == tiles
    local = lowered(mod)
    for each in (mod, LegalizeRedistribute()(mod), local):
        check_text(each)
    for name in ENGINES:
        for got, want in zip(engine(name).run(local, inputs), wanted, strict=True):
            assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_redistributes_between_views(sizes, seed):
    """Random ends, partial sums too, even and uneven; some have axes in opposite orders."""
    mod, inputs = views.moves_module(seed, sizes, 15)
    local = lowered(mod)
    for each in (mod, LegalizeRedistribute()(mod), local):
        check_text(each)
    for name in ENGINES:
        for got, want in zip(engine(name).run(local, inputs), inputs, strict=True):
            assert np.array_equal(got, want)


def moves_of(sizes, shape, ends, partial=()):
    """Kinds and axes, by name, of the steps of a redistribute between two views."""
    (source, before), (target, after) = ends
    own = sizes, tuple(range(math.prod(sizes)))
    first, second = (mesh_of(own, order) for order in (source, target))
    x = relax.Var("x", as_dtensor(relax.TensorType(shape, "float32"), first, before))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(ops.partial(x, first, partial, "sum")) if partial else x
            out = builder.emit_output(views.redistribute(y, second, after))
        builder.emit_func_output(out)
    mod = builder.get()
    mod.update_global_info("mesh", [first, second])
    legal = LegalizeRedistribute()(mod.with_attr("mesh_axes", [["dp", "tp"], ["tp", "dp"]]))
    calls = [b.value for block in legal["main"].body.blocks for b in block.bindings]
    names = mesh_axes(legal)
    return [
        (name, [names[1][a] for a in call_axes(call)])
        for call in calls
        if (name := dist_op_name(call)) in COLLECTIVES or name == "local_slice"
    ]


DP, TP = (0, 1), (1, 0)
"""The views with ``dp``, and with ``tp``, major."""


def test_what_trainers_send():
    """A weight cut by tp, its optimizer state by dp inside of that: no exchange."""
    weight, state = (DP, (-1, 0)), (TP, (0, 0))
    move = ((4, 2), (64, 64))
    assert moves_of(*move, (weight, state)) == [("local_slice", ["dp"])]
    assert moves_of(*move, (state, weight)) == [("all_gather", ["dp"])]
    assert moves_of(*move, (weight, state), [0]) == [("reduce_scatter", ["dp"])]


HEAD = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["tp", "dp"], ["dp", "tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((4, 2), [0, 4, 1, 5, 2, 6, 3, 7]),
                                    R.device_mesh((2, 4), I.Range(0, 8))]})
    @R.function(private=True)
    def layer(x: WEIGHT) -> WEIGHT:
        with R.dataflow():
            y: STATE = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[0], S[0]")
            z: STATE = R.add(y, y)
            w: WEIGHT = R.dist.redistribute(z, device_mesh="MESH", placement="LABELS")
            v: WEIGHT = R.add(w, x)
            R.output(v)
        return v
    @R.function
    def main(x: WEIGHT, q: STATE) -> R.Tuple(WEIGHT, STATE):
        cls = Module
        with R.dataflow():
            y: WEIGHT = cls.layer(x)
            z: WEIGHT = cls.layer(y)
            p: STATE = R.multiply(q, q)
            R.output(z, p)
        return (z, p)
"""


def step(mesh, labels):
    text = HEAD.replace("WEIGHT", 'R.DTensor((64, 64), "float32", "MESH", "LABELS")')
    text = text.replace("STATE", 'R.DTensor((64, 64), "float32", "mesh[0]", "S[0], S[0]")')
    return tvm.script.from_source(text.replace("MESH", mesh).replace("LABELS", labels))


def test_two_views_are_one_program():
    """The weight is named on the view with dp major: the same program, which costs the same."""
    both, single = lowered(step("mesh[1]", "R, S[0]")), lowered(step("mesh[0]", "S[0], R"))
    assert sorted(str(gv.name_hint) for gv in both.functions) == ["layer", "main"]
    assert "send" not in both.script()
    times = [td.simulate(mod, "h100").time_s for mod in (both, single)]
    assert times[0] == times[1]
    x, q = (np.random.default_rng(n).integers(0, 4, (64, 64)).astype("float32") for n in (1, 2))
    for name in ENGINES:
        got = engine(name).run(both, [x, q])
        assert np.array_equal(got[0], 9 * x) and np.array_equal(got[1], q * q)


@I.ir_module
class Update:
    """A product with a weight, and a state that is updated by it."""

    @R.function
    def main(
        x: R.Tensor((16, 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
        m: R.Tensor((16, 16), "float32"),
    ) -> R.Tuple(R.Tensor((16, 16), "float32"), R.Tensor((16, 16), "float32")):
        with R.dataflow():
            y: R.Tensor((16, 16), "float32") = R.matmul(x, w)
            n: R.Tensor((16, 16), "float32") = R.add(m, w)
            R.output(y, n)
        return (y, n)


def test_a_plan_states_views_as_meshes():
    """The state is cut by dp inside of tp, which cuts the weight: a slice, and no transfer."""
    devices = {"a": ({"dp": 2, "tp": 2}, [0, 1, 2, 3]), "b": ({"tp": 2, "dp": 2}, [0, 2, 1, 3])}
    meshes_of = {n: {"axes": axes, "device_ids": ids} for n, (axes, ids) in devices.items()}
    rules = [
        {"param": "x", "placement": "R, S[1]", "mesh": "a"},
        {"param": "w", "placement": "R, S[0]", "mesh": "a"},
        {"param": "m", "placement": "S[0], S[0]", "mesh": "b"},
    ]
    local = td.distribute(Update, {"schema_version": 1, "meshes": meshes_of, "rules": rules})
    calls = [b.value for block in local["main"].body.blocks for b in block.bindings]
    assert {dist_op_name(call) for call in calls} <= {None, "local_slice", "all_reduce"}
    rng = np.random.default_rng(0)
    x, w, m = (rng.integers(-3, 4, (16, 16)).astype("float32") for _ in range(3))
    for name in ENGINES:
        y, n = engine(name).run(local, [x, w, m])
        assert np.array_equal(y, x @ w) and np.array_equal(n, m + w)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1, 2), (2, 2, 2)], ids=str)
def test_chains_through_passes_over_collectives(sizes):
    """Sums, views, partial sums and redistributes of each other's results, optimized too."""
    for seed in range(2):
        mod, inputs, wanted = views.chain_module(seed, sizes, 10)
        check_level(mod, 3)
        legal = LegalizeRedistribute()(mod)
        for each in (legal, PassSpec("optimize").make()(legal)):
            check_level(each, 4)
            local = LowerDistIR()(each)
            check_level(local, 5)
            for got, want in zip(engine("virtual").run(local, inputs), wanted, strict=True):
                assert np.array_equal(got, want)
