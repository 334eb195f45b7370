# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""PropagateSharding on hard cases: made tensors, training, several meshes, blocks, functions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R_

import tvm_distir as td
from tests.core.propagation.modules_made import F32, build, distribute, moves, placement, tensor
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.mesh import mesh_devices
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.models import zoo
from tvm_distir.support.errors.tree import LevelError, PropagationError


def test_tensors_made_from_nothing():
    """zeros, ones and arange are placed, and computed right on every device."""
    x = relax.Var("x", tensor(8, 4))

    def body(e, _):
        count = e(R_.astype(e(R_.broadcast_to(e(R_.arange(0, 4)), (8, 4))), F32))
        filled = e(R_.add(e(R_.zeros((8, 4), F32)), e(R_.ones((8, 4), F32))))
        return e(R_.add(x, e(R_.add(count, filled))))

    out = distribute(build([x], body), [{"param": "x", "placement": "S[0]"}], a=2)
    assert labels_of(out["main"].ret_ty.placement) == (0,)
    lowered = LowerDistIR()(LegalizeRedistribute()(out))
    (result,) = td.run(lowered, [np.zeros((8, 4), F32)], engine="virtual")
    assert np.array_equal(result, np.tile(np.arange(4) + 1, (8, 1)))


def test_bfloat16_float_ops_parse_back():
    """Ops whose stock DTensor inference refuses bfloat16."""
    x = relax.Var("x", relax.TensorType((8, 4), "bfloat16"))
    mod = build([x], lambda e, _: e(R_.nn.silu(e(R_.exp(x)))))
    out = distribute(mod, [{"param": "x", "placement": "S[0]"}], a=2)
    assert labels_of(out["main"].ret_ty.placement) == (0,)


def test_an_uneven_dim_over_two_axes_is_refused():
    """An annotation of the user's own that cuts 4 rows into 3 x 2 parts."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((3, 2), I.Range(0, 6))]})
    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        y = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], S[0]")
        return y
"""
    with pytest.raises(PropagationError, match=r"DIST0416.*dim 0 of size 4.*6 parts"):
        PropagateSharding()(tvm.script.from_source(text))


def test_an_uneven_dim_over_two_axes_is_cut():
    """Seven rows in four parts; the result is that of one device."""
    x, w = relax.Var("x", tensor(7, 4)), relax.Var("w", tensor(4, 6))
    mod = build([x, w], lambda emit, _: emit(R_.matmul(x, w)))
    rules = [{"param": "x", "placement": "S[0], S[0]"}]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules})
    assert verify(mod, plan, exact=True).equal
    assert placement(distribute(mod, rules, a=2, b=2), "x") == (0, 0)


def test_costs_of_huge_models_stay_finite():
    """A stationary plan of a 405B model at a batch of 2048 is feasible."""
    mod = zoo.llama(size="405b", batch=2048, seq=8192, layers=4)
    plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 8, "tp": 8})
    assert moves(PropagateSharding()(AnnotateSharding(plan)(mod))) == []


@pytest.mark.parametrize(
    ("clone_bytes", "functions"),
    [(0, ["f", "f_1", "main"]), (16384, ["f", "f_1", "main"]), (65536, ["f", "main"])],
)
def test_clone_or_redistribute(clone_bytes, functions):
    """A second specialisation is kept until it costs more than gathering one argument.

    The argument has 64 x 64 x 4 = 16,384 bytes: to move it from (R, S[0]) to (S[0], R) sends
    8 KiB at most, and computing with it replicated along one axis costs some more.
    """
    p, w = relax.Var("t", tensor(64, 64)), relax.Var("w", tensor(64, 64))
    xs = [relax.Var(n, tensor(64, 64)) for n in ("a", "b")]
    weight = relax.Var("w", tensor(64, 64))
    mod = build(
        [*xs, weight],
        lambda e, gvs: relax.Tuple([e(tvm.ir.Call(gvs["f"], [x, weight])) for x in xs]),
        {"f": ([p, w], lambda e, _: e(R_.nn.relu(e(R_.matmul(p, w)))))},
    )
    rules = [
        {"param": "a", "placement": "S[0], R"},
        {"param": "b", "placement": "R, S[0]"},
        {"param": "w", "placement": "R, R"},
    ]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"x": 2, "y": 2}, "rules": rules})
    out = PropagateSharding(Costs(clone=1024 * clone_bytes))(AnnotateSharding(plan)(mod))
    check_level(out, 3)
    assert sorted(str(g.name_hint) for g in out.functions) == functions
    assert len(moves(out)) == (1 if len(functions) == 2 else 0)
    lowered = LowerDistIR()(LegalizeRedistribute()(out))
    rng = np.random.default_rng(0)
    a, b, v = (rng.integers(-2, 3, (64, 64)).astype(F32) for _ in range(3))
    result = td.run(lowered, [a, b, v], engine="virtual")
    assert np.array_equal(result[0], np.maximum(a @ v, 0))
    assert np.array_equal(result[1], np.maximum(b @ v, 0))


