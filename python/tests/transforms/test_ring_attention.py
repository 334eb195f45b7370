# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention around a ring: what is rewritten, what is refused, what masks may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax
from tvm.relax.op import matmul, multiply, permute_dims

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import MeshSpec, PlanRule
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.support.errors.tree import LoweringError, MeshError
from tvm_distir.transforms import FuseAttention
from tvm_distir.transforms.attention.ring import RingAttention

COUNT, SEQ, WIDTH, HEADS = 3, 12, 4, 2
MESH = MeshSpec("mesh0", {"cp": COUNT})
Between = Callable[[relax.BlockBuilder, Any, Any], Any]


def attention(between: Between, bias: Any, seq: int = SEQ, dtype: str = "float32") -> ir.IRModule:
    """``softmax(between(q k^T, bias)) v``; queries, keys and values are data, and the bias is."""
    builder = relax.BlockBuilder()
    shape = (2, HEADS, seq, WIDTH)
    q, k, v = (relax.Var(name, relax.TensorType(shape, dtype)) for name in "qkv")
    mask = relax.Var("mask", relax.TensorType(bias, "float32"))
    attrs = {INPUTS_ATTR: ["q", "k", "v", "mask"]}
    with builder.function("main", [q, k, v, mask], attrs=attrs):
        with builder.dataflow():
            turned = builder.emit(permute_dims(k, [0, 1, 3, 2]), "turned")
            scores = builder.emit(matmul(q, turned), "scores")
            between_ = builder.emit(between(builder, scores, mask), "between")
            probs = builder.emit(relax.op.nn.softmax(between_, -1), "probs")
            if dtype != "float32":
                probs = builder.emit(relax.op.astype(probs, dtype), "cast")
            out = builder.emit_output(matmul(probs, v), "out")
        builder.emit_func_output(out)
    return builder.get()


def plan(mod: ir.IRModule, dim: int = 2) -> Plan:
    return td.planning.make_plan(mod, f"context_parallel:form=ring,dim={dim}", {"cp": COUNT})


def kinds(mod: ir.IRModule) -> list[str]:
    matches = [
        dist_op_name(b.value) for fn in mod.functions.values() for b in all_bindings(fn.body)
    ]
    return [name for name in matches if name is not None]


def added(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.add(scores, mask)


def capped(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    """A soft cap, then a bias."""
    ratio = b.emit(relax.op.divide(scores, relax.const(3.0)))
    scores = b.emit(multiply(b.emit(relax.op.tanh(ratio)), relax.const(3.0)))
    return relax.op.add(scores, mask)


def widened(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.add(b.emit(relax.op.astype(scores, "float32")), mask)


@pytest.mark.parametrize("seq", [SEQ, 10], ids=["even", "uneven"])
@pytest.mark.parametrize(
    ("between", "batch", "heads", "dtype"),
    [
        (added, 1, 1, "float32"),
        (capped, 2, HEADS, "float32"),
        (widened, 1, 1, "float16"),
    ],
    ids=["biased", "capped", "half"],
)
def test_a_ring_equals_one_device(
    between: Between, batch: int, heads: int, dtype: str, seq: int
) -> None:
    """Two blocks travel twice each; nothing is gathered."""
    mod = attention(between, (batch, heads, seq, seq), seq, dtype)
    dist = td.distribute(mod, plan(mod))
    check_level(dist, 5)
    moves = kinds(dist)
    assert moves.count("collective_permute") == 2 * (COUNT - 1)
    assert "all_gather" not in moves
    assert td.verify(mod, plan(mod), dist=dist, engine="virtual").equal


@pytest.mark.parametrize("rows", [SEQ, 1], ids=["by_row", "of_all_rows"])
@pytest.mark.parametrize("low", [-np.inf, float(np.finfo("float32").min)], ids=["inf", "least"])
def test_blocks_that_a_query_does_not_see(low: float, rows: int) -> None:
    """Whole blocks of infinite scores, before and after the first that counts."""
    mod = attention(added, (1, 1, rows, SEQ))
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, HEADS, SEQ, WIDTH)).astype("float32") for _ in "qkv")
    seen = [(5 * row + 3) % SEQ for row in range(rows)]
    mask = np.full((1, 1, rows, SEQ), low, "float32")
    mask[0, 0, range(rows), seen] = 0.0
    dist = td.distribute(mod, plan(mod))
    (got,) = td.run(dist, [q, k, v, mask], engine="virtual")
    expected = np.broadcast_to(v[:, :, seen], v.shape)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)


