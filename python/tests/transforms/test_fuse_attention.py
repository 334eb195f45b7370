# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention as one op: against PyTorch, against what is written out, and on several devices."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.plain_systems import PLAIN_A100
from tests.quick_compilation import quick_machine
from tvm_distir.core.ir.operators import attention, attention_backward, attention_bias_gradient
from tvm_distir.core.rewriting import op_name
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.planning.study import Study
from tvm_distir.support.errors.tree import MeshError
from tvm_distir.transforms import FuseAttention

SMALL = "layers=1,hidden=32,heads=4,vocab=64,seq=8,batch=2,dtype=float32"
MODELS = (f"zoo:llama?{SMALL},kv_heads=2,ffn=64", f"zoo:gpt?{SMALL}")
ALTERNATING = "zoo:gemma?size=tiny,layers=2,seq=8,batch=2,vocab=32,hidden=16,sinks=1"
"""A model whose layers have a window in turn, with capped scores and with sinks."""


def ops_of(mod):
    """The names of the ops that a module calls."""
    return [op_name(value) for value in values_of(mod)]


def values_of(mod):
    """The values that are bound in a module."""
    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    return [b.value for fn in functions for b in all_bindings(fn.body)]


def calls_of(mod, name):
    """The calls of an op in a module."""
    return [value for value in values_of(mod) if op_name(value) == name]


def run_main(mod, arrays):
    """Run main, and return its results as arrays."""
    vm = quick_machine(mod)
    result = vm["main"](*[tvm.runtime.tensor(a) for a in arrays])
    leaves = [result] if hasattr(result, "numpy") else list(result)
    return [x.numpy() for x in leaves]


def program(shapes, dtype, **attrs):
    """Results, log-sum-exp and gradients of attention, as a module."""
    params = [
        relax.Var(name, relax.TensorType(list(shape), dtype)) for name, shape in shapes.items()
    ]
    named = dict(zip(shapes, params, strict=True))
    first, more = [named[n] for n in "qkv"], [named[n] for n in shapes if n == "bias"]
    sinks = [named[n] for n in shapes if n == "sinks"]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            pair = builder.emit(attention(*first, *more, *sinks, **attrs))
            out, lse = (builder.emit(relax.TupleGetItem(pair, i)) for i in range(2))
            args = (*first, out, named["do"], lse, *more)
            back = builder.emit(attention_backward(*args, **attrs))
            results = [out, lse, *(builder.emit(relax.TupleGetItem(back, i)) for i in range(3))]
            if more:
                results.append(builder.emit(attention_bias_gradient(*args, **attrs)))
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.get()


