# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decode steps, packed functions, objects and random numbers, by execution."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.integration.decode_models import (
    UPDATES,
    B,
    E,
    H,
    T,
    inputs_of,
    object_cache,
    packed,
    tensor_cache,
    var,
)
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ops.packed import PackedForm, register_packed_rule
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.support.errors.tree import PropagationError
from tvm_distir.transforms.optimize.passes import OptimizeCollectives

F32 = "float32"
HEADS = {"wq": "S[1]", "wk": "S[1]", "wv": "S[1]", "wo": "S[0]"}


def plan_of(mesh, rules, stationary=True):
    matches = [
        {"param": name, "placement": text, "stationary": stationary} for name, text in rules.items()
    ]
    return td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": matches})


def levels(mod, plan):
    """The module at the levels 3, 4 and 5, each checked, printed and parsed back."""
    matches = [PropagateSharding()(AnnotateSharding(plan)(mod))]
    matches.append(OptimizeCollectives()(LegalizeRedistribute()(matches[0])))
    matches.append(LowerDistIR()(matches[1]))
    for number, single in enumerate(matches, 3):
        check_level(single, number)
        tvm.ir.assert_structural_equal(
            tvm.script.from_source(single.script(show_meta=True)), single
        )
    return matches


def outputs(local):
    return [str(o["placement"]) for o in local["main"].attrs["dist.io"]["outputs"]]


# the cache as tensors ------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
def test_a_cache_of_tensors_cut_by_heads(update):
    """The cache stays where it is; one all-reduce of the output, as Megatron's attention."""
    mod = tensor_cache(update)
    plan = plan_of({"tp": 4}, {**HEADS, "k_cache": "S[2]", "v_cache": "S[2]"})
    *_, local = levels(mod, plan)
    assert outputs(local) == ["R", "S[2]", "S[2]"]
    report = td.verify(mod, plan, inputs=inputs_of(mod, update), dist=local)
    assert report.equal
    assert [(c.kind, c.count) for c in report.collectives] == [("all_reduce", 1)]
    result = td.simulate(td.export(local), td.System.load("dgx-a100"))
    assert not result.unmodelled_ops


@pytest.mark.parametrize("update", [u for u in UPDATES if u != "scatter_nd"])
def test_a_cache_of_tensors_cut_by_batch_and_heads(update):
    """Over dp nothing is sent, over tp the output is reduced."""
    mod = tensor_cache(update)
    batch = {"x": "S[0]", "k_cache": "S[0]", "v_cache": "S[0]"}
    report = td.verify(mod, plan_of({"dp": 4}, batch), inputs=inputs_of(mod, update))
    assert report.equal
    assert not report.collectives
    both = {name: f"R, {text}" for name, text in HEADS.items()}
    both |= {"x": "S[0], R", "k_cache": "S[0], S[2]", "v_cache": "S[0], S[2]"}
    plan = plan_of({"dp": 2, "tp": 2}, both)
    local = td.distribute(mod, plan)
    assert outputs(local) == ["S[0], R", "S[0], S[2]", "S[0], S[2]"]
    report = td.verify(mod, plan, inputs=inputs_of(mod, update), dist=local)
    assert report.equal
    assert [(c.kind, c.mesh_axis, c.count) for c in report.collectives] == [("all_reduce", "tp", 1)]


def test_a_batch_that_is_indexed_cannot_stay_cut():
    """scatter_nd writes rows by number: the numbers are those of the whole cache."""
    mod = tensor_cache("scatter_nd")
    plan = plan_of({"dp": 4}, {"k_cache": "S[0]"})
    with pytest.raises(PropagationError, match=r"DIST0411.*scatter_nd.*indexed"):
        td.distribute(mod, plan)
    moved = plan_of({"dp": 4}, {"k_cache": "S[0]"}, stationary=False)
    assert td.verify(mod, moved, inputs=inputs_of(mod, "scatter_nd")).equal


# the cache as an object ----------------------------------------------------------------

