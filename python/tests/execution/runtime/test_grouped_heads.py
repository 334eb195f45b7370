# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention whose heads of queries share heads of keys, by all kernels, against NumPy."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import ir, relax

import tvm_distir as td

pytestmark = pytest.mark.quick

SHAPES = {"q": (2, 6, 4, 8), "k": (2, 5, 2, 8), "v": (2, 5, 2, 8), "bias": (2, 4, 6, 5)}
LIBRARIES = ["tvm", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]


def _module(dtype: str, names: list[str]) -> ir.IRModule:
    builder = relax.BlockBuilder()
    operands = [relax.Var(name, relax.TensorType(SHAPES[name], dtype)) for name in names]
    with builder.function("main", operands):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.attention(*operands))
        builder.emit_func_output(result)
    return builder.get()


def _attended(q: Any, k: Any, v: Any, bias: Any = 0) -> npt.NDArray[np.float64]:
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("names", [["q", "k", "v"], ["q", "k", "v", "bias"]])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("float16", 5e-3)])
def test_heads_that_share_keys(library: str, names: list[str], dtype: str, error: float) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=SHAPES[name]).astype(dtype) for name in names]
    plan = td.Plan(mesh={"dp": 2}, rules={name: td.P("dp") for name in names})
    dist = td.distribute(_module(dtype, names), plan)
    (result,) = td.run(dist, values, engine="virtual", dispatch=library)
    expected = _attended(*(value.astype("float64") for value in values))
    np.testing.assert_allclose(result, expected, atol=error, rtol=error)
