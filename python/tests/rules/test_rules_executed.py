# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every hand-written rule against the op itself: sharded runs give the whole result."""

from __future__ import annotations

import dataclasses

import pytest
from rule_harness import Case, distinct, index_below, nonzero, positive, prove, var
from tvm import relax
from tvm.relax import op

INT = "int64"
X = lambda: var(2, 6, 4, 4)  # noqa: E731
W = lambda n=6: var(n)  # noqa: E731
pool = op.nn

ELEMENTWISE = [
    *(
        Case(name, getattr(op, name)(var(4, 6)), tolerance=1e-6)
        for name in "abs ceil exp negative sign square sin tanh isnan erf floor sigmoid".split()
    ),
    Case("sqrt", op.sqrt(var(4, 6)), {0: positive}),
    Case("relu", op.nn.relu(var(4, 6))),
    Case("gelu", op.nn.gelu(var(4, 6)), tolerance=1e-6),
    Case("silu", op.nn.silu(var(4, 6)), tolerance=1e-6),
    Case("clip", op.clip(var(4, 6), -1, 1)),
    Case("astype", op.astype(var(4, 6), "int32")),
    Case("add", op.add(var(4, 6), var(6))),
    Case("add broadcast", op.add(var(4, 1, 6), var(1, 2, 6))),
    Case("subtract", op.subtract(var(4, 6), var(4, 6))),
    Case("multiply", op.multiply(var(4, 6), var(4, 1))),
    Case("divide", op.divide(var(4, 6), var(6)), {1: nonzero}),
    Case("power", op.power(var(4, 6), var(4, 6)), {0: positive}, 1e-6),
    Case("maximum", op.maximum(var(4, 6), var(6))),
    Case("less", op.less(var(4, 6), var(6))),
    Case("where", op.where(var(4, 6, dtype="bool"), var(4, 6), var(6))),
    Case("prelu", op.nn.prelu(X(), W())),
    Case("dropout", op.nn.dropout(var(4, 6))),
]

CONTRACTIONS = [
    Case("matmul", op.matmul(var(4, 6), var(6, 2))),
    Case("matmul batched", op.matmul(var(2, 4, 6), var(2, 6, 3))),
    Case("matmul broadcast", op.matmul(var(2, 3, 4, 6), var(3, 6, 2))),
    Case("matmul vector", op.matmul(var(4, 6), var(6))),
    Case("matmul row", op.matmul(var(6), var(2, 6, 4))),
    Case("einsum", op.einsum((var(4, 6), var(6, 2, 3)), "ij,jkl->kil")),
    Case("einsum sum", op.einsum((var(4, 6), var(4, 2)), "ij,ik")),
    Case("outer", op.outer(var(4), var(6))),
    Case("conv2d", op.nn.conv2d(X(), var(4, 6, 3, 3), padding=1)),
    Case("conv2d patches", op.nn.conv2d(X(), var(4, 6, 2, 2), strides=2)),
    Case("conv2d 1x1", op.nn.conv2d(X(), var(4, 6, 1, 1))),
    Case("conv2d groups", op.nn.conv2d(X(), var(4, 3, 3, 3), groups=2)),
    Case("conv2d depthwise", op.nn.conv2d(X(), var(6, 1, 3, 3), groups=6)),
    Case(
        "conv2d NHWC",
        op.nn.conv2d(var(2, 4, 4, 6), var(3, 3, 6, 4), data_layout="NHWC", kernel_layout="HWIO"),
    ),
    Case("conv1d", op.nn.conv1d(var(2, 6, 5), var(4, 6, 3))),
    Case("conv3d", op.nn.conv3d(var(2, 2, 3, 3, 3), var(2, 2, 2, 2, 2))),
    Case("conv2d_transpose", op.nn.conv2d_transpose(X(), var(6, 2, 2, 2), strides=2)),
    Case("conv1d_transpose", op.nn.conv1d_transpose(var(2, 6, 4), var(6, 2, 2))),
]

