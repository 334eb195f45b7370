# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Local programs as replicas: what the text holds, and that XLA runs it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import EngineError, ModelError

MESH = {"dp": 2, "tp": 2}


def planned(mod, devices=None):
    plan = td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH)
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


def same(result, mod):
    """Whether modules are structurally equal, rebindings and notes of the compiler apart."""
    expected = relax.transform.CanonicalizeBindings()(mod)
    for name in ("mesh_axes", "mesh_names", "device_num"):
        assert tvm_ffi.structural_equal(result.attrs[name], mod.attrs[name])
    assert tvm_ffi.structural_equal(result.global_infos, mod.global_infos)
    names = [sorted(str(gv.name_hint) for gv in each.functions) for each in (result, expected)]
    assert names[0] == names[1]
    return all(
        tvm_ffi.structural_equal(
            *(each[name].without_attr("dist.partial") for each in (result, expected)),
            map_free_vars=True,
        )
        for name in names[0]
    )


def test_uneven_shards_are_written_and_not_read(gpt):
    text = td.to_stablehlo(gpt[1])
    assert "mhlo.num_replicas = 4" in text and "sdy.manual_computation" not in text
    with pytest.raises(ModelError, match=r"DIST0372 .*4 replicas.*Use TVMScript"):
        td.from_stablehlo(text)


def test_devices_in_another_order(small):
    mod = small[0]
    local = td.distribute(mod, planned(mod, (0, 2, 1, 3)))
    text = td.to_stablehlo(local, "replicas")
    assert "device_ids=[0, 2, 1, 3]" in text and "dense<[[0, 2], [1, 3]]>" in text


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
    message = {"schema_version": 1, "meshes": meshes, "rules": rules}
    return relax.transform.Normalize()(builder.get()), td.Plan.from_dict(message)


def test_several_meshes_of_the_same_devices():
    """Each array says its own mesh; that the program has one is a matter of the other forms."""
    mod, plan = two_meshes()
    local = td.distribute(mod, plan)
    with pytest.raises(ModelError, match=r'DIST0380.*"v" is on another mesh'):
        td.to_stablehlo(local, "manual")
    text = td.to_stablehlo(local)
    assert text == td.to_stablehlo(local, "replicas")
    assert "grid = @a, index = 0" in text and "grid = @b, index = 1" in text


NAMES = ["a mesh", 'q"x"', "1a\\", "p]}>"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_meshes_and_axes_are_any(name):
    mod = td.zoo.build("mlp", {"batch": "4", "layers": "1", "hidden": "8"})
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    mesh = replace(plan.meshes[0], name=name, axes={f"{name}0": 2})
    rules = tuple(replace(rule, mesh=name) for rule in plan.rules)
    local = td.distribute(mod, replace(plan, meshes=(mesh,), rules=rules))
    assert same(td.from_stablehlo(td.to_stablehlo(local, "manual"), inline=0), local)


def test_names_that_xla_does_not_take_are_refused(small):
    mod = small[0]
    plan = planned(mod)
    axes = {"é": 2, "tp": 2}
    other = replace(plan, meshes=(replace(plan.meshes[0], axes=axes),))
    engine = XlaEngine("/bin/false")  # it is not asked
    with pytest.raises(EngineError, match=r'DIST0605.*"é"'):
        engine.run(td.distribute(mod, other), draw_inputs(mod, 0))


@pytest.mark.parametrize("name", NAMES)
def test_xla_takes_names(name):
    pytest.importorskip("jax", reason="the extra jax is not installed")
    mod = td.zoo.build("mlp", {"batch": "4", "layers": "1", "hidden": "8"})
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    mesh = replace(plan.meshes[0], name=name, axes={f"{name}0": 2})
    rules = tuple(replace(rule, mesh=name) for rule in plan.rules)
    named = replace(plan, meshes=(mesh,), rules=rules)
    assert td.verify(mod, named, engine=XlaEngine(sys.executable)).equal


def test_xla_runs_several_meshes():
    pytest.importorskip("jax", reason="the extra jax is not installed")
    assert td.verify(*two_meshes(), engine=XlaEngine(sys.executable)).equal
