# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The request the project began with: a private function called on two meshes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DTensorType

import tvm_distir as td
from tests.child_processes import child_environment, load_two_meshes
from tests.quick_compilation import quick_machine
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.mesh import mesh_index

example = load_two_meshes()


def plan_annotated():
    """The same annotations from a plan, by the built-in pass."""
    plan = td.Plan.from_dict(
        {
            "schema_version": 1,
            "meshes": {
                "first": {"axes": {"x": 1}, "start": 0},
                "second": {"axes": {"x": 1}, "start": 1},
            },
            "rules": [
                {"call": "mlp", "index": 0, "arg": 0, "placement": "R", "mesh": "first"},
                {"call": "mlp", "index": 1, "arg": 0, "placement": "R", "mesh": "second"},
            ],
        }
    )
    return td.transforms.AnnotateSharding(plan)(example.Module)


ANNOTATED = {
    "in place": lambda: example.annotated(emit=False),
    "new bindings": lambda: example.annotated(emit=True),
    "from a plan": plan_annotated,
}


@pytest.fixture(params=sorted(ANNOTATED))
def annotated(request):
    """The module at level 2, made in three ways."""
    return ANNOTATED[request.param]()


def test_propagation_specialises_the_private_function(annotated):
    """Two DTensor specialisations of mlp, a DTensor main, one redistribute between meshes."""
    before = annotated.script(show_meta=True)
    out = td.transforms.PropagateSharding()(annotated)
    assert annotated.script(show_meta=True) == before
    check_level(out, 3)
    relax.analysis.well_formed(out)
    assert sorted(str(g.name_hint) for g in out.functions) == ["main", "mlp", "mlp_1"]
    for name, mesh in (("mlp", 0), ("mlp_1", 1)):
        types = [p.ty for p in out[name].params] + [out[name].ret_ty]
        assert all(isinstance(t, DTensorType) for t in types)
        assert {mesh_index(out, t.device_mesh) for t in types} == {mesh}
    meshes = [mesh_index(out, p.ty.device_mesh) for p in out["main"].params]
    assert meshes == [0, 0, 0, 1, 1]
    bindings = [b for block in out["main"].body.blocks for b in block.bindings]
    moves = [
        b for b in bindings if isinstance(b.value, ir.Call) and "redistribute" in str(b.value.op)
    ]
    assert len(moves) == 1
    assert mesh_index(out, moves[0].value.args[0].ty.device_mesh) == 0
    assert mesh_index(out, moves[0].var.ty.device_mesh) == 1
    again = tvm.script.from_source(out.script(show_meta=True))
    assert tvm_ffi.structural_equal(again, out)


def test_lowering_gives_two_programs_joined_by_a_send_and_a_receive(annotated):
    """One program per mesh; the first sends, the second receives."""
    out = example.pipeline()(annotated)
    check_level(out, 5)
    public = sorted(
        str(g.name_hint) for g, f in out.functions.items() if f.attrs and "dist.io" in f.attrs
    )
    assert public == ["main_mesh0", "main_mesh1"]
    counts = {
        name: [out[name].script().count(f"R.dist.{op}(") for op in ("send", "recv")]
        for name in public
    }
    assert counts == {"main_mesh0": [1, 0], "main_mesh1": [0, 1]}
    again = tvm.script.from_source(out.script(show_meta=True))
    assert tvm_ffi.structural_equal(again, out)


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_two_workers_give_the_result_of_one_device(annotated, engine):
    """Inputs from {-2..2}: sums are exact, so the bits are equal."""
    out = example.pipeline()(annotated)
    rng = np.random.default_rng(7)
    inputs = [rng.integers(-2, 3, (128, 128)).astype("float32") for _ in range(5)]
    (result,) = td.run(out, inputs, engine=engine)
    x, a, b, c, d = (i.astype("float64") for i in inputs)
    y = np.maximum(x @ a, 0) @ b
    inner = np.maximum(y @ c, 0)
    assert (np.abs(inner) @ np.abs(d)).max() < 2**24  # so float32 sums are exact in any order
    assert np.array_equal(result, inner @ d)
    machine = quick_machine(example.Module)
    single = machine["main"](*[tvm.runtime.tensor(i) for i in inputs]).numpy()
    assert np.array_equal(result, single)


def test_fresh_processes_print_the_same_text():
    """No hash order in the output: three processes with other hash seeds agree."""
    code = (
        "from tests.child_processes import load_two_meshes; t = load_two_meshes(); "
        "print(t.pipeline()(t.annotated()).script(show_meta=True))"
    )
    texts = set()
    for seed in ("1", "22", "333"):
        env = child_environment(PYTHONHASHSEED=seed)
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert "main_mesh1" in texts.pop()
