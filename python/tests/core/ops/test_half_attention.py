# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``nn.attention`` in half precision, against NumPy in float32 on the same values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import tvm_distir as td

SHAPE = (2, 6, 4, 8)
PLAN = {"schema_version": 1, "mesh": {"dp": 2}, "rules": [{"param": "q", "placement": "S[0]"}]}


def attention(q: Any, k: Any, v: Any, bias: Any, causal: bool) -> Any:
    scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(SHAPE[3])
    scores = scores if bias is None else scores + bias
    scores = np.where(np.tri(SHAPE[1], dtype=bool) | (not causal), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhst,bthd->bshd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("biased", "causal"), [(False, True), (False, False), (True, False)])
def test_half_precision(dtype: str, biased: bool, causal: bool) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    shapes = [*[SHAPE] * 3, *([(2, 4, 6, 6)] if biased else [])]
    params = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in zip("qkvb", shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            mask = "TopLeft" if causal else None
            out = builder.emit(relax.op.nn.attention(*params, causal_mask=mask))
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(kind) for s in shapes]
    (got,) = td.run(td.distribute(builder.get(), PLAN), inputs, engine="virtual")
    wide = [x.astype("float32") for x in inputs]
    expected = attention(*wide[:3], wide[3] if biased else None, causal)
    assert str(got.dtype) == dtype
    tolerance = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    assert np.allclose(got.astype("float32"), expected, rtol=tolerance, atol=tolerance)
