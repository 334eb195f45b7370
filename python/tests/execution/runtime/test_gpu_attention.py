# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls of PyTorch's attention on GPUs, with tensors that have shapes and no values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from tvm_distir.execution.runtime.dispatch import torch_gpu_attention  # noqa: E402


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "causal"),
    [
        (torch.float16, 16, 16, True),
        (torch.bfloat16, 8, 24, False),
        (torch.bfloat16, 8, 24, True),  # flash attention would see the last keys
        (torch.float32, 20, 20, True),  # log-sum-exps of 32 rows
    ],
)
def test_shapes(dtype: torch.dtype, rows: int, columns: int, causal: bool) -> None:
    q = torch.empty(2, 4, rows, 64, dtype=dtype, device="meta")
    k, v = (torch.empty(2, 4, columns, 64, dtype=dtype, device="meta") for _ in range(2))
    result, sums = torch_gpu_attention.attention((q, k, v), causal, 0.125)
    assert (result.shape, result.dtype) == (q.shape, dtype)
    assert (sums.shape, sums.dtype) == ((2, 4, rows), torch.float32)
    grads = torch_gpu_attention.attention_backward(result, (q, k, v), result, sums, causal, 0.125)
    assert [(x.shape, x.dtype) for x in grads] == [(x.shape, dtype) for x in (q, k, v)]