LAYOUT = [
    Case("permute", op.permute_dims(var(2, 4, 6), [2, 0, 1])),
    Case("transpose", op.permute_dims(var(2, 4, 6))),
    Case("reshape merge", op.reshape(var(2, 4, 6), (8, 6))),
    Case("reshape split", op.reshape(var(8, 6), (4, 2, 2, 3))),
    Case("reshape regroup", op.reshape(var(4, 6), (6, 4))),
    Case("reshape ones", op.reshape(var(1, 4, 1, 6), (4, 1, 6))),
    Case("reshape minus one", op.reshape(var(4, 6), (-1, 3))),
    Case("expand_dims", op.expand_dims(var(4, 6), 1)),
    Case("squeeze", op.squeeze(var(2, 1, 6))),
    Case("flatten", op.flatten(var(4, 6))),
    Case("broadcast_to", op.broadcast_to(var(4, 1), (2, 4, 6))),
    Case("concat", op.concat([var(2, 4), var(2, 6)], axis=1)),
    Case("stack", op.stack([var(2, 4), var(2, 4)], axis=1)),
    Case("split", op.split(var(4, 6), 2, axis=1)),
    Case("split at", op.split(var(4, 6), [1, 3], axis=1)),
    Case("strided_slice", op.strided_slice(var(4, 6, 2), [0, 1], [0, 1], [4, 5], [1, 2])),
    Case("repeat", op.repeat(var(4, 6), 2, axis=1)),
    Case("repeat flat", op.repeat(var(4, 6), 2)),
    Case("tile", op.tile(var(4, 6), (1, 2))),
    Case("flip", op.flip(var(4, 6), 1)),
    Case("pad", op.nn.pad(var(4, 6), [0, 0, 1, 2])),
    Case("pad ones", op.nn.pad(var(4, 6), [0, 0, 1, 2], pad_value=1.0)),
    Case("tril", op.tril(var(2, 4, 4), 1)),
    Case("meshgrid", op.meshgrid([var(4), var(6)])),
]

REDUCTIONS = [
    *(Case(name, getattr(op, name)(var(4, 6, 2), axis=[1])) for name in "sum max min prod".split()),
    Case("sum all", op.sum(var(4, 6))),
    Case("sum keepdims", op.sum(var(4, 6), axis=0, keepdims=True)),
    Case("mean", op.mean(var(4, 6), axis=0), tolerance=1e-6),
    Case("mean all", op.mean(var(4, 6)), tolerance=1e-6),
    Case("variance", op.variance(var(4, 6), axis=1), tolerance=1e-6),
    Case("std", op.std(var(4, 6), axis=1), tolerance=1e-6),
    Case("argmax", op.argmax(var(4, 6), axis=1), {0: distinct}),
    Case("collapse_sum_to", op.collapse_sum_to(var(2, 4, 6), (1, 6))),
    Case("softmax", op.nn.softmax(var(4, 6)), tolerance=1e-6),
    Case("log_softmax", op.nn.log_softmax(var(4, 6)), tolerance=1e-6),
    Case("cumsum", op.cumsum(var(4, 6), axis=1)),
    Case("topk", op.topk(var(4, 6), 2, axis=1), {0: distinct}),
    Case("sort", op.sort(var(4, 6), axis=1), {0: distinct}),
    Case("argsort", op.argsort(var(4, 6), axis=1), {0: distinct}),
    Case(
        "cross_entropy",
        op.nn.cross_entropy_with_logits(var(4, 6), var(4, 6)),
        tolerance=1e-6,
    ),
]

NORMS = [
    Case("layer_norm", op.nn.layer_norm(var(4, 6, 2), W(2), W(2), [-1]), tolerance=1e-5),
    Case("rms_norm", op.nn.rms_norm(var(4, 6, 2), W(2), [-1]), tolerance=1e-5),
    Case("group_norm", op.nn.group_norm(X(), W(), W(), 2, 1, [2, 3]), tolerance=1e-5),
    Case("instance_norm", op.nn.instance_norm(X(), W(), W(), 1, [2, 3]), tolerance=1e-5),
    *(
        Case(
            f"batch_norm training={training}",
            op.nn.batch_norm(X(), W(), W(), W(), W(), 1, training=training),
            {4: positive},
            1e-5,
        )
        for training in (False, True)
    ),
    Case("max_pool2d", op.nn.max_pool2d(X(), 3, 1, 1)),
    Case("max_pool2d apart", op.nn.max_pool2d(X(), 2, 2)),
    Case("avg_pool2d", op.nn.avg_pool2d(X(), 2, 2)),
    Case("avg_pool1d", op.nn.avg_pool1d(var(2, 6, 4), 2, 1)),
    Case("adaptive_avg_pool2d", op.nn.adaptive_avg_pool2d(X(), 1), tolerance=1e-6),
    Case("resize2d", op.image.resize2d(X(), (8, 8)), tolerance=1e-6),
    Case("attention", op.nn.attention(*(var(2, 4, 6, 2) for _ in range(3))), tolerance=1e-5),
    Case(
        "attention causal",
        op.nn.attention(*(var(2, 4, 6, 2) for _ in range(3)), causal_mask="TopLeft"),
        tolerance=1e-5,
    ),
    Case(
        "attention bias",
        op.nn.attention(*(var(2, 4, 6, 2) for _ in range(3)), bias=var(2, 6, 4, 4)),
        tolerance=1e-5,
    ),
    Case(
        "attention bias of one head",
        op.nn.attention(*(var(2, 4, 6, 2) for _ in range(3)), bias=var(2, 1, 4, 4)),
        tolerance=1e-5,
    ),
]