def test_a_query_that_sees_no_key_has_the_mean_of_the_values() -> None:
    """As on one device where a bias hides all keys, in whatever blocks they are."""
    mod = attention(added, (1, 1, SEQ, SEQ))
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, HEADS, SEQ, WIDTH)).astype("float32") for _ in "qkv")
    mask = np.full((1, 1, SEQ, SEQ), np.finfo("float32").min, "float32")
    (got,) = td.run(td.distribute(mod, plan(mod)), [q, k, v, mask], engine="virtual")
    expected = np.broadcast_to(v.mean(axis=2, keepdims=True), v.shape)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


def test_beside_other_work() -> None:
    """Starts and dones are scheduled around the kernels of blocks."""
    mod = attention(added, (1, 1, SEQ, SEQ))
    dist = td.distribute(mod, plan(mod), overlap="dgx-a100")
    assert "collective_permute_start" in kinds(dist)
    assert td.verify(mod, plan(mod), dist=dist, engine="threads").equal


@pytest.mark.parametrize("seq", [SEQ, 10], ids=["even", "uneven"])
@pytest.mark.parametrize("columns", ["all", "one"])
def test_the_gradient_of_a_bias(columns: str, seq: int) -> None:
    """Of a weight that is added to the scores, a column of it per key or one for all."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, seq, 8), "float32"))
    extent = seq if columns == "all" else 1
    bias = relax.Var("bias", relax.TensorType((1, HEADS, seq, extent), "float32"))
    weights = [relax.Var(name, relax.TensorType((8, 8), "float32")) for name in ("q", "k", "v")]
    with builder.function("main", [x, bias, *weights], attrs={INPUTS_ATTR: ["x"]}):
        with builder.dataflow():
            heads = []
            for weight in weights:
                wide = builder.emit(relax.op.reshape(builder.emit(matmul(x, weight)),
                                                     (2, seq, HEADS, 8 // HEADS)))  # fmt: skip
                heads.append(builder.emit(permute_dims(wide, [0, 2, 1, 3])))
            scores = builder.emit(
                matmul(heads[0], builder.emit(permute_dims(heads[1], [0, 1, 3, 2])))
            )
            probs = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.add(scores, bias)), -1))
            mixed = builder.emit(permute_dims(builder.emit(matmul(probs, heads[2])), [0, 2, 1, 3]))
            out = builder.emit_output(relax.op.reshape(mixed, (2, seq, 8)))
        builder.emit_func_output(out)
    fused = FuseAttention()(builder.get())
    step = td.train_step(fused, loss="mse", optimizer="sgd", rate=1.0)
    chosen = plan(step, dim=1)
    dist = td.distribute(step, chosen)
    assert dist.script().count("R.dist.attention_bias_gradient(") == COUNT
    assert kinds(dist).count("collective_permute") >= 6 * (COUNT - 1)
    assert td.verify(step, chosen, dist=dist, engine="virtual").equal


def summed(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.cumsum(b.emit(relax.op.add(scores, mask)), 3)


def squared(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return multiply(scores, scores)


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (summed, "its scores come from cumsum"),
        (squared, "its scores come from multiply"),
    ],
)
def test_attention_that_is_no_op_is_refused(between: Between, why: str) -> None:
    """It distributes as ordinary ops do otherwise."""
    mod = attention(between, (1, 1, SEQ, SEQ))
    gathers = td.planning.make_plan(mod, "context_parallel:form=gather,dim=2", {"cp": COUNT})
    assert td.verify(mod, gathers, engine="virtual").equal
    with pytest.raises(LoweringError, match=f"DIST0511 main.*{why}.*all_to_all"):
        td.distribute(mod, plan(mod))


def test_a_ring_for_nothing_is_refused() -> None:
    """No mesh axis of the name; a module in which nothing is gathered along it."""
    with pytest.raises(MeshError, match=r'DIST0206 ring: no mesh has an axis "tp"'):
        Plan((MESH,), (PlanRule("param", "q", (1,)),), ring=("tp",))
    mod = attention(added, (1, 1, SEQ, SEQ))
    dist = td.distribute(mod, plan(mod))
    with pytest.raises(LoweringError, match=r"DIST0511 main: no attention gathers .* along cp"):
        RingAttention(["cp"])(dist)
    with pytest.raises(MeshError, match="DIST0206"):
        RingAttention(["dp"])(dist)
    assert RingAttention([])(dist).same_as(dist)
