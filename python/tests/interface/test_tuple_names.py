# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Test the names of tensors of a tuple parameter in plans, inputs and explanations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.support import EngineError


def two_products() -> ir.IRModule:
    """Return ``x @ p[0] @ p[1]``."""
    matrix = relax.TensorType((16, 16), "float32")
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    p = relax.Var("p", relax.TupleType([matrix, matrix]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, p]):
        with builder.dataflow():
            first = builder.emit(relax.op.matmul(x, builder.emit(relax.TupleGetItem(p, 0))))
            second = relax.op.matmul(first, builder.emit(relax.TupleGetItem(p, 1)))
            result = builder.emit_output(second)
        builder.emit_func_output(result)
    return builder.finalize()


MODULE = two_products()
DRAWN = np.random.default_rng(0)
X, A, B = (DRAWN.integers(-2, 3, s).astype("float32") for s in ((8, 16), (16, 16), (16, 16)))


@pytest.mark.parametrize("name", ["p[0]", "p.0", "p_0"])
def test_plans_and_explanations_take_each_spelling(name: str) -> None:
    plan = td.Plan(mesh={"tp": 2}, rules={name: td.P(None, "tp")})
    assert "S[1]" in explain(MODULE, name, plan=plan, alternatives=False).to_text()


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": X, "p": (A, B)},
        {"x": X, "p[0]": A, "p[1]": B},
        {"x": X, "p.0": A, "p_1": B},
        [X, (A, B)],
    ],
)
def test_runs_take_each_spelling(inputs: Any) -> None:
    plan = td.Plan(mesh={"tp": 2}, rules={"p[0]": td.P(None, "tp")})
    (result,) = td.run(td.distribute(MODULE, plan), inputs, engine="virtual")
    np.testing.assert_array_equal(result, X @ A @ B)
    assert td.verify(MODULE, plan, inputs=inputs).equal


def test_a_field_that_is_missing_is_named() -> None:
    plan = td.Plan(mesh={"tp": 2}, rules={"p[0]": td.P(None, "tp")})
    with pytest.raises(EngineError, match="missing: p_1"):
        td.run(td.distribute(MODULE, plan), {"x": X, "p": (A,)}, engine="virtual")
