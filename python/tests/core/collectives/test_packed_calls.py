# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives that ``LegalizeOps`` has made calls of packed functions are collectives again."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.core.forms.parsing import X, main, parsed
from tvm_distir.core.collectives import with_collectives
from tvm_distir.support import DistIRError

MESH = 'device_mesh="mesh[0]"'
CALLS = [
    f'all_reduce(x, {MESH}, mesh_axes=[0], op="max")',
    f'all_reduce(x, {MESH}, mesh_axes=[0, 1], op="sum")',
    f"all_gather(x, {MESH}, mesh_axis=1, dim=1)",
    f"all_gather(x, {MESH}, mesh_axis=[0, 1], dim=0)",
    f'reduce_scatter(x, {MESH}, mesh_axis=0, dim=1, op="sum")',
    f"all_to_all(x, {MESH}, mesh_axis=1, gather_dim=0, split_dim=1)",
    f"collective_permute(x, {MESH}, mesh_axis=1, shift=1)",
    f"collective_permute(x, {MESH}, mesh_axis=0, shift=-1, wrap=True)",
    f"local_slice(x, {MESH}, mesh_axis=0, dim=0)",
    f'partial(x, {MESH}, mesh_axes=[1], op="sum")',
    f"axis_index({MESH}, mesh_axis=1)",
    f'exchange(x, {MESH}, mesh_axes=[0, 1], placement="S[0], S[1]", '
    'peer_placement="S[1], S[0]", shape=[16, 36])',
]
TEXT = """
@I.ir_module
class M:
    I.module_attrs({{"device_num": 6, "mesh_axes": [["a", "b"]], "mesh_names": ["m"]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 3), I.Range(0, 6))]}})
    @R.function
    def main(x: R.Tensor((8, 12), "float32")):
        with R.dataflow():
            y = R.dist.{call}
            R.output(y)
        return y
"""


def legalized(mod: ir.IRModule) -> ir.IRModule:
    return relax.transform.LegalizeOps()(mod)


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_is_written_and_read(call: str) -> None:
    mod = tvm.script.from_source(TEXT.format(call=call), {"I": I, "R": R})
    lowered = legalized(mod)
    assert "tvm_distir.ccl." in lowered.script() and "R.dist." not in lowered.script()
    assert tvm_ffi.structural_equal(with_collectives(lowered), mod)


def test_other_packed_calls_stay() -> None:
    text = TEXT.replace("R.dist.{call}", 'R.call_dps_packed("f", (x,), out_ty=x.ty)')
    mod = tvm.script.from_source(text.replace("{{", "{").replace("}}", "}"), {"I": I, "R": R})
    assert tvm_ffi.structural_equal(with_collectives(mod), mod)


def test_a_collective_of_no_mesh_of_the_module_stays() -> None:
    mod = legalized(tvm.script.from_source(TEXT.format(call=CALLS[0]), {"I": I, "R": R}))
    other = {"mesh": [td.device_mesh({"a": 6})]}
    mod = ir.IRModule(mod.functions, attrs=mod.attrs, global_infos=other)
    assert tvm_ffi.structural_equal(with_collectives(mod), mod)


def step() -> ir.IRModule:
    mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    return td.distribute(mod, td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")}))


@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_a_legalized_program_runs_and_costs_the_same(engine: str) -> None:
    dist = step()
    random = np.random.default_rng(0)
    shapes = [item["shape"] for item in dist["main"].attrs["dist.io"]["inputs"]]
    inputs = [random.integers(-2, 3, [int(n) for n in s]).astype("f4") for s in shapes]
    ours, theirs = (td.run(m, inputs, engine=engine) for m in (legalized(dist), dist))
    assert all(map(np.array_equal, ours, theirs))
    programs = [td.export(mod) for mod in (legalized(dist), dist)]
    kinds = [[op for op in p.functions["main"].ops if op.kind == "collective"] for p in programs]
    assert kinds[0] == kinds[1] and kinds[0]


def test_a_legalized_transfer_is_refused_and_the_remedy_is_true() -> None:
    meshes = {name: {"axes": {"x": 1}, "start": i} for i, name in enumerate(("first", "second"))}
    rules = [
        {"param": "x", "placement": "R", "mesh": "first"},
        {"value": "y", "placement": "R", "mesh": "second"},
    ]
    plan = td.Plan.from_dict({"schema_version": 1, "meshes": meshes, "rules": rules})
    dist = td.distribute(parsed(main("h = R.nn.relu(x)\ny = R.negative(h)", X)), plan)
    with pytest.raises(DistIRError, match="LegalizeOps has made it a call of tvm_distir") as caught:
        td.export(legalized(dist))
    assert caught.value.code == "DIST0714"
    skip = relax.transform.LegalizeOps(skip_ops=["relax.dist.send", "relax.dist.recv"])
    kinds = [op.kind for fn in td.export(skip(dist)).functions.values() for op in fn.ops]
    assert kinds.count("transfer") == 2
