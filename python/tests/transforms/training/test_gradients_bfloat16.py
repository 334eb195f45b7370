# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What TVM 0.27 does not compile in bfloat16 by itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax
from tvm.relax.op import matmul, nn

from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.transforms.training.autodiff.reverse import reverse

HALF = ml_dtypes.bfloat16


def _pool_gradient(dtype: str, x: np.ndarray) -> np.ndarray:
    """Gradient of the sum of a max pool, with an overlap, at ``x``."""
    builder, var = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [var]):
        with builder.dataflow():
            pooled = builder.emit(nn.max_pool2d(var, (3, 3), (2, 2), (1, 1)))
            total = builder.emit(relax.op.sum(pooled))
            steps = [relax.VarBinding(v, builder.lookup_binding(v)) for v in (pooled, total)]
            (result,) = reverse(builder, steps, total, [var])
            out = builder.emit_output(relax.op.astype(result, "float32"))
        builder.emit_func_output(out)
    (created,) = Reference(builder.get()).run([x])
    return np.asarray(created)


def test_the_gradient_of_a_max_pool() -> None:
    """Small whole numbers, all different in a window: the same as in float32."""
    x = np.random.default_rng(0).permutation(128).reshape(1, 2, 8, 8)
    got, expected = (
        _pool_gradient(name, x.astype(kind))
        for name, kind in (("bfloat16", HALF), ("float32", np.float32))
    )
    np.testing.assert_array_equal(got, expected)
    assert expected.max() > 1  # windows overlap


def test_a_batched_product_of_17_columns() -> None:
    rng = np.random.default_rng(0)
    values = [rng.integers(-2, 3, shape).astype(HALF) for shape in ((8, 17, 32), (8, 32, 17))]
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(value.shape, "bfloat16"))
        for name, value in zip("ab", values, strict=True)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(matmul(*params))
        builder.emit_func_output(out)
    (created,) = Reference(builder.get()).run(values)
    expected = values[0].astype(np.float32) @ values[1].astype(np.float32)
    np.testing.assert_array_equal(np.asarray(created).astype(np.float32), expected)
