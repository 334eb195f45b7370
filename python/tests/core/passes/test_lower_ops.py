# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every factor of many ops: the sharded call, lowered and run, equals the whole call."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tvm import relax

from tests.core.passes import lower_harness as h
from tvm_distir.core.ops import registry
from tvm_distir.core.ops.registration import SAME_OP
from tvm_distir.support.errors.tree import LoweringError

op = relax.op
F = "float32"


def const(*shape):
    return relax.const(np.arange(np.prod(shape)).reshape(shape).astype(F) % 5 - 2)


X = ("x", (8, 12), F)
CASES = {
    "matmul": ([("a", (8, 12), F), ("b", (12, 6), F)], op.matmul),
    "matmul_batch": ([("a", (4, 6, 12), F), ("b", (4, 12, 6), F)], op.matmul),
    "matmul_const": ([("a", (8, 12), F)], lambda a: op.matmul(a, const(12, 6))),
    "matmul_uneven": ([("a", (7, 11), F), ("b", (11, 5), F)], op.matmul),
    "add_bias": ([X, ("b", (12,), F)], op.add),
    "add_const": ([X], lambda x: op.add(x, const(8, 12))),
    "relu": ([X], op.nn.relu),
    "sum": ([X], lambda x: op.sum(x, 1)),
    "sum_keepdims": ([X], lambda x: op.sum(x, [0, 1], True)),
    "sum_uneven": ([("x", (7, 5), F)], lambda x: op.sum(x, [0, 1])),
    "mean": ([("x", (8, 16), F)], lambda x: op.mean(x, [0, 1])),
    "mean_uneven": ([("x", (7, 5), F)], lambda x: op.mean(x, 1)),
    "max": ([X], lambda x: op.max(x, 1)),
    "max_uneven": ([("x", (7, 5), F)], lambda x: op.max(x, 1)),
    "min_uneven": ([("x", (7, 5), "int32")], lambda x: op.min(x, 1)),
    "prod_uneven": ([("x", (7, 5), F)], lambda x: op.prod(x, 0)),
    "reshape_merge": ([("x", (8, 6, 4), F)], lambda x: op.reshape(x, (48, 4))),
    "reshape_split": ([("x", (16, 12), F)], lambda x: op.reshape(x, (4, 4, 2, 6))),
    "flatten": ([("x", (8, 6, 4), F)], op.flatten),
    "expand": ([X], lambda x: op.expand_dims(x, 1)),
    "squeeze": ([("x", (8, 1, 12), F)], lambda x: op.squeeze(x, 1)),
    "permute": ([("x", (8, 6, 4), F)], lambda x: op.permute_dims(x, (2, 0, 1))),
    "broadcast_to": ([("x", (1, 12), F)], lambda x: op.broadcast_to(x, (8, 12))),
    "full": ([], lambda: op.full((8, 12), relax.const(3.0))),
    "zeros": ([], lambda: op.zeros((8, 12), F)),
    "ones_uneven": ([], lambda: op.ones((7, 12), F)),
    "full_like": ([X], lambda x: op.full_like(x, relax.const(2.0))),
    "tile": ([("x", (8, 1, 4), F)], lambda x: op.tile(x, (1, 6, 2))),
    "repeat": ([("x", (8, 6), F)], lambda x: op.repeat(x, 2, 1)),
    "strided_slice": ([X], lambda x: op.strided_slice(x, [0, 1], [0, 2], [8, 11])),
    "split": ([X], lambda x: op.split(x, 3, 1)),
    "concat": ([X, ("y", (8, 4), F)], lambda x, y: op.concat([x, y], 1)),
    "stack": ([X, ("y", (8, 12), F)], lambda x, y: op.stack([x, y], 1)),
    "where": ([("c", (8, 12), "bool"), X, ("y", (8, 1), F)], op.where),
    "softmax": ([X], lambda x: op.nn.softmax(x, 1)),
    "log_softmax": ([X], lambda x: op.nn.log_softmax(x, 0)),
    "layer_norm": (
        [X, ("g", (12,), F), ("b", (12,), F)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, -1),
    ),
    "rms_norm": ([X, ("g", (12,), F)], lambda x, g: op.nn.rms_norm(x, g, -1)),
    "group_norm": (
        [("x", (4, 8, 6), F), ("g", (8,), F), ("b", (8,), F)],
        lambda x, g, b: op.nn.group_norm(x, g, b, 4, 1, [2]),
    ),
    "batch_norm": (
        [("x", (4, 8, 6), F), ("g", (8,), F), ("b", (8,), F), ("m", (8,), F), ("v", (8,), F, 3)],
        lambda x, g, b, m, v: op.nn.batch_norm(x, g, b, m, v, 1, epsilon=1.0, training=False),
    ),
    "dropout": ([X], lambda x: op.nn.dropout(x, 0.5)),
    "take_rows": ([("t", (12, 4), F), ("i", (6,), "int32", 12)], lambda t, i: op.take(t, i, 0)),
    "take_uneven": ([("t", (13, 4), F), ("i", (2, 5), "int64", 13)], lambda t, i: op.take(t, i, 0)),
    "take_columns": ([("t", (4, 12), F), ("i", (6,), "int32", 12)], lambda t, i: op.take(t, i, 1)),
    "one_hot": (
        [("i", (8,), "int32", 5)],
        lambda i: op.one_hot(i, 1.0, 0.0, 5),
    ),
    "gather_elements": ([X, ("i", (8, 12), "int64", 12)], lambda x, i: op.gather_elements(x, i, 1)),
    "cumsum": ([X], lambda x: op.cumsum(x, 1)),
    "topk": ([X], lambda x: op.topk(x, 3, 1)),
    "argmax": ([X], lambda x: op.argmax(x, 1)),
    "collapse_sum": ([X], lambda x: op.collapse_sum_to(x, (12,))),
    "einsum": (
        [("a", (8, 4), F), ("b", (8, 6), F)],
        lambda a, b: op.einsum(relax.Tuple([a, b]), "ki,kj->ij"),
    ),
    "conv": (
        [("x", (4, 8, 5, 5), F), ("w", (6, 8, 3, 3), F)],
        lambda x, w: op.nn.conv2d(x, w, padding=1),
    ),
    "conv_groups": (
        [("x", (4, 8, 5, 5), F), ("w", (8, 2, 3, 3), F)],
        lambda x, w: op.nn.conv2d(x, w, padding=1, groups=4),
    ),
    "max_pool": ([("x", (4, 8, 6, 6), F)], lambda x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2))),
    "pad": ([X], lambda x: op.nn.pad(x, [0, 0, 1, 2])),
    "attention": (
        [("q", (2, 4, 4, 8), F), ("k", (2, 6, 4, 8), F), ("v", (2, 6, 4, 8), F)],
        op.nn.attention,
    ),
    "floor_divide_uneven": (
        [("x", (7,), "int32"), ("y", (7,), "int32", 4)],
        lambda x, y: op.floor_divide(x, y),
    ),
    "cross_entropy": ([("x", (8, 4), F), ("y", (8, 4), F)], op.nn.cross_entropy_with_logits),
}


