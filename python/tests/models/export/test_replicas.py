# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Local programs as replicas: read as they were, by others too; faults are named."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import EngineError, ModelError

MESH = {"dp": 2, "tp": 2}


def planned(mod, devices=None):
    plan = td.strategy.make_plan(mod, "data_parallel+tensor_parallel", MESH)
    mesh = plan.meshes[0] if devices is None else replace(plan.meshes[0], device_ids=devices)
    return replace(plan, meshes=(mesh,))


@pytest.fixture(scope="module")
def gpt():
    """Its vocabulary of 250 is cut into uneven shards, which manual computations are not."""
    mod = td.zoo.build("gpt", {"size": "tiny", "layers": "1", "batch": "4"})
    return mod, td.distribute(mod, planned(mod))


@pytest.fixture(scope="module")
def small():
    mod = td.zoo.build("mlp", {"batch": "6", "layers": "2", "hidden": "10"})
    return mod, td.distribute(mod, planned(mod))


def same(found, mod):
    """Whether modules are structurally equal, rebindings and notes of the compiler apart."""
    wanted = relax.transform.CanonicalizeBindings()(mod)
    for name in ("mesh_axes", "mesh_names", "device_num"):
        assert tvm_ffi.structural_equal(found.attrs[name], mod.attrs[name])
    assert tvm_ffi.structural_equal(found.global_infos, mod.global_infos)
    names = [sorted(str(gv.name_hint) for gv in one.functions) for one in (found, wanted)]
    assert names[0] == names[1]
    return all(
        tvm_ffi.structural_equal(
            *(one[name].without_attr("dist.partial") for one in (found, wanted)),
            map_free_vars=True,
        )
        for name in names[0]
    )


def equal(found, wanted):
    for array, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(array, other, 2e-4, 2e-5 * np.abs(other).max())


def test_uneven_shards_are_read_back(gpt):
    mod, local = gpt
    text = td.to_stablehlo(local)
    assert "mhlo.num_replicas = 4" in text and "sdy.manual_computation" not in text
    back = td.from_stablehlo(text, inline=0)
    check_level(back, "local")
    assert same(back, local)
    for name in ("dist.io", "dist.param_names", "num_input"):
        assert tvm_ffi.structural_equal(back["main"].attrs[name], local["main"].attrs[name])
    inputs = draw_inputs(mod, 0)
    equal(td.run(back, inputs, engine="virtual"), Reference(mod).run(inputs))


def test_devices_in_another_order(small):
    mod = small[0]
    local = td.distribute(mod, planned(mod, (0, 2, 1, 3)))
    text = td.to_stablehlo(local, "replicas")
    assert "device_ids=[0, 2, 1, 3]" in text and "dense<[[0, 2], [1, 3]]>" in text
    assert same(td.from_stablehlo(text, inline=0), local)


def test_plain_operations_compute_the_same(gpt):
    """Without composites numbers of replicas choose what each of them takes."""
    mod, local = gpt
    text = td.to_stablehlo(local, "replicas", composites=False)
    assert '"stablehlo.replica_id"' in text and "composite" not in text
    inputs = draw_inputs(mod, 0)
    back = td.from_stablehlo(text, inline=0)
    equal(td.run(back, inputs, engine="virtual"), Reference(mod).run(inputs))


PORT = 'tvm_distir.port = {{grid = @m, index = 0 : i64, placement = "{}", shape = array<i64: {}>}}'
OTHERS = f"""
module @jit_f attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32}} {{
  sdy.mesh @m = <["x"=2, "y"=2]>
  func.func public @main(%arg0: tensor<2x3xf32> {{{PORT.format("S[0], S[1]", "3, 5")}}} loc("a"))
      -> (tensor<2x6xf32> {{{PORT.format("S[0], R", "4, 6")}}}) {{
    %0 = "stablehlo.all_gather"(%arg0) <{{all_gather_dim = 1 : i64,
        replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}}>
        : (tensor<2x3xf32>) -> tensor<2x6xf32>
    %1 = stablehlo.replica_id : tensor<ui32>
    %2 = stablehlo.convert %1 : (tensor<ui32>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %4 = stablehlo.multiply %0, %3 : tensor<2x6xf32>
    %5 = "stablehlo.all_reduce"(%4) <{{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}}>
    ({{
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) : (tensor<2x6xf32>) -> tensor<2x6xf32>
    return %5 : tensor<2x6xf32>
  }}
}}
"""
"""Each row of replicas has two rows of an array of 3 x 5, times the sum of its numbers."""


def test_programs_of_others():
    mod = td.from_stablehlo(OTHERS)
    check_level(mod, "local")
    a = np.arange(1, 16, dtype="float32").reshape(3, 5)
    wanted = np.zeros((4, 6), "float32")  # shards are padded with zeros
    wanted[:3, :5] = a * np.repeat([[0 + 1], [2 + 3]], [2, 1], 0)
    np.testing.assert_array_equal(td.run(mod, [a], engine="virtual")[0], wanted)


