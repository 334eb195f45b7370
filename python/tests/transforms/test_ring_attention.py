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
from tvm_distir.transforms.optimize.ring import RingAttention

COUNT, SEQ, WIDTH = 3, 12, 4
MESH = MeshSpec("mesh0", {"cp": COUNT})
Between = Callable[[relax.BlockBuilder, Any, Any], Any]


def attention(between: Between, bias: Any, seq: int = SEQ, dtype: str = "float32") -> ir.IRModule:
    """``softmax(between(q k^T, bias)) v``; queries, keys and values are data, and the bias is."""
    builder = relax.BlockBuilder()
    shape = (2, seq, WIDTH)
    q, k, v = (relax.Var(name, relax.TensorType(shape, dtype)) for name in "qkv")
    mask = relax.Var("mask", relax.TensorType(bias, "float32"))
    attrs = {INPUTS_ATTR: ["q", "k", "v", "mask"]}
    with builder.function("main", [q, k, v, mask], attrs=attrs):
        with builder.dataflow():
            turned = builder.emit(permute_dims(k, [0, 2, 1]), "turned")
            scores = builder.emit(matmul(q, turned), "scores")
            between_ = builder.emit(between(builder, scores, mask), "between")
            probs = builder.emit(relax.op.nn.softmax(between_, -1), "probs")
            if dtype != "float32":
                probs = builder.emit(relax.op.astype(probs, dtype), "cast")
            out = builder.emit_output(matmul(probs, v), "out")
        builder.emit_func_output(out)
    return builder.get()


def plan(ring: tuple[str, ...] = ("cp",)) -> Plan:
    cut = [PlanRule("param", name, (1,)) for name in "qkv"]
    rules = [*cut, PlanRule("param", "mask", (-1,)), PlanRule("value", "turned", (2,))]
    rules.append(PlanRule("value", "probs", (1,), stationary=True))
    return Plan((MESH,), tuple(rules), ring=ring)


def kinds(mod: ir.IRModule) -> list[str]:
    matches = [
        dist_op_name(b.value) for fn in mod.functions.values() for b in all_bindings(fn.body)
    ]
    return [name for name in matches if name is not None]


def added(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.add(scores, mask)


def capped(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    """A soft cap, a bias with rows of its own per batch, an upper bound."""
    scores = b.emit(multiply(b.emit(relax.op.tanh(scores)), relax.const(3.0)))
    return relax.op.minimum(b.emit(relax.op.add(scores, mask)), relax.const(2.0))


def widened(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.add(b.emit(relax.op.astype(scores, "float32")), mask)


def read_twice(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return multiply(scores, scores)


@pytest.mark.parametrize("seq", [SEQ, 10], ids=["even", "uneven"])
@pytest.mark.parametrize(
    ("between", "batch", "dtype"),
    [
        (added, 1, "float32"),
        (capped, 2, "float32"),
        (widened, 1, "float16"),
        (read_twice, 1, "float32"),
    ],
    ids=["biased", "capped", "half", "squared"],
)
def test_a_ring_equals_one_device(between: Between, batch: int, dtype: str, seq: int) -> None:
    """Two blocks travel twice each; nothing is gathered."""
    mod = attention(between, (batch, seq, seq), seq, dtype)
    dist = td.distribute(mod, plan())
    check_level(dist, 5)
    moves = kinds(dist)
    assert moves.count("collective_permute") == 2 * (COUNT - 1)
    assert "all_gather" not in moves
    assert td.verify(mod, plan(), dist=dist, engine="virtual").equal


@pytest.mark.parametrize("low", [-np.inf, float(np.finfo("float32").min)], ids=["inf", "least"])
def test_blocks_that_a_query_does_not_see(low: float) -> None:
    """Whole blocks of infinite scores, before and after the first that counts."""
    mod = attention(added, (1, SEQ, SEQ))
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, SEQ, WIDTH)).astype("float32") for _ in "qkv")
    mask = np.full((1, SEQ, SEQ), low, "float32")
    for row in range(SEQ):
        mask[0, row, (5 * row + 3) % SEQ] = 0.0
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    dist = td.distribute(mod, plan())
    (got,) = td.run(dist, [inputs[name] for name in ("q", "k", "v", "mask")], engine="virtual")
    seen = [(5 * row + 3) % SEQ for row in range(SEQ)]
    np.testing.assert_allclose(np.asarray(got), v[:, seen], rtol=1e-6)


def test_beside_other_work() -> None:
    """Starts and dones are scheduled around the products of blocks."""
    mod = attention(added, (1, SEQ, SEQ))
    dist = td.distribute(mod, plan(), overlap="dgx-a100")
    assert "collective_permute_start" in kinds(dist)
    assert td.verify(mod, plan(), dist=dist, engine="threads").equal


def summed(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    return relax.op.cumsum(b.emit(relax.op.add(scores, mask)), 2)


def spread(b: relax.BlockBuilder, scores: Any, mask: Any) -> Any:
    """Scores below a mean of their own: a sum over the keys, before the softmax."""
    return relax.op.subtract(scores, b.emit(relax.op.sum(scores, -1, keepdims=True)))


def test_keys_come_by_again_where_scores_need_a_sum_of_them() -> None:
    """Twice around: the sums, then the softmax."""
    mod = attention(spread, (1, SEQ, SEQ))
    dist = td.distribute(mod, plan())
    assert kinds(dist).count("collective_permute") == 3 * (COUNT - 1)
    assert td.verify(mod, plan(), dist=dist, engine="virtual").equal


@pytest.mark.parametrize("between", [summed])
def test_what_needs_all_keys_at_once_is_refused(between: Between) -> None:
    mod = attention(between, (1, SEQ, SEQ))
    with pytest.raises(LoweringError, match=r"DIST0511 main/.*all_to_all"):
        td.distribute(mod, plan())


def test_a_ring_for_nothing_is_refused() -> None:
    """No mesh axis of the name; a module in which nothing is gathered along it."""
    with pytest.raises(MeshError, match=r'DIST0206 ring: no mesh has an axis "tp"'):
        plan(("tp",))
    dist = td.distribute(attention(added, (1, SEQ, SEQ)), plan())
    with pytest.raises(LoweringError, match=r"DIST0511 main: no attention gathers .* along cp"):
        RingAttention(["cp"])(dist)
    with pytest.raises(MeshError, match="DIST0206"):
        RingAttention(["dp"])(dist)
    assert RingAttention([])(dist).same_as(dist)