OBJECT_PLANS = {
    "heads": ({"tp": 4}, {**HEADS, "k0": "S[1]", "v0": "S[1]"}, True),
    "numbers of a head": ({"tp": 2}, {"k0": "S[2]"}, False),
    "rows are whole": ({"tp": 2}, {"k0": "S[0]"}, False),
    "from the weights": ({"tp": 2}, {"wk": "S[1]", "wv": "S[1]"}, False),
    "whole": ({"tp": 2}, {"wo": "S[1]"}, False),
    "two axes": ({"a": 2, "b": 2}, {"wk": "R, S[1]", "k0": "S[2], S[1]"}, False),
}


@pytest.mark.parametrize("name", sorted(OBJECT_PLANS))
def test_a_cache_that_is_an_object(name):
    """TVM's attention cache, made, appended to and viewed by each device."""
    mod = object_cache()
    plan = plan_of(*OBJECT_PLANS[name])
    *_, local = levels(mod, plan)
    engines = ("virtual", "threads") if name == "heads" else ("virtual",)
    for engine in engines:
        assert td.verify(mod, plan, engine=engine, dist=local).equal
    result = td.simulate(td.export(local), td.System.load("dgx-a100"))
    assert not result.unmodelled_ops


def test_heads_of_an_object_cost_one_reduction_per_token():
    mod = object_cache(steps=2)
    plan = plan_of(*OBJECT_PLANS["heads"])
    local = td.distribute(mod, plan)
    assert f"R.shape([{T + 2}, {H // 4}, 8])" in str(local["main"])
    report = td.verify(mod, plan, dist=local)
    assert [(c.kind, c.count) for c in report.collectives] == [("all_reduce", 2)]


def test_a_packed_function_sees_whole_tensors_by_default():
    """Without a rule every device calls it on the whole: what is cut is gathered before."""
    seen = []

    name = "tvm_distir_tests.running_total"
    tvm_ffi.register_global_func(name, lambda x: _running_total(seen, x), override=True)
    bb = relax.BlockBuilder()
    x = var("x", (8,))
    with bb.function("main", [x], pure=False):
        y = packed(bb, name, bb.emit(relax.op.add(x, x)), ty=relax.TensorType([8], F32))
        bb.emit_func_output(bb.emit(relax.op.add(y, y)))
    mod = bb.finalize()
    plan = plan_of({"a": 4}, {"x": "S[0]"})
    local = td.distribute(mod, plan)
    (got,) = VirtualEngine().run(local, [np.arange(8, dtype=F32)])
    assert np.array_equal(got, 2 * np.cumsum(2 * np.arange(8, dtype=F32)))
    assert seen == [(8,)] * 4
    assert td.simulate(td.export(local), td.System.load("dgx-a100")).unmodelled_ops == (name,)


def _running_total(seen, x):
    seen.append(tuple(int(n) for n in x.shape))
    return tvm.runtime.tensor(np.cumsum(x.numpy(), dtype=F32))


def test_a_rule_for_a_packed_function_of_ones_own():
    """One function says which dims go together; nothing is gathered any more."""
    name = "tvm_distir_tests.rowwise_total"

    @register_packed_rule(name, override=True)
    def rowwise(call):
        return PackedForm([({0: 0}, {0: 0})])

    shapes = []

    def sum_along_rows(x):
        shapes.append(tuple(int(n) for n in x.shape))
        return tvm.runtime.tensor(np.cumsum(x.numpy(), axis=1, dtype=F32))

    tvm_ffi.register_global_func(name, sum_along_rows, override=True)
    bb = relax.BlockBuilder()
    x = var("x", (8, 3))
    with bb.function("main", [x], pure=False):
        bb.emit_func_output(packed(bb, name, x, ty=relax.TensorType([8, 3], F32)))
    mod = bb.finalize()
    local = td.distribute(mod, plan_of({"a": 4}, {"x": "S[0]"}))
    value = np.arange(24, dtype=F32).reshape(8, 3)
    engine = VirtualEngine()
    (got,) = engine.run(local, [value])
    assert np.array_equal(got, np.cumsum(value, axis=1))
    assert shapes == [(2, 3)] * 4
    assert not engine.collectives
    gathered = td.distribute(mod, plan_of({"a": 3}, {"x": "S[1]"}, stationary=False))
    (got,) = VirtualEngine().run(gathered, [value])
    assert np.array_equal(got, np.cumsum(value, axis=1))