INEXACT = (
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "batch_norm",
    "attention",
    "mean_uneven",
    "dropout",
    "cross_entropy",
)


def inputs_and_results(name, specs, whole):
    inputs = h.draw(specs)
    if name == "floor_divide_uneven":
        inputs[1] = inputs[1] + 1
    return inputs, h.reference(whole, inputs)


def check(name, specs, call, data, mesh, factors):
    # TVM types a call without tensor operands as a plain tensor, whatever is annotated.
    mod = h.lower(h.distributed(specs, call, mesh, factors), name not in ("zeros", "ones_uneven"))
    inputs, want = data
    got = h.run_virtual(mod, inputs)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        if name in INEXACT:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(a, b)
    return mod


@pytest.mark.parametrize("name", CASES)
def test_every_factor(name):
    specs, make = CASES[name]
    whole, call = h.whole_module(specs, make)
    rule = h.rule_for(call)
    data = inputs_and_results(name, specs, whole)
    ran = 0
    for factor in rule.factors:
        for count in (2, 3):
            if h.fits(factor, count):
                check(name, specs, call, data, h.mesh_of(count), [factor])
                ran += 1
                break
    assert ran


@pytest.mark.parametrize(
    "name",
    [
        "matmul",
        "matmul_const",
        "sum",
        "mean",
        "softmax",
        "take_rows",
        "reshape_merge",
        "layer_norm",
        "conv",
        "attention",
        "full",
    ],
)
def test_pairs_of_factors(name):
    specs, make = CASES[name]
    whole, call = h.whole_module(specs, make)
    factors = [f for f in h.rule_for(call).factors if f.size % 2 == 0]
    pairs = [(f, g) for f in factors for g in factors if f is not g or f.size % 4 == 0]
    data = inputs_and_results(name, specs, whole)
    for f, g in pairs[:6]:
        check(name, specs, call, data, h.mesh_of(2, 2), [f, g])


def test_a_shard_that_is_not_the_placements_is_an_error(monkeypatch):
    """A local form gone wrong is caught by the type check, never silent."""
    specs, make = CASES["broadcast_to"]
    _, call = h.whole_module(specs, make)
    factor = h.rule_for(call).factors[0]
    mod = h.distributed(specs, call, h.mesh_of(2), [factor])
    message = dataclasses.replace(registry._known["relax.broadcast_to"], local=SAME_OP)
    monkeypatch.setitem(registry._known, "relax.broadcast_to", message)
    registry.note_change()
    with pytest.raises(LoweringError) as caught:
        h.lower(mod)
    assert caught.value.code == "DIST0505"
    assert "(4, 12)" in caught.value.what or "(8, 6)" in caught.value.what