INDEXING = [
    Case("take", op.take(var(6, 4), var(2, 3, dtype=INT), axis=0), {1: index_below(6)}),
    Case("take inner", op.take(var(4, 6, 2), var(3, dtype=INT), axis=1), {1: index_below(6)}),
    Case(
        "gather_elements",
        op.gather_elements(var(4, 6), var(4, 2, dtype=INT), axis=1),
        {1: index_below(6)},
    ),
    Case("gather_nd", op.gather_nd(var(4, 6, 2), var(3, 1, dtype=INT)), {1: index_below(4)}),
    Case(
        "gather_nd batched",
        op.gather_nd(var(2, 4, 6), var(2, 3, 1, dtype=INT), batch_dims=1),
        {1: index_below(4)},
    ),
    Case(
        "index_tensor",
        op.index_tensor(var(4, 6, 2), [var(3, dtype=INT), var(2, 1, dtype=INT)]),
        {1: index_below(4), 2: index_below(6)},
    ),
    Case(
        "scatter_elements",
        op.scatter_elements(var(4, 6), var(4, 6, dtype=INT), var(4, 6), axis=1, reduction="add"),
        {1: index_below(6)},
    ),
    Case(
        "scatter_nd",
        op.scatter_nd(var(4, 6), var(2, 1, dtype=INT), var(2, 6), "add"),
        {1: index_below(4)},
    ),
    Case("slice_scatter", op.slice_scatter(var(4, 6), var(2, 6), 1, 3, 1, axis=0)),
    Case(
        "one_hot",
        op.one_hot(var(4, 2, dtype=INT), relax.prim_value(1.0), relax.prim_value(0.0), 3),
        {0: index_below(3)},
    ),
    Case(
        "nll_loss",
        op.nn.nll_loss(var(4, 3), var(4, dtype=INT), reduction="sum"),
        {1: index_below(3)},
    ),
    Case(
        "nll_loss per sample",
        op.nn.nll_loss(var(4, 3, 2), var(4, 2, dtype=INT), var(3), reduction="none"),
        {1: index_below(3)},
    ),
    Case(
        "take_backward",
        op.grad.take_backward(var(4, 2), var(6, 2), var(4, dtype=INT), axis=0),
        {2: index_below(6)},
    ),
    Case("full", op.full((4, 6), relax.const(2.0, "float32"))),
    Case("zeros", op.zeros((4, 6), "float32")),
    Case("ones_like", op.ones_like(var(4, 6))),
]

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "contractions": CONTRACTIONS,
    "layout": LAYOUT,
    "reductions": REDUCTIONS,
    "norms and windows": NORMS,
    "indexing": INDEXING,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_runs_give_the_whole_result(family):
    failures = prove(FAMILIES[family])
    assert {name: found for name, found in failures.items() if found} == {}


def _planted(case, change):
    rule = case.rule()
    factors = tuple(change(f) for f in rule.factors)
    return dataclasses.replace(rule, factors=tuple(f for f in factors if f is not None))


def test_planted_faults_are_caught():
    def swapped(factor):
        ins = tuple(None if d is None else 1 - d for d in factor.ins)
        return dataclasses.replace(factor, ins=ins)

    def kept(kind):
        return lambda f: dataclasses.replace(f, kind=kind) if f.reduces else None

    def mapped(factor):
        if not factor.reduces:
            return None
        return dataclasses.replace(factor, kind="map", outs=(None,))

    def unscaled(factor):
        return dataclasses.replace(factor, rescale=False) if factor.rescale else None

    def moved(factor):
        outs = tuple(None if d is None else 1 - d for d in factor.outs)
        return dataclasses.replace(factor, outs=outs)

    planted = [
        (Case("swapped operands", op.matmul(var(6, 6), var(6, 6))), swapped),
        (Case("wrong reduction", op.matmul(var(4, 6), var(6, 2))), kept("max")),
        (Case("dropped reduction", op.matmul(var(4, 6), var(6, 2))), mapped),
        (Case("not rescaled", op.mean(var(4, 6), axis=0)), unscaled),
        (Case("wrong result dim", op.add(var(6, 6), var(6, 6))), moved),
        (
            Case(
                "no reduction of a take",
                op.take(var(6, 4), var(3, dtype=INT), axis=0),
                {1: index_below(6)},
            ),
            mapped,
        ),
    ]
    cases = [c for c, _ in planted]
    rules = [_planted(c, change) for c, change in planted]
    assert all(r.factors for r in rules)
    failures = prove(cases, rules)
    assert [name for name, found in failures.items() if not found] == []


def test_planted_linear_groups_are_caught():
    cases = [
        Case("relu", op.nn.relu(var(4, 6))),
        Case("add in one", op.add(var(4, 6), var(4, 6))),
        Case("multiply in both", op.multiply(var(4, 6), var(4, 6))),
        Case("max", op.max(var(4, 6), axis=1)),
    ]
    groups = [((0,),), ((0,),), ((0, 1),), ((0,),)]
    rules = [dataclasses.replace(c.rule(), linear=g) for c, g in zip(cases, groups)]
    failures = prove(cases, rules)
    assert [name for name, found in failures.items() if not found] == []