@pytest.mark.parametrize("how", ["pure", "dps", "dps mixed"])
def test_ops_that_call_packed_functions(how):
    """``call_pure_packed`` and ``call_dps_packed`` go the way of ``call_packed``."""
    name = f"tvm_distir_tests.{how.replace(' ', '_')}"
    shapes = []

    def sum_down_columns(x, *rest):
        shapes.append(tuple(int(n) for n in x.shape))
        total = np.cumsum(x.numpy(), axis=0, dtype=F32)
        if how == "pure":
            return tvm.runtime.tensor(total)
        rest[-1].copyfrom(total)
        return None

    tvm_ffi.register_global_func(name, sum_down_columns, override=True)
    bb = relax.BlockBuilder()
    x, w = var("x", (4, 8)), var("w", (8, 6))
    ty = relax.TensorType([4, 6], F32)
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(relax.op.matmul(x, w))
            if how == "pure":
                z = bb.emit(relax.op.call_pure_packed(name, y, ty_args=ty))
            else:
                more = [relax.ShapeExpr([4, 6])] if how == "dps mixed" else []
                z = bb.emit(relax.op.call_dps_packed(name, relax.Tuple([y, *more]), out_ty=ty))
            out = bb.emit_output(relax.op.add(z, z))
        bb.emit_func_output(out)
    mod = bb.finalize()
    values = [
        np.arange(32, dtype=F32).reshape(4, 8) % 5,
        np.arange(48, dtype=F32).reshape(8, 6) % 3,
    ]
    want = 2 * np.cumsum(values[0] @ values[1], axis=0)
    for rules in ({"x": "S[1]", "w": "S[0]"}, {"w": "S[1]"}, {"x": "S[0]"}):
        plan = plan_of({"a": 2}, rules)
        # TVM's constructor of call_dps_packed takes no DTensor types: its text cannot be parsed
        local = levels(mod, plan)[2] if how == "pure" else td.distribute(mod, plan)
        (got,) = VirtualEngine().run(local, values)
        assert np.array_equal(got, want)
        assert td.simulate(td.export(local), td.System.load("dgx-a100")).unmodelled_ops == (name,)
    assert set(shapes) == {(4, 6)}


def test_an_operand_that_is_overwritten_is_refused():
    """Somebody else may read it, in this form or another."""
    bb = relax.BlockBuilder()
    x = var("x", (4, 8))
    with bb.function("main", [x], pure=False):
        call = relax.op.call_inplace_packed("my.scale", x, inplace_indices=[0], ty_args=[x.ty])
        bb.emit_func_output(bb.emit(call))
    with pytest.raises(PropagationError, match=r"DIST0401 relax.call_inplace_packed.*overwrites"):
        td.distribute(bb.finalize(), plan_of({"a": 2}, {"x": "S[0]"}))


def test_an_uneven_dim_is_made_whole():
    """What padding means to a packed function nobody knows: it never sees any."""
    name = "tvm_distir_tests.padded"
    register_packed_rule(name, override=True)(lambda call: PackedForm([({0: 0}, {0: 0})]))
    bb = relax.BlockBuilder()
    x = var("x", (6, 3))
    with bb.function("main", [x], pure=False):
        bb.emit_func_output(packed(bb, name, x, ty=relax.TensorType([6, 3], F32)))
    mod = bb.finalize()
    local = td.distribute(mod, plan_of({"a": 4}, {"x": "S[0]"}, stationary=False))
    assert "R.Tensor((6, 3)" in str(local["main"])


