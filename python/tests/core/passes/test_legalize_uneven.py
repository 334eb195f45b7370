# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops along a dim that two mesh axes cut unevenly together: equal to the whole, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.support.errors.tree import LoweringError

F = "float32"
MESH = td.device_mesh({"a": 2, "b": 2})
IMAGE = ("x", (1, 2, 10, 6), F)
CASES = {
    "relu": ([("x", (6, 7), F)], relax.op.nn.relu),
    "add": ([("x", (6, 7), F), ("y", (7,), F)], relax.op.add),
    "matmul": ([("x", (6, 10), F), ("w", (10, 7), F)], relax.op.matmul),
    "mean": ([("x", (6, 7), F)], lambda x: relax.op.mean(x, [0])),
    "max": ([("x", (6, 7), F)], lambda x: relax.op.max(x, [1])),
    "take": (
        [("w", (10, 6), F), ("i", (7,), "int32", 10)],
        lambda w, i: relax.op.take(w, i, 0),
    ),
    "permute": ([("x", (6, 7), F)], lambda x: relax.op.permute_dims(x, [1, 0])),
    "argmax": ([("x", (9, 5), F)], lambda x: relax.op.argmax(x, 0)),
    "cumsum": ([("x", (9, 5), F)], lambda x: relax.op.cumsum(x, 0)),
    "softmax": ([("x", (9, 6), F)], lambda x: relax.op.nn.softmax(x, 0)),
    "layer_norm": (
        [("x", (5, 10), F), ("g", (10,), F), ("b", (10,), F)],
        lambda x, g, b: relax.op.nn.layer_norm(x, g, b, [-1]),
    ),
    "nll_loss": (
        [("x", (9, 10), F), ("t", (9,), "int64", 10)],
        lambda x, t: relax.op.nn.nll_loss(x, t),
    ),
}
REFUSED = {
    "conv2d": (
        [IMAGE, ("k", (3, 2, 3, 3), F)],
        lambda x, k: relax.op.nn.conv2d(x, k, strides=2, padding=1),
    ),
    "max_pool2d": ([IMAGE], lambda x: relax.op.nn.max_pool2d(x, (3, 3), padding=1)),
    "topk": ([("x", (9, 5), F)], lambda x: relax.op.topk(x, 2, 0, "values")),
}
"""Ops that need shards of one dim to lie one behind the other without padding between them."""


@pytest.mark.parametrize("name", CASES)
def test_every_factor_over_two_axes(name):
    specs, make = CASES[name]
    mod, call = h.whole_module(specs, make)
    inputs = h.draw(specs)
    want = h.reference(mod, inputs)
    factors = h.rule_of(call, mod).factors
    assert any(int(f.size) % 4 for f in factors)
    for factor in factors:
        distributed = h.distributed(specs, call, MESH, [factor, factor])
        got = h.run_virtual(h.lower(distributed, check_legalized=False), inputs)
        for a, b in zip(want, got):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=f"{name}, {factor}")


@pytest.mark.parametrize("name", REFUSED)
def test_ops_that_read_across_shards_are_refused(name):
    """Padding lies between the shards then; even shards of two axes, and one axis, are fine."""
    specs, make = REFUSED[name]
    mod, call = h.whole_module(specs, make)
    dim = 0 if name == "topk" else 2
    factor = next(f for f in h.rule_of(call, mod).factors if f.ins[0] == dim)
    with pytest.raises(LoweringError, match="several mesh axes into 4 uneven parts") as caught:
        h.lower(h.distributed(specs, call, MESH, [factor, factor]), check_legalized=False)
    assert caught.value.code == "DIST0507"


def test_what_cannot_be_uneven_is_refused_over_two_axes_too():
    specs = [("x", (6, 5, 2), F)]
    mod, call = h.whole_module(specs, lambda x: relax.op.reshape(x, (6, 10)))
    factor = next(f for f in h.rule_of(call, mod).factors if f.size == 5)
    with pytest.raises(LoweringError) as caught:
        h.lower(h.distributed(specs, call, MESH, [factor, factor]), check_legalized=False)
    assert caught.value.code == "DIST0507"
