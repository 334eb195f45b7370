# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Meshes that share some of their devices: lowered, run, claimed, simulated, deployed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes import redistribute_harness as h
from tests.transforms.overlapping_modules import MESHES, program
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.mesh import device_mesh
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.lower.sharing import device_classes, entry_names
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.runtime.engines.registry import engine
from tvm_distir.execution.runtime.program.dist_io import entries
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.verification.collective_counts import claimed_collectives, differences
from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import EngineError
from tvm_distir.transforms.optimize.bucket import BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.passes import OptimizeCollectives
from tvm_distir.transforms.optimize.traffic import traffic

SYSTEM = td.System.load("dgx-a100")


def lowered(mod, *passes):
    """Level 5, after checks of form and text."""
    check_level(mod, 3)
    local = tvm.transform.Sequential([LegalizeRedistribute(), *passes])(mod)
    check_level(local, 5)
    relax.analysis.well_formed(local)
    again = tvm.script.from_source(local.script(show_meta=True))
    tvm.ir.assert_structural_equal(again, local)
    return local


def run_equal(local, inputs, expected, name):
    """Run on an engine, compare bit for bit; what it counted."""
    created = engine(name)
    for got, want in zip(created.run(local, inputs), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    return created.collectives


def check_prediction(local, counts):
    """What export claims is what ran, and folding devices changes nothing."""
    exported = Program.from_json(td.export(local).to_json())
    assert differences(claimed_collectives(exported), counts) == ()
    folded = td.simulate(exported, SYSTEM)
    each = td.simulate(exported, SYSTEM, fold_devices=False)
    assert (folded.time_s, folded.devices) == (each.time_s, each.devices)
    return folded


@pytest.mark.parametrize("seed", range(7))
def test_random_programs_give_the_bits_of_one_device(seed):
    """Values, private functions and collectives on all kinds of shared devices."""
    mod, inputs, expected = program(seed)
    local = lowered(mod, *[OptimizeCollectives()] * (seed % 2), LowerDistIR())
    counts = run_equal(local, inputs, expected, "virtual")
    check_prediction(local, counts)
    assert run_equal(local, inputs, expected, "threads") == counts


@pytest.mark.parametrize("seed", [1, 4])
def test_passes_after_the_lowering_keep_the_order_in_which_devices_meet(seed):
    """Buckets, starts and dones are moved in each entry by itself, and must still fit."""
    mod, inputs, expected = program(seed, steps=20)
    passes = [LowerDistIR(), BucketReductions(), SplitCollectives(), ScheduleCollectives()]
    local = lowered(mod, *passes)
    counts = run_equal(local, inputs, expected, "virtual")
    check_prediction(local, counts)
    assert run_equal(local, inputs, expected, "threads") == counts


@pytest.mark.parametrize("seed", [9, 23, 28])
def test_schedules_that_would_order_the_collectives_of_a_mesh_otherwise(seed):
    """Each of these differs between its entries unless the order is kept; the simulator says so."""
    mod, _, _ = program(seed, steps=25)
    local = lowered(mod, LowerDistIR(), SplitCollectives(), ScheduleCollectives())
    assert td.simulate(td.export(local), SYSTEM).time_s > 0


@pytest.mark.parametrize(("name", "library"), [("torch", "torch"), ("mpi", "mpi4py")])
def test_engines_of_processes(name, library):
    pytest.importorskip(library)
    mod, inputs, expected = program(3)
    local = lowered(mod, LowerDistIR())
    assert run_equal(local, inputs, expected, name) == run_equal(local, inputs, expected, "virtual")


def test_devices_of_the_same_meshes_are_a_class():
    square = device_mesh({"b": 2, "c": 2}, device_ids=[3, 1, 0, 2])
    odd = device_mesh({"d": 3}, device_ids=[5, 2, 1])
    meshes = [device_mesh({"a": 4}), square, odd, device_mesh({"e": 1}, start=7)]
    result = device_classes(meshes, [0, 1, 2, 3])
    assert [(c.meshes, c.devices, c.shares) for c in result] == [
        ((0, 1), (0, 3), True),
        ((0, 1, 2), (1, 2), True),
        ((2,), (5,), True),
        ((3,), (7,), False),
    ]
    names = ["main_mesh0", "main_mesh0_2", "main_mesh2", "main_mesh3"]
    assert entry_names("main", meshes, result) == names
    alone = device_classes(meshes, [0, 1])
    assert [(c.meshes, c.shares) for c in alone] == [((0, 1), False)]
    assert entry_names("main", meshes, alone) == ["main"]


MODEL = """
@I.ir_module
class Module:
    @R.function(private=True)
    def layer(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w0: R.Tensor((16, 16), "float32"),
        w1: R.Tensor((16, 16), "float32"),
        w2: R.Tensor((16, 16), "float32"),
        head: R.Tensor((16, 4), "float32"),
    ):
        R.func_attr({"num_input": 1})
        cls = Module
        with R.dataflow():
            a = cls.layer(x, w0)
            b = cls.layer(a, w1)
            c = cls.layer(b, w2)
            o = R.matmul(c, head)
            R.output(b, o)
        return (b, o)
"""


def rule(index, mesh, placement):
    return {"call": "layer", "index": index, "arg": 1, "placement": placement, "mesh": mesh}


PLANS = {
    "encoder and head": {
        "meshes": {"all": {"axes": {"tp": 4}}, "some": {"axes": {"tp": 2}, "device_ids": [1, 3]}},
        "rules": [
            rule(0, "all", "S[1]"),
            rule(1, "all", "S[0]"),
            rule(2, "some", "S[1]"),
            {"param": "head", "placement": "S[0]", "mesh": "some"},
        ],
    },
    "stages in a ring": {
        "meshes": {
            "s0": {"axes": {"tp": 2}},
            "s1": {"axes": {"tp": 2}, "device_ids": [1, 2]},
            "s2": {"axes": {"tp": 2}, "device_ids": [2, 0]},
        },
        "rules": [rule(0, "s0", "S[0]"), rule(1, "s1", "S[1]"), rule(2, "s2", "S[0]")],
    },
    "another order, then one device": {
        "meshes": {
            "row": {"axes": {"tp": 4}},
            "square": {"axes": {"a": 2, "b": 2}, "device_ids": [3, 1, 0, 2]},
            "one": {"axes": {"x": 1}, "start": 2},
        },
        "rules": [rule(0, "row", "S[1]"), rule(1, "square", "S[0], S[1]"), rule(2, "one", "R")],
    },
}


def planned(name):
    """The model and a plan."""
    plan = td.Plan.from_dict({"schema_version": 1, **PLANS[name]})
    return tvm.script.from_source(MODEL), plan


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("how", ["virtual", "threads"])
def test_plans_of_overlapping_meshes_are_verified(name, how):
    report = td.verify(*planned(name), engine=how, exact=True)
    assert report.equal
    assert report.unlike_claims == ()


def drawn(mod):
    rng = np.random.default_rng(5)
    shapes = [[int(n) for n in p.ty.shape] for p in mod["main"].params]
    return [rng.integers(-2, 3, shape).astype("float32") for shape in shapes]


def reference(values):
    x, w0, w1, w2, head = (v.astype("float64") for v in values)
    b = np.maximum(np.maximum(x @ w0, 0) @ w1, 0)
    return b, np.maximum(b @ w2, 0) @ head


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_deployed_folder_holds_each_shard_once(name, tmp_path):
    """Libraries by class of devices, weights by shards; data from every run."""
    mod, plan = planned(name)
    values = drawn(mod)
    weights = dict(zip(["w0", "w1", "w2", "head"], values[1:]))
    dist = td.distribute(mod, plan)
    td.deploy(dist, tmp_path / "folder", weights)
    loaded = td.load(tmp_path / "folder", check=True)
    assert loaded.entries == entries(dist)
    stored = sum(f.stat().st_size for f in (tmp_path / "folder").glob("*.safetensors"))
    assert sum(v.nbytes for v in values[1:]) <= stored < sum(v.nbytes for v in values[1:]) + 4096
    for how in ("threads", "virtual"):
        for got, want in zip(loaded.run([values[0]], engine=how), reference(values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_prediction_of_the_encoder_and_the_head():
    """Memory, traffic and work of a device of both meshes, and of one that is in one only."""
    mod, plan = planned("encoder and head")
    created = engine("virtual")
    dist = td.distribute(mod, plan)
    created.run(dist, drawn(mod))
    result = check_prediction(dist, created.collectives)
    by_id = {d.id: d for d in result.devices}
    assert [by_id[i].mesh for i in range(4)] == ["all", "all+some", "all", "all+some"]
    quarter = 2 * 16 * 16 * 4 // 4  # of w0 and w1
    assert by_id[0].param_bytes == quarter
    assert by_id[1].param_bytes == quarter + 16 * 16 * 4 // 2 + 16 * 4 * 4 // 2
    layers = 2 * (2 * 8 * 16 * 16) // 4
    assert by_id[1].flops - by_id[0].flops >= (2 * 8 * 16 * 16 + 2 * 8 * 16 * 4) // 2
    assert by_id[0].flops >= layers
    sends = [c for c in result.collectives if c.kind == "send"]
    assert [(c.mesh_axis, c.wire_bytes_per_device) for c in sends] == [("all->some", 0)]
    assert sends[0].time_s == 0


@pytest.mark.parametrize("name", sorted(PLANS))
def test_traffic_counts_what_entries_share_once(name):
    """As at level 4, where there is one function."""
    mod, plan = planned(name)
    road = [AnnotateSharding(plan), PropagateSharding(), LegalizeRedistribute()]
    legal = tvm.transform.Sequential(road)(mod)
    assert traffic(legal).counts
    assert traffic(LowerDistIR()(legal)).counts == traffic(legal).counts


REPLICATED = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"], ["b"]]})
    I.module_global_infos({"mesh": [
        R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2,), I.Range(1, 3))]})
    @R.function
    def main(x: R.DTensor((8, 6), "float32", "mesh[0]", "R")):
        with R.dataflow():
            y = R.negative(x)
            m = R.dist.redistribute(y, "mesh[1]", "S[1]")
            z = R.negative(m)
            R.output(z)
        return z
"""


def test_what_a_device_holds_already_is_not_sent():
    local = lowered(tvm.script.from_source(REPLICATED), LowerDistIR())
    x = np.arange(48, dtype="float32").reshape(8, 6)
    for how in ("virtual", "threads"):
        (sent,) = run_equal(local, [x], [x], how)
        assert (sent.kind, sent.count, sent.wire_bytes_per_device) == ("send", 1, 0)
    result = td.simulate(td.export(local), SYSTEM)
    assert all(d.comm_s == 0 for d in result.devices)


def test_outputs_of_a_mesh_need_all_of_its_entries():
    mod, plan = planned("stages in a ring")
    dist = td.distribute(mod, plan)
    result = entries(dist)
    assert sum(any(p.index == 0 for p in e.outputs) for e in result) == 2

    def zeros(entry, ports):
        return [np.zeros(entry.local_shape(p), "float32") for p in ports]

    results = {rank: zeros(e, e.outputs) for e in result for rank in e.ranks}
    assert len(gather_outputs(result, results)) == 2
    producer = next(e for e in result if any(p.index == 0 for p in e.outputs))
    outputs = tuple(p for p in producer.outputs if p.index)
    mine = tuple(
        e if e is not producer else dataclasses.replace(e, outputs=outputs) for e in result
    )
    results.update({rank: zeros(producer, outputs) for rank in producer.ranks})
    with pytest.raises(EngineError, match=r"DIST0603.*do not return it"):
        gather_outputs(mine, results)


def test_the_families_of_meshes_share_devices():
    """So that the random programs test what they are for."""
    for meshes in MESHES:
        created = [h.mesh_of(shape, devices) for shape, devices in meshes]
        assert any(c.shares for c in device_classes(created, range(len(created))))


SUMMED = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"], ["b"]]})
    I.module_global_infos({"mesh": [
        R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2,), I.Range(START, END))]})
    @R.function
    def main(
        x: R.DTensor((8, 6), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((6, 8), "float32", "mesh[0]", "S[0]"),
    ):
        with R.dataflow():
            y: R.DTensor((8, 8), "float32", "mesh[0]", "R") = R.matmul(x, w)
            m = R.dist.redistribute(y, "mesh[1]", "PLACE")
            z = R.negative(m)
            R.output(z)
        return z
"""


@pytest.mark.parametrize("place", ["R", "S[0]", "S[1]"])
@pytest.mark.parametrize("start", [0, 3, 4])
def test_a_sum_for_another_mesh_is_scattered_and_sent_by_parts(start, place):
    """Unless the receivers hold all of the sum: then reducing it moves all that must move."""
    text = SUMMED.replace("START", str(start)).replace("END", str(start + 2))
    mod = tvm.script.from_source(text.replace("PLACE", place))
    legal = LegalizeRedistribute()(mod)
    fused = OptimizeCollectives()(legal)
    check_level(fused, 4)
    tvm.ir.assert_structural_equal(tvm.script.from_source(fused.script(show_meta=True)), fused)
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-2, 3, shape).astype("float32") for shape in ((8, 6), (6, 8)))
    moved = []
    for level4 in (legal, fused):
        local = LowerDistIR()(level4)
        counts = run_equal(local, [x, w], [-(x @ w)], "virtual")
        assert run_equal(local, [x, w], [-(x @ w)], "threads") == counts
        assert differences(claimed_collectives(td.export(local)), counts) == ()
        devices = {c.kind: 2 if c.kind == "send" else 4 for c in counts}
        moved.append({c.kind: c.wire_bytes_per_device * devices[c.kind] for c in counts})
    before, after = moved
    assert before["all_reduce"] == 4 * 2 * 3 * 256 // 4
    if (start, place) == (0, "R"):
        assert after == before
        return
    assert after["reduce_scatter"] == before["all_reduce"] // 2
    assert sum(after.values()) <= sum(before.values())
    assert after["send"] >= before["send"]