def mlp_training_step(batch):
    """Loss and weight gradients of a two-layer residual-free MLP, by TVM's Gradient."""
    shapes = [(256, 1024), (1024, 256), (256, 1024), (1024, 256)]
    x, t = relax.Var("x", tensor(batch, 256)), relax.Var("t", tensor(batch, 256))
    ws = [relax.Var(f"w{i}", tensor(*s)) for i, s in enumerate(shapes)]

    def body(e, _):
        y = x
        for i in (0, 2):
            y = e(R_.matmul(e(R_.nn.relu(e(R_.matmul(y, ws[i])))), ws[i + 1]))
        d = e(R_.subtract(y, t))
        return e(R_.mean(e(R_.multiply(d, d))))

    mod = build([x, t, *ws], body)
    wrt = [p for p in mod["main"].params if p.name.startswith("w")]
    adjoint = relax.transform.Gradient("main", require_grads=wrt)(mod)["main_adjoint"]
    return tvm.IRModule({"main": adjoint.with_attr("global_symbol", "main")})


def collectives(mod):
    """How often each collective stands in a flat module at level 4."""
    text = LegalizeRedistribute()(mod).script()
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    return {kind: text.count(f"R.dist.{kind}(") for kind in kinds}


def test_zero3_emerges_from_storage_placements():
    """Sharded weights and batch, nothing stationary: each weight gathered, its gradient scattered.

    At a large batch moving activations is dearer. One gather serves forward and backward; the
    one all-reduce is the loss.
    """
    rules = [{"param": n, "placement": "S[0]"} for n in ("x", "t")]
    rules += [{"param": f"w{i}", "placement": "S[0]", "stationary": False} for i in range(4)]
    out = distribute(mlp_training_step(65536), rules, dp=8)
    result = collectives(out)
    assert result == {"all_gather": 4, "reduce_scatter": 4, "all_reduce": 1, "all_to_all": 0}
    gradients = out["main"].ret_ty.fields[1].fields
    assert [labels_of(g.placement) for g in gradients] == [(0,)] * 4


def test_data_parallel_training_reduces_each_gradient_once():
    """Replicated stationary weights: one all-reduce per weight gradient and one for the loss."""
    rules = [{"param": n, "placement": "S[0]"} for n in ("x", "t")]
    rules += [{"param": f"w{i}", "placement": "R", "stationary": True} for i in range(4)]
    result = collectives(distribute(mlp_training_step(65536), rules, dp=8))
    assert result == {"all_gather": 0, "reduce_scatter": 0, "all_reduce": 5, "all_to_all": 0}


def test_an_op_runs_on_the_latest_mesh_of_its_operands():
    """A residual from stage 0 is brought to stage 1, where it is added."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2)),
                                    R.device_mesh((2,), I.Range(2, 4))]})
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
        a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
        b = R.nn.relu(a)
        c = R.dist.annotate_sharding(b, device_mesh="mesh[1]", placement="S[0]")
        d = R.matmul(c, w)
        e = R.add(b, d)
        return e
"""
    out = PropagateSharding()(tvm.script.from_source(text))
    check_level(out, 3)
    meshes = {b.var.name: b.var.ty.device_mesh for b in out["main"].body.blocks[0].bindings}
    first = {n: int(mesh_devices(m).min()) for n, m in meshes.items()}
    assert (first["d"], first["e"]) == (2, 2)
    assert [mesh_devices(p.ty.device_mesh)[0] for p in out["main"].params] == [0, 2]


def test_inference_ignores_factors_that_only_constants_name():
    """A convolution of a whole input by a constant: nothing is sharded by parsing it."""
    weight = relax.const(np.ones((4, 3, 3, 3), F32))
    x = relax.Var("x", tensor(4, 3, 8, 8))
    mod = build([x], lambda e, _: e(R_.nn.conv2d(x, weight)))
    out = distribute(mod, [{"param": "x", "placement": "R"}], tp=2)
    assert labels_of(out["main"].ret_ty.placement) == (-1,)