def judged(arrays, scale, causal=False, window=0, offset=0, cap=0.0):
    """What PyTorch computes in double precision."""
    torch = pytest.importorskip("torch")
    t = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items()}
    group = arrays["q"].shape[2] // arrays["k"].shape[2]
    k, v = (t[n].repeat_interleave(group, 2) for n in "kv")
    scores = torch.einsum("bshd,bthd->bhst", t["q"], k) * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    scores = scores + t["bias"] if "bias" in t else scores
    rows = torch.arange(scores.shape[2])[:, None] + offset
    columns = torch.arange(scores.shape[3])[None]
    if causal:
        seen = columns <= rows
        seen &= (rows - columns < window) if window else True
        scores = scores.masked_fill(~seen, -math.inf)
    if "sinks" in t:  # a key of each head whose value is zero
        sinks = t["sinks"][None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
        v = torch.cat([v, torch.zeros_like(v[:, :1])], 1)
    out = torch.einsum("bhst,bthe->bshe", torch.softmax(scores, -1), v)
    out.backward(t["do"].detach())
    grads = [t[n].grad for n in ("q", "k", "v", "bias") if n in t]
    return [x.detach().numpy() for x in (out, torch.logsumexp(scores, -1), *grads)]


CASES = {
    "plain": ((2, 5, 4, 8), (2, 5, 4, 8), None, {}),
    "cross": ((2, 5, 4, 8), (2, 7, 2, 8), None, {}),
    "causal": ((2, 5, 6, 8), (2, 7, 2, 8), None, {"causal": True, "offset": 2}),
    "window": ((1, 6, 3, 4), (1, 6, 1, 4), (1, 3, 1, 6), {"causal": True, "window": 3}),
    "bias": ((2, 6, 3, 4), (2, 6, 3, 4), (2, 1, 6, 6), {"causal": True}),
    "capped": ((2, 6, 4, 4), (2, 6, 2, 4), (2, 1, 6, 6), {"causal": True, "cap": 0.4}),
    "sinks": ((2, 6, 4, 4), (2, 6, 2, 4), None, {"causal": True, "window": 3}),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_torch(name, dtype):
    q, k, bias, attrs = CASES[name]
    shapes = {"q": q, "k": k, "v": (*k[:3], 6), "do": (*q[:3], 6)}
    shapes |= {} if bias is None else {"bias": bias}
    shapes |= {"sinks": q[2:3]} if name == "sinks" else {}
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    got = run_main(program(shapes, dtype, scale=0.3, **attrs), list(arrays.values()))
    bound = 1e-12 if dtype == "float64" else 2e-5
    for a, b in zip(got, judged(arrays, 0.3, **attrs), strict=True):
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound)


def test_a_query_that_sees_no_key_is_zero():
    """And gives no gradient: a block of keys behind all queries changes nothing."""
    shapes = {"q": (1, 2, 1, 4), "k": (1, 3, 1, 4), "v": (1, 3, 1, 4), "do": (1, 2, 1, 4)}
    arrays = [np.ones(s, "float32") for s in shapes.values()]
    out, lse, *gradients = run_main(
        program(shapes, "float32", scale=1.0, causal=True, offset=-2), arrays
    )
    assert not out.any() and (lse < -1e29).all()
    assert not any(g.any() for g in gradients)


def test_a_text_is_read_back():
    mod = program({n: (2, 4, 2, 8) for n in ("q", "k", "v", "do")}, "bfloat16", scale=0.5)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script(show_meta=True)), mod)


def test_heads_that_do_not_fit_are_refused():
    q, k = (relax.Var("x", relax.TensorType([1, 4, n, 8], "float32")) for n in (4, 3))
    with pytest.raises(MeshError, match="4 query heads for 3 key heads"):
        relax.BlockBuilder().normalize(attention(q, k, k, scale=1.0))


def test_a_training_step_is_that_of_written_attention():
    """Loss and new weights are equal, with no product of scores and no mask left."""
    mod = td.load_model(MODELS[0]).mod
    fused = FuseAttention()(mod)
    assert not {"nn.softmax", "nn.attention", "less_equal"} & set(ops_of(fused))
    steps = [td.train_step(x) for x in (mod, fused)]
    assert ops_of(steps[1]).count("dist.attention_backward") == 1
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 8, [int(n) for n in p.ty.shape]).astype(str(p.ty.dtype))
        if str(p.ty.dtype).startswith("int")
        else (rng.standard_normal([int(n) for n in p.ty.shape]) * 0.3).astype("float32")
        for p in steps[0]["main"].params
    ]
    for a, b in zip(*(run_main(step, arrays) for step in steps), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "strategy", "mesh"),
    [
        (MODELS[1], "megatron", {"tp": 2}),
        (ALTERNATING, "megatron", {"tp": 2}),
        (ALTERNATING, "context_parallel:form=ring", {"cp": 2}),
    ],
)
def test_a_sharded_step_is_that_of_written_attention(spec, strategy, mesh):
    """With capped scores, sinks and windows of every second layer too."""
    mod = td.load_model(spec).mod
    written, fused = (td.train_step(x) for x in (mod, FuseAttention()(mod)))
    windows = {call.attrs["window"] for call in calls_of(fused, "dist.attention_backward")}
    assert windows == ({0, 4} if spec == ALTERNATING else {0})  # a function for each mask
    study = Study(fused, strategy=strategy, mesh=mesh)
    assert "nn.softmax" not in ops_of(study.local)
    assert td.verify(written, study.step_plan, engine="virtual", dist=study.local).equal


