# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A dim that two mesh axes cut unevenly, by annotation: kept by the ops that can, else moved."""

from __future__ import annotations

import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.core.plan.plan import Plan
from tvm_distir.transforms.optimize.traffic import traffic

F = "float32"
IMAGE = [1, 2, 10, 6]
nn = relax.op.nn

#: Name: operands, the call, where the first operand lies, and whether it can stay there.
CASES = {
    "matmul": ([[10, 6], [6, 3]], relax.op.matmul, "S[0], S[0]", True),
    "softmax": ([[10, 6]], lambda x: nn.softmax(x, 1), "S[0], S[0]", True),
    "relu of columns": ([[6, 10]], nn.relu, "S[1], S[1]", True),
    "topk": ([[1001, 16]], lambda x: relax.op.topk(x, 2, 0, "values"), "S[0], S[0]", False),
    "conv2d": ([IMAGE, [3, 2, 3, 3]], lambda x, w: nn.conv2d(x, w, padding=1), "S[2], S[2]", False),
    "max_pool2d": ([IMAGE], lambda x: nn.max_pool2d(x, 3, padding=1), "S[2], S[2]", False),
    "weight gradient": (
        [[2, 4, 10, 6], [2, 3, 10, 6]],
        lambda x, g: nn.conv2d(
            x, g, padding=1, data_layout="CNHW", kernel_layout="IOHW", out_layout="CNHW"
        ),
        "S[2], S[2]",
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_annotated_dim_is_kept_where_it_can_be(name: str) -> None:
    """Ops that read across shards get another placement, by collectives; all give the result."""
    shapes, make, placed, stays = CASES[name]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, F)) for i, s in enumerate(shapes)]
    with builder.function("main", params, {"num_input": len(params)}):
        with builder.dataflow():
            out = builder.emit_output(make(*params))
        builder.emit_func_output(out)
    mod = builder.get()
    rules = [{"param": "x0", "placement": placed}]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules})
    lowered = td.distribute(mod, plan)
    assert td.verify(mod, plan, engine="virtual", dist=lowered).equal
    assert bool(traffic(lowered).counts) != stays
