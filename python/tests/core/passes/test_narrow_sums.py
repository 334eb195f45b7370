# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Partial sums of 16-bit floats are added in float32 and rounded once, whatever adds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.unordered import distribute_unordered
from tvm_distir.execution.runtime.program.io_layout import np_dtype

LARGE = {"bfloat16": 256.0, "float16": 2048.0}
"""The least number that absorbs a one: alone, its type has steps of two there."""

MOVES = {
    "all_reduce": (8, "R, R"),
    "reduce_scatter": (8, "S[0], R"),
    "exchange": (10, "S[0], S[0]"),
}
"""Rows, and where a result of rows cut by the later axis is asked for, by what then adds it."""


def product(dtype: str, rows: int) -> Any:
    """A contraction of four terms, which four devices compute one each."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, dtype)) for n, s in (("x", [rows, 4]), ("w", [4, 2])))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, w), "y")
        builder.emit_func_output(y)
    return builder.get()


def program_of(dtype: str, move: str) -> Any:
    rows, placement = MOVES[move]
    cut = "S[0]" if "S[0], S[0]" in placement else "R"
    rules = [
        {"param": "x", "placement": f"S[1], {cut}", "stationary": True},
        {"param": "w", "placement": "S[0], R", "stationary": True},
        {"value": "y", "placement": placement},
    ]
    plan = {"schema_version": 1, "mesh": {"k": 4, "m": 2}, "rules": rules}
    return distribute_unordered(product(dtype, rows), plan)


def operands(dtype: str, move: str) -> tuple[list[Any], Any]:
    """Terms of a large number and three ones; their sum, rounded once."""
    x = np.ones((MOVES[move][0], 4))
    x[:, 0] = LARGE[dtype] * np.where(np.arange(len(x)) % 2, 1, -1)
    x[:, 1:] *= np.sign(x[:, :1])
    values = [a.astype(np_dtype(dtype)) for a in (x, np.ones((4, 2)))]
    return values, np.repeat(x.sum(1, keepdims=True), 2, 1).astype(np_dtype(dtype))


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("dtype", LARGE)
def test_terms_of_a_contraction(dtype: str, move: str, engine: str) -> None:
    program = program_of(dtype, move)
    assert f"R.dist.{move}" in program.script()
    values, want = operands(dtype, move)
    (got,) = td.run(program, values, engine=engine)
    np.testing.assert_array_equal(got.astype("float64"), want.astype("float64"))
    stepwise = values[0][:, :1]
    for term in range(1, 4):
        stepwise = stepwise + values[0][:, term : term + 1]
    assert not np.array_equal(stepwise, want[:, :1])  # these numbers tell the difference


def test_exchanged_terms_are_widened_in_the_program() -> None:
    """Kernels of this package accumulate in float32 anyway; those of other compilers may not."""
    assert 'R.Tensor((4, 2, 2), dtype="float32")' in program_of("bfloat16", "exchange").script()


def statistic(op: str, dtype: str, size: int) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, size], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            if op == "rms_norm":
                ones = relax.const(np.ones(size, np_dtype(dtype)), dtype)
                created = relax.op.nn.rms_norm(x, ones, [-1], 0.0)
            else:
                created = getattr(relax.op.nn, op)(x, -1)
            out = builder.emit_output(created)
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("op", ["rms_norm", "softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", LARGE)
def test_statistics_of_many_elements(dtype: str, op: str) -> None:
    """Each device adds more ones than its type can count."""
    size = 4 * 2 * int(LARGE[dtype])
    rules = [{"param": "x", "placement": "S[1]", "stationary": True}]
    plan = {"schema_version": 1, "mesh": {"k": 4}, "rules": rules}
    x = np.full((2, size), 1.0 if op == "rms_norm" else 0.0).astype(np_dtype(dtype))
    (got,) = td.run(td.distribute(statistic(op, dtype, size), plan), [x], engine="virtual")
    want = {"rms_norm": 1.0, "softmax": 1 / size, "log_softmax": -np.log(size)}[op]
    np.testing.assert_allclose(got.astype("float64"), want, rtol=2.0**-8)
