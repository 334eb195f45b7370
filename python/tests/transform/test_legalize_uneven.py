# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops along a dim that two mesh axes cut unevenly together: equal to the whole, or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.errors import LoweringError

sys.path.insert(0, str(Path(__file__).parent))
import lower_harness as h

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
    "conv2d": (
        [IMAGE, ("k", (3, 2, 3, 3), F)],
        lambda x, k: relax.op.nn.conv2d(x, k, strides=2, padding=1),
    ),
    "max_pool2d": ([IMAGE], lambda x: relax.op.nn.max_pool2d(x, (3, 3), padding=1)),
}


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
        got = h.run(h.lower(distributed, check_legalized=False), inputs)
        for a, b in zip(want, got):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=f"{name}, {factor}")


def test_what_cannot_be_uneven_is_refused_over_two_axes_too():
    specs = [("x", (6, 5, 2), F)]
    mod, call = h.whole_module(specs, lambda x: relax.op.reshape(x, (6, 10)))
    factor = next(f for f in h.rule_of(call, mod).factors if f.size == 5)
    with pytest.raises(LoweringError) as caught:
        h.lower(h.distributed(specs, call, MESH, [factor, factor]), check_legalized=False)
    assert caught.value.code == "DIST0507"