APART = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"], ["b"]]})
    I.module_global_infos({"mesh": [
        R.device_mesh((3,), I.Range(0, 3)), R.device_mesh((2,), I.Range(1, 3))]})
    @R.function
    def main_mesh0(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"dist.io": {"mesh": 0, "devices": [0], "inputs": [IO], "outputs": [IO]}})
        y = R.dist.all_reduce(x, device_mesh="mesh[0]", mesh_axes=[0], op="sum")
        return y
    @R.function
    def main_mesh0_1(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"dist.io": {"mesh": 0, "devices": [1, 2], "inputs": [IO], "outputs": [IO]}})
        OTHER
        return y
"""
REDUCE = 'y = R.dist.all_reduce(x, device_mesh="mesh[N]", mesh_axes=[0], op="sum")'


@pytest.mark.parametrize("how", ["virtual", "threads"])
@pytest.mark.parametrize(
    ("other", "codes"),
    [
        (REDUCE.replace("[N]", "[0]"), ()),
        (REDUCE.replace("[N]", "[0]").replace("sum", "max"), ("DIST0611",)),
        (REDUCE.replace("[N]", "[1]"), ("DIST0610",)),
        ("y = R.negative(x)", ("DIST0610",)),
    ],
)
def test_entries_that_do_not_meet_are_found(other, codes, how):
    """The same collective, another one, one on another mesh, none at all."""
    port = {"index": 0, "name": "x", "shape": [4], "dtype": "float32", "placement": "R"}
    mod = tvm.script.from_source(APART.replace("IO", str(port)).replace("OTHER", other))
    x = np.arange(4, dtype="float32")
    if not codes:
        run_equal(mod, [x], [3 * x], how)
        return
    with pytest.raises(EngineError) as caught:
        engine(how).run(mod, [x])
    assert caught.value.code in codes
