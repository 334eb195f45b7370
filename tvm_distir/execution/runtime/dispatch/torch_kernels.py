# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute matrix products, attention and convolutions of compiled programs by PyTorch.

PyTorch sees the tensors of TVM through DLPack, on the CPU or on the GPU where they are, without a
copy. On a GPU both launch their kernels on the default stream, so the order of the calls holds.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import tvm_ffi

from tvm_distir.support import ForkSafeLock, missing_extra

from .packed_names import CAUSAL, TORCH_PREFIX

_turn = ForkSafeLock()
"""Held while the functions are registered: the ranks of a program are threads."""


def register_torch_kernels() -> None:
    """Register the packed functions ``tvm_distir.torch.*``, once per process.

    All of them are registered when it returns, also where another thread began.

    Raises
    ------
    DependencyError
        DIST0111 where PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        problem = "the program calls kernels of PyTorch, which is not installed"
        raise missing_extra(problem, "dispatch", "torch")
    with _turn():
        _register()


@functools.cache
def _register() -> None:
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    view = torch.from_dlpack

    def matmul(a: Any, b: Any, out: Any) -> None:
        torch.matmul(view(a), view(b), out=view(out))

    def attend(q: Any, k: Any, v: Any, bias: Any, scale: float, causal: int, out: Any) -> None:
        # TVM: (batch, positions, heads, width); PyTorch: (batch, heads, positions, width).
        queries, keys, values = (view(x).transpose(1, 2) for x in (q, k, v))
        rows, columns = queries.shape[2], keys.shape[2]
        offset = abs(columns - rows) if CAUSAL[causal] == "BottomRight" else 0
        mask = None if bias is None else view(bias)
        masked = causal != 0 and (offset != 0 or mask is not None)
        if masked:
            seen = torch.ones(rows, columns, dtype=torch.bool, device=queries.device).tril(offset)
            mask = seen if mask is None else mask.masked_fill(~seen, float("-inf"))
        result = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal != 0 and not masked,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        view(out).copy_(result.transpose(1, 2))

    def attention(q: Any, k: Any, v: Any, scale: float, causal: int, out: Any) -> None:
        attend(q, k, v, None, scale, causal, out)

    def conv2d(
        data: Any,
        weight: Any,
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        data_dims: Sequence[int],
        weight_dims: Sequence[int],
        out_dims: Sequence[int],
        out: Any,
    ) -> None:
        x, w, y = (
            view(tensor).permute(*map(int, dims))
            for tensor, dims in ((data, data_dims), (weight, weight_dims), (out, out_dims))
        )
        top, left, bottom, right = (int(n) for n in padding)
        before = [top, left]
        if (top, left) != (bottom, right):
            x, before = pad(x, (left, right, top, bottom)), [0, 0]
        steps, spread = ([int(n) for n in values] for values in (strides, dilation))
        y.copy_(torch.conv2d(x, w, None, steps, before, spread, groups))

    def take_backward(grad: Any, indices: Any, out: Any) -> None:
        table, places = view(out), view(indices)
        # An index that is outside of the table adds nothing, as in the kernel of TVM.
        inside = (places >= 0) & (places < table.shape[0])
        rows = torch.where(inside[:, None], view(grad), 0.0)
        if rows.element_size() < 4:  # on CPUs PyTorch adds rows of half precision in their type
            rows = rows.float()
        places = torch.where(inside, places, 0)
        table.copy_(
            torch.ops.aten.embedding_dense_backward(rows, places, table.shape[0], -1, False)
        )

    functions = {
        "matmul": matmul,
        "attention": attention,
        "attention_bias": attend,
        "conv2d": conv2d,
        "take_backward": take_backward,
    }
    for name, function in functions.items():
        tvm_ffi.register_global_func(TORCH_PREFIX + name, torch.no_grad()(function), override=True)