def test_an_object_goes_out_of_an_entry():
    """A cache that an entry creates is an object of each device, with the heads of the device."""
    bb = relax.BlockBuilder()
    x = var("x", (T, H, 8))
    with bb.function("main", [x], pure=False):
        created = packed(
            bb,
            "vm.builtin.attention_kv_cache_create",
            x,
            relax.ShapeExpr([8, H, 8]),
            tvm.tirx.IntImm("int64", T),
        )
        bb.emit_func_output(created)
    dist = td.distribute(bb.finalize(), plan_of({"tp": 2}, {"x": "S[1]"}))
    values = np.arange(T * H * 8, dtype="float32").reshape(T, H, 8)
    (caches,) = td.run(dist, [values])
    shape = tvm.runtime.ShapeTuple([T, H // 2, 8])
    views = caches.call("vm.builtin.attention_kv_cache_view", shape)
    for view, part in zip(views, np.split(values, 2, axis=1), strict=True):
        assert np.array_equal(view.numpy(), part)


# random numbers ------------------------------------------------------------------------


def sampling():
    """``main(logits, w, uniform) -> sampled token of each row``."""
    bb = relax.BlockBuilder()
    x, w, u = var("x", (B, E)), var("w", (E, 16)), var("u", (B, 1))
    rows = var("rows", (B, 1), "int64")
    with bb.function("main", [x, w, u, rows]):
        with bb.dataflow():
            prob = bb.emit(relax.op.nn.softmax(relax.op.matmul(x, w)))
            drawn = bb.emit_output(relax.op.multinomial_from_uniform(prob, u, rows, "int64"))
        bb.emit_func_output(drawn)
    return bb.finalize()


@pytest.mark.parametrize(
    ("mesh", "rules"),
    [
        ({"a": 4}, {"x": "S[0]"}),
        ({"a": 4}, {"w": "S[1]"}),
        ({"a": 2, "b": 2}, {"x": "S[0], R", "w": "R, S[0]"}),
    ],
)
def test_samples_do_not_depend_on_the_sharding(mesh, rules):
    """The numbers come in as an input: every placement draws the same tokens."""
    mod = sampling()
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(B, E)).astype(F32), rng.normal(size=(E, 16)).astype(F32)
    inputs = [x, w, rng.random((B, 1), F32), np.arange(B, dtype="int64")[:, None]]
    local = td.distribute(mod, plan_of(mesh, rules, stationary=False))
    (got,) = VirtualEngine().run(local, inputs)
    scores = np.exp(x @ w - (x @ w).max(1, keepdims=True)).astype("float64")
    steps = np.cumsum(scores / scores.sum(1, keepdims=True), axis=1)
    want = (steps < inputs[2]).sum(1)
    assert np.array_equal(got[:, 0], want)


@pytest.mark.parametrize("name", ["tvm.contrib.random.uniform", "my.rng.next", "numpy.random"])
def test_a_stream_of_its_own_is_refused(name):
    """Devices would draw different numbers: refused by name, with what to do."""
    bb = relax.BlockBuilder()
    x = var("x", (8,))
    with bb.function("main", [x], pure=False):
        bb.emit_func_output(packed(bb, name, x, ty=relax.TensorType([8], F32)))
    with pytest.raises(PropagationError, match=rf"DIST0401 {name}.*its own random state"):
        td.distribute(bb.finalize(), plan_of({"a": 2}, {"x": "S[0]"}))


def test_dropout():
    """TVM has it as a mark of training only: inference leaves it out, nothing is drawn."""
    bb = relax.BlockBuilder()
    x = var("x", (8, 4))
    with bb.function("main", [x]):
        with bb.dataflow():
            both = bb.emit(relax.op.nn.dropout(x, 0.5))
            y = bb.emit_output(relax.op.add(bb.emit(relax.TupleGetItem(both, 0)), x))
        bb.emit_func_output(y)
    placed = PropagateSharding()(AnnotateSharding(plan_of({"a": 4}, {"x": "S[0]"}))(bb.finalize()))
    check_level(placed, 3)