FAULTS = {
    "argument %arg0 has no tvm_distir.port": (PORT.format("S[0], S[1]", "3, 5"), "someone.n = 1"),
    "result 0 has no tvm_distir.port": (PORT.format("S[0], R", "4, 6"), "someone.note = 1"),
    "argument %arg0: a shard [2, 3] of an array [3, 7]": ("3, 5", "3, 7"),
    "result 0: a shard [2, 6] of an array [5, 6]": ("4, 6", "5, 6"),
    'argument %arg0: DIST0203: "S1"': ("S[0], S[1]", "S[0], S1"),
    "argument %arg0: DIST0204": ("S[0], S[1]", "S[0]"),
    "result 0: DIST0205": ("S[0], R", "S[2], R"),
    "argument %arg0: a tvm_distir.port without placement": ("index = 0 : i64, ", ""),
    'the grid "n"': ("grid = @m", "grid = @n"),
    '3 replicas on the 4 devices of the mesh "m"': ("num_replicas = 4", "num_replicas = 3"),
    "outside of a manual computation": ("num_replicas = 4", "num_replicas = 1"),
    "along no axes of the mesh": ("[[0, 1], [2, 3]]", "[[0, 3], [1, 2]]"),
    "partitions, where devices are replicas": ("replica_id", "partition_id"),
    "where no argument says how it lies": ("tvm_distir.port", "someone.port"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_named(what):
    one, other = FAULTS[what]
    assert one in OTHERS
    with pytest.raises(ModelError, match=f"DIST0372.*{re.escape(what)}"):
        td.from_stablehlo(OTHERS.replace(one, other))


def test_channels_are_those_of_partitions():
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups"
    with pytest.raises(ModelError, match=r"DIST0372.*partitions, where devices are replicas"):
        td.from_stablehlo(OTHERS.replace("replica_groups", channel))


def two_meshes():
    """Rows of x on a mesh of 4, blocks of v on one of 2 x 2 of the same devices."""
    x, v = (relax.Var(n, relax.TensorType([8, 8], "float32")) for n in ("x", "v"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, v]):
        with builder.dataflow():
            both = builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.sum(v, [1]))
            output = builder.emit_output(relax.Tuple(both))
        builder.emit_func_output(output)
    meshes = {"a": {"axes": {"p": 4}}, "b": {"axes": {"q": 2, "r": 2}, "device_ids": [0, 1, 2, 3]}}
    rules = [
        {"param": "x", "placement": "S[0]", "mesh": "a"},
        {"param": "v", "placement": "S[0], S[1]", "mesh": "b"},
    ]
    said = {"schema_version": 1, "meshes": meshes, "rules": rules}
    return relax.transform.Normalize()(builder.get()), td.Plan.from_dict(said)


def test_several_meshes_of_the_same_devices():
    """Each array says its own mesh; that the program has one is a matter of the other forms."""
    mod, plan = two_meshes()
    local = td.distribute(mod, plan)
    with pytest.raises(ModelError, match=r'DIST0380.*"v" lies on a mesh of its own'):
        td.to_stablehlo(local, "manual")
    text = td.to_stablehlo(local)
    assert text == td.to_stablehlo(local, "replicas")
    assert "grid = @a, index = 0" in text and "grid = @b, index = 1" in text
    with pytest.raises(ModelError, match=r"DIST0372.*%arg1 lies on the grid b, others on a"):
        td.from_stablehlo(text)


NAMES = ["a mesh", 'q"x"', "1a\\", "p]}>"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["replicas", "manual", "shard"])
def test_names_of_meshes_and_axes_are_any(name, form):
    mod = td.zoo.build("mlp", {"batch": "4", "layers": "1", "hidden": "8"})
    plan = td.strategy.make_plan(mod, "data_parallel", {"dp": 2})
    mesh = replace(plan.meshes[0], name=name, axes={f"{name}0": 2})
    rules = tuple(replace(rule, mesh=name) for rule in plan.rules)
    local = td.distribute(mod, replace(plan, meshes=(mesh,), rules=rules))
    assert same(td.from_stablehlo(td.to_stablehlo(local, form), inline=0), local)


def test_names_that_xla_does_not_take_are_refused(small):
    mod = small[0]
    plan = planned(mod)
    axes = {"é": 2, "tp": 2}
    other = replace(plan, meshes=(replace(plan.meshes[0], axes=axes),))
    engine = XlaEngine("/bin/false")  # it is not asked
    with pytest.raises(EngineError, match=r'DIST0605.*"é"'):
        engine.run(td.distribute(mod, other), draw_inputs(mod, 0))


def test_xla_runs_what_is_read_back(gpt):
    pytest.importorskip("jax", reason="the extra jax is not installed")
    mod, local = gpt
    back = td.from_stablehlo(td.to_stablehlo(local, "replicas"), inline=0)
    inputs, engine = draw_inputs(mod, 0), XlaEngine(sys.executable)
    wanted = Reference(mod).run(inputs)
    for one in (local, back):
        equal(engine.run(one, inputs), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_xla_takes_names(name):
    pytest.importorskip("jax", reason="the extra jax is not installed")
    mod = td.zoo.build("mlp", {"batch": "4", "layers": "1", "hidden": "8"})
    plan = td.strategy.make_plan(mod, "data_parallel", {"dp": 2})
    mesh = replace(plan.meshes[0], name=name, axes={f"{name}0": 2})
    rules = tuple(replace(rule, mesh=name) for rule in plan.rules)
    named = replace(plan, meshes=(mesh,), rules=rules)
    assert td.verify(mod, named, engine=XlaEngine(sys.executable)).equal


def test_xla_runs_several_meshes():
    pytest.importorskip("jax", reason="the extra jax is not installed")
    assert td.verify(*two_meshes(), engine=XlaEngine(sys.executable)).equal
