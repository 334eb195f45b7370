# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""NaN and infinities on uneven shards: all engines give what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [
        [1, NAN, 3, 0, NAN, -INF, 2],
        [5, 1, 2, 3, 4, 6, NAN],
        [-INF, -INF, -INF, -INF, -INF, -INF, -INF],
        [NAN, NAN, NAN, NAN, NAN, NAN, NAN],
        [INF, INF, INF, INF, INF, INF, INF],
        [1, 2, 3, 4, 5, 7, 7],
        [NAN, -INF, INF, 0, 1, 1, 1],
        [-1, 0, 1, INF, INF, -1, NAN],
    ],
    "float32",
)
op = relax.op
SORTED = np.sort(ROWS, 1)
CASES = {
    "max": (lambda x: op.max(x, 1), ROWS.max(1)),
    "min": (lambda x: op.min(x, 1, True), ROWS.min(1, keepdims=True)),
    "argmax": (lambda x: op.argmax(x, 1), ROWS.argmax(1)),
    "argmin": (lambda x: op.argmin(x, 1), ROWS.argmin(1)),
    "best": (lambda x: op.topk(x, 3, 1, "values", True), SORTED[:, :-4:-1]),
    "least": (lambda x: op.topk(x, 6, 1, "values", False), SORTED[:, :6]),
    "sort": (lambda x: op.sort(x, 1), SORTED),
    "relu": (op.nn.relu, np.maximum(ROWS, 0)),
    "sign": (op.sign, np.sign(ROWS)),
    "not_equal": (lambda x: op.not_equal(x, x), np.isnan(ROWS)),
}


def module(names):
    """Some of the cases on one input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(ROWS.shape), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            matches = [builder.emit(CASES[name][0](x)) for name in names]
            result = builder.emit_output(relax.Tuple(matches))
        builder.emit_func_output(result)
    return builder.finalize()


def check(names, placement, engine):
    """The cases on shards, which ``stationary`` keeps from being moved first."""
    rules = [{"param": "x", "placement": placement, "stationary": True}]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"tp": 4}, "rules": rules})
    result = td.run(td.distribute(module(names), plan), [ROWS], engine=engine)
    for name, single in zip(names, result, strict=True):
        np.testing.assert_array_equal(single, CASES[name][1], err_msg=name)


@pytest.mark.parametrize("engine", ["virtual", "threads", "xla"])
def test_special_values_on_shards_of_rows(engine):
    if engine == "xla":
        pytest.importorskip("jax", reason="the extra jax is not installed")
    check(list(CASES), "S[0]", engine)


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "sort"])
def test_special_values_along_the_sharded_dim(name, engine):
    """A sort needs the dim whole; XLA's all-reduce of maxima drops NaN on the CPU."""
    check([name], "S[1]", engine)