def test_tuples_across_meshes():
    """A tuple that mixes meshes is taken apart; each mesh's program holds its own fields."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2)),
                                    R.device_mesh((2,), I.Range(2, 4))]})
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
        pair = (x, y)
        nested = (y, pair)
        inner = nested[1]
        with R.dataflow():
            a = R.dist.annotate_sharding(x, device_mesh="mesh[1]", placement="S[0]")
            b = R.nn.relu(a)
            both = (b, inner)
            c = inner[1]
            d = R.dist.annotate_sharding(c, device_mesh="mesh[0]", placement="S[1]")
            e = R.exp(d)
            R.output(b, e)
        result = (b, e)
        return result
"""
    out = PropagateSharding()(tvm.script.from_source(text))
    relax.analysis.well_formed(out)
    check_level(out, 3)
    assert tvm_ffi.structural_equal(tvm.script.from_source(out.script(show_meta=True)), out)
    lowered = LowerDistIR()(LegalizeRedistribute()(out))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, (4, 4)).astype(F32) for _ in range(2))
    result = td.run(lowered, [x, y], engine="virtual")
    assert np.array_equal(result[0], np.maximum(x, 0))
    assert np.allclose(result[1], np.exp(y), rtol=1e-6)


def test_outputs_that_their_block_reads_parse_back():
    """TVM's inference gives the product of a 4-D and a 1-D tensor as whole; the text says S[1]."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(x: R.Tensor((2, 4, 3, 5), "float32"), w: R.Tensor((5,), "float32")):
        with R.dataflow():
            a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
            b = R.nn.relu(a)
            c = R.matmul(b, w)
            d = (c, b)
            e = d[0]
            f = R.exp(e)
            R.output(b, d, f)
        out = (b, d, f)
        return out
"""
    out = PropagateSharding()(tvm.script.from_source(text))
    relax.analysis.well_formed(out)
    check_level(out, 3)
    assert tvm_ffi.structural_equal(tvm.script.from_source(out.script(show_meta=True)), out)
    kinds = [labels_of(t.placement) for t in flat_types(out["main"].ret_ty)]
    assert kinds == [(1,), (1,), (1,), (1,)]


def test_annotations_inside_private_functions_count():
    """The function's own annotation of its parameter holds, whatever the caller has."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def f(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        xp = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[1]")
        y = R.nn.relu(xp)
        return y
    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Module
        a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
        y: R.Tensor((4, 4), "float32") = cls.f(a)
        return y
"""
    out = PropagateSharding()(tvm.script.from_source(text))
    check_level(out, 3)
    assert placement(out, "x") == (0,)
    assert moves(out) == [((0,), (1,))]
    assert labels_of(out["main"].ret_ty.placement) == (1,)


def test_squeeze_keeps_a_dim_cut_down_to_one():
    """(2, 1, 6) over 2 devices: each shard is (1, 1, 6), its result (1, 6)."""
    x = relax.Var("x", tensor(2, 1, 6))
    mod = build([x], lambda e, _: e(R_.squeeze(x)))
    out = distribute(mod, [{"param": "x", "placement": "S[0]"}], a=2)
    lowered = LowerDistIR()(LegalizeRedistribute()(out))
    value = np.arange(12, dtype=F32).reshape(2, 1, 6)
    (result,) = td.run(lowered, [value], engine="virtual")
    assert np.array_equal(result, value.reshape(2, 6))


def _calling(local: bool) -> tvm.IRModule:
    """Return a module that calls a function inside of ``main``, or beside it with all it reads."""
    x, w = relax.Var("x", tensor(4, 4)), relax.Var("w", tensor(4, 4))
    bb = relax.BlockBuilder()
    a, v = relax.Var("a", tensor(4, 4)), w if local else relax.Var("v", tensor(4, 4))
    product = relax.Var("product", tensor(4, 4))
    binding = relax.VarBinding(product, bb.normalize(R_.matmul(a, v)))
    body = relax.SeqExpr([relax.BindingBlock([binding])], product)
    inner = relax.Function([a] if local else [a, v], body, tensor(4, 4))
    with bb.function("main", [x, w]):
        callee = bb.emit(inner) if local else bb.add_func(inner, "inner")
        result = bb.emit(callee(x) if local else callee(x, w))
        bb.emit_func_output(result)
    return bb.get()


def test_what_the_error_about_normal_form_advises_is_enough():
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 2}, "rules": [
        {"param": "x", "placement": "S[0]"}]})  # fmt: skip
    verify(_calling(local=True), plan).check()  # a local function that is called is a private one
    with pytest.raises(LevelError, match=r"DIST0453 inner: .*Run relax.transform.Normalize first"):
        verify(_calling(local=False), plan)
    verify(relax.transform.Normalize()(_calling(local=False)), plan).check()
    x, y = relax.Var("x", tensor(4, 4)), relax.Var("y", tensor(4, 4))
    binding = relax.VarBinding(y, R_.nn.relu(R_.negative(x)))
    body = relax.SeqExpr([relax.BindingBlock([binding])], y)
    fn = relax.Function([x], body, tensor(4, 4)).with_attr("global_symbol", "main")
    nested = tvm.IRModule({"main": fn})
    with pytest.raises(LevelError, match=r"DIST0453 main: .*Run relax.transform.Normalize first"):
        td.distribute(nested, plan)
    verify(relax.transform.Normalize()(nested), plan).check()
