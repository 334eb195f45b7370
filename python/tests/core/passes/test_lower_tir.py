# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""call_tir on shards: PrimFuncs cut to local shapes compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.core.passes import lower_harness as h
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR

op = relax.op
F = "float32"
CASES = {
    "matmul": ([("a", (8, 12), F), ("b", (12, 6), F)], op.matmul),
    "add": ([("a", (8, 12), F), ("b", (12,), F)], op.add),
    "relu_uneven": ([("a", (7, 4), F)], op.nn.relu),
    "sum": ([("a", (8, 12), F)], lambda x: op.sum(x, 1)),
    "mean": ([("a", (8, 16), F)], lambda x: op.mean(x, 1)),
    "max": ([("a", (8, 12), F)], lambda x: op.max(x, 0)),
    "softmax": ([("a", (8, 12), F)], lambda x: op.nn.softmax(x, 1)),
    "reshape": ([("a", (8, 6, 4), F)], lambda x: op.reshape(x, (48, 4))),
    "permute": ([("a", (8, 6, 4), F)], lambda x: op.permute_dims(x, (2, 0, 1))),
    "split": ([("a", (8, 12), F)], lambda x: op.split(x, 2, 1)),
    "conv": (
        [("x", (4, 8, 5, 5), F), ("w", (6, 8, 3, 3), F)],
        lambda x, w: op.nn.conv2d(x, w, padding=1),
    ),
    "layer_norm": (
        [("x", (8, 12), F), ("g", (12,), F), ("b", (12,), F)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, -1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_prim_funcs(name):
    specs, make = CASES[name]
    whole, _ = h.whole_module(specs, make)
    tir = relax.transform.LegalizeOps()(whole)
    call = next(
        b.value
        for block in tir["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, tvm.ir.Call) and "call_tir" in str(b.value.op.name)
    )
    factors = rule_of(call, tir).factors
    assert factors
    inputs = h.draw(specs)
    want = h.reference(whole, inputs)
    for factor in factors:
        for count in (2, 3):
            if not h.fits(factor, count):
                continue
            mod = h.distributed(specs, call, h.mesh_of(count), [factor], functions=tir)
            legal = LegalizeRedistribute()(mod)
            local = LowerDistIR()(legal)
            h.check_module(local)
            assert "_shard1" in local.script()
            for a, b in zip(h.run_virtual(local, inputs), want):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            break


def test_a_call_with_a_gradient_is_cut_like_one_without():
    """Its mark speaks to the pass that makes gradients, which has run by then."""
    specs, make = CASES["add"]
    whole, _ = h.whole_module(specs, make)
    tir = relax.transform.LegalizeOps()(whole)
    plain = tir["main"].body.blocks[-1].bindings[-1].value
    marked = op.call_tir_with_grad(plain.args[0], plain.args[1], plain.ty, te_grad_name="none")
    call = relax.BlockBuilder().normalize(marked)
    inputs = h.draw(specs)
    factor = rule_of(call, tir).factors[0]
    mod = h.distributed(specs, call, h.mesh_of(2), [factor], functions=tir)
    local = LowerDistIR()(LegalizeRedistribute()(mod))
    h.check_module(local)
    assert "_shard1" in local.script() and "with_grad" not in local.script()
    for a, b in zip(h.run_virtual(local, inputs), h.reference(whole, inputs)):
        np.testing.assert_allclose(a, b)