@pytest.mark.parametrize(
    ("strategy", "mesh", "moved"),
    [
        ("data_parallel+megatron", {"dp": 2, "tp": 2}, "all_reduce"),
        ("context_parallel:form=gather", {"cp": 2}, "reduce_scatter"),
        ("context_parallel:form=all_to_all", {"cp": 2}, "all_to_all"),
        ("context_parallel:form=ring", {"cp": 2}, "collective_permute"),
    ],
)
def test_a_sharded_training_step_is_equal(strategy, mesh, moved):
    step = td.train_step(FuseAttention()(td.load_model(MODELS[0]).mod))
    study = Study(step, strategy=strategy, mesh=mesh)
    ops = ops_of(study.local)
    assert f"dist.{moved}" in ops
    blocks = 2 if "ring" in strategy else 1  # a kernel per key block
    assert ops.count("dist.attention_backward") == ops.count("dist.attention") == blocks
    assert td.verify(step, study.step_plan, engine="virtual", dist=study.local).equal


@pytest.mark.parametrize("spec", MODELS)
@pytest.mark.parametrize(
    ("form", "moved"),
    [("gather", "all_gather"), ("all_to_all", "all_to_all"), ("ring", "collective_permute")],
)
def test_the_form_of_context_parallelism_decides_what_moves(spec, form, moved):
    """Also where a system decides by times, and where an exchange would be as fast."""
    strategy = f"context_parallel:form={form}"
    study = Study(spec, strategy=strategy, mesh={"cp": 2}, system="h100", attention="fused")
    ops = ops_of(study.local)
    assert "dist.attention" in ops_of(study.forward)
    kinds = {"dist.all_gather", "dist.all_to_all", "dist.collective_permute", "dist.exchange"}
    assert kinds.intersection(ops) == {f"dist.{moved}"}
    plan = td.Plan.from_dict(study.step_plan.to_dict())
    assert plan.attention == "fused"
    model = td.load_model(spec).mod  # its attention is written out
    dist = td.distribute(model, plan, system="h100")
    assert f"dist.{moved}" in ops_of(dist)
    assert td.verify(model, plan, engine="virtual", dist=dist).equal
    again = Study(spec, plan)  # as commands take the plan, here without a system
    assert "dist.attention" in ops_of(again.forward)
    assert f"dist.{moved}" in ops_of(again.local)


def test_dropout_of_weights_is_named(caplog):
    """It stays written out, for the op draws no random numbers."""
    mod = td.load_model(f"zoo:gpt?{SMALL},dropout=0.1").mod
    with caplog.at_level(logging.INFO):
        fused = FuseAttention()(mod)
    assert "nn.softmax" in ops_of(fused)
    assert "its weights have a dropout" in caplog.text


def test_the_profile_or_the_option_asks_for_it():
    for choice, count in (("fused", 1), ("written", 0), (None, 0)):
        study = Study(MODELS[0], system=PLAIN_A100, attention=choice)
        assert ops_of(study.forward).count("dist.attention") == count


def test_recomputation_of_attention_costs_no_more_than_of_its_core():
    """Both policies save the result and the log-sum-exp, and compute nothing of it again."""
    mod = FuseAttention()(td.load_model(MODELS[0]).mod)
    steps = [ops_of(td.train_step(mod, recompute=policy)) for policy in ("attention", "core")]
    assert [ops.count("dist.attention") for ops in steps] == [1, 1]
    assert sorted(map(str, steps[0])) == sorted(map(str, steps[1]))


@I.ir_module
class Stacked:
    """Layers that add to their argument, one after the other."""

    @R.function(private=True)
    def layer(x: R.Tensor((1, 2, 4, 4), "float32")) -> R.Tensor((1, 2, 4, 4), "float32"):
        with R.dataflow():
            weights = R.nn.softmax(x, axis=-1)
            y = R.add(x, weights)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((1, 2, 4, 4), "float32")) -> R.Tensor((1, 2, 4, 4), "float32"):
        cls = Stacked
        with R.dataflow():
            first = cls.layer(x)
            second = cls.layer(first)
            third = cls.layer(second)
            R.output(third)
        return third


def test_masks_are_read_through_layers_that_call_each_other():
    """What a layer adds to is the result of the same layer: its facts end there."""
    tvm.ir.assert_structural_equal(FuseAttention()(Stacked), Stacked)
