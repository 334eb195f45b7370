# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Partial sums that compute ops of ``R.dist`` leave are added to those of ops of ``R``."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.core.ir.operators.grouped_ops import grouped_matmul

ROWS, INNER, COLS, GROUPS = 8, 16, 6, 4


@pytest.fixture(scope="module")
def module():
    """Experts beside a shared expert: the sum of a grouped product and a product."""
    shapes = {"x": (ROWS, INNER), "w": (GROUPS, INNER, COLS), "b": (INNER, COLS)}
    params = {n: relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()}
    ids = relax.Var("ids", relax.TensorType((ROWS,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [*params.values(), ids]):
        with builder.dataflow():
            experts = builder.emit(grouped_matmul(params["x"], params["w"], ids, groups=GROUPS))
            shared = builder.emit(relax.op.matmul(params["x"], params["b"]))
            total = builder.emit_output(relax.op.add(experts, shared))
        builder.emit_func_output(total)
    return builder.finalize()


@pytest.mark.parametrize("ways", [2, 4])
def test_partial_sums_of_both_are_reduced_once(module, ways):
    rules = [("x", "S[1]"), ("w", "S[1]"), ("b", "S[0]")]
    plan = td.Plan.from_dict(
        {
            "schema_version": 1,
            "mesh": {"tp": ways},
            "rules": [{"param": name, "placement": place} for name, place in rules],
        }
    )
    mod = module
    for step in (
        td.transforms.AnnotateSharding(plan),
        td.transforms.PropagateSharding(),
        td.transforms.LegalizeRedistribute(),
    ):
        mod = step(mod)
    td.core.analysis.check_level(mod, 4)
    rng = np.random.default_rng(0)
    x, w, b = (
        rng.integers(-2, 3, shape).astype("float32")
        for shape in ((ROWS, INNER), (GROUPS, INNER, COLS), (INNER, COLS))
    )
    ids = rng.integers(0, GROUPS, ROWS)
    local = td.distribute(module, plan)
    (result,) = td.run(local, [x, w, b, ids], engine="virtual")
    assert np.array_equal(result, np.einsum("mk,mkn->mn", x, w[ids]) + x @ b)
    kinds = [c.kind for c in td.simulate(td.export(local), "dgx-a100").collectives]
    assert kinds == ["all_reduce"]
