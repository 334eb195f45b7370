# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State the operations of collectives on tensors of PyTorch, on CPUs and on GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tvm

from tvm_distir.core.collectives import Collective, equal_parts

from .process_groups import load_torch

if TYPE_CHECKING:
    import torch

_STEPS = {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}
_BOOL_STEPS = {
    "sum": "logical_or",
    "prod": "logical_and",
    "min": "logical_and",
    "max": "logical_or",
}


class TorchArrays:
    """The operations on torch tensors; see :class:`~.array_operations.Arrays`.

    The tensors of TVM are seen as torch tensors of the same memory (DLPack).

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._torch, self._device = load_torch(), device

    def read(self, tensor: tvm.runtime.Tensor) -> torch.Tensor:
        """Return the torch tensor of the memory of a TVM tensor."""
        return self._torch.from_dlpack(tensor)

    def result(self, out: tvm.runtime.Tensor) -> torch.Tensor:
        """Return the torch tensor of the memory of a result."""
        return self.read(out)

    def write(self, out: tvm.runtime.Tensor, array: torch.Tensor) -> None:
        """Write a tensor to a TVM tensor, unless it is its memory."""
        result = self.read(out)
        if result.data_ptr() != array.data_ptr():
            result.copy_(array.reshape(result.shape))

    def tensor(self, array: torch.Tensor) -> tvm.runtime.Tensor:
        """Return a TVM tensor with a copy of a tensor."""
        return tvm.runtime.from_dlpack(array.clone())

    def dtype(self, tensor: tvm.runtime.Tensor) -> torch.dtype:
        """Return the type of the torch tensor of a TVM tensor."""
        return self.read(tensor).dtype

    def contiguous(self, x: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor, without a copy where it is."""
        return x.contiguous()

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy."""
        return x.clone(memory_format=self._torch.contiguous_format)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of zeros."""
        return self._torch.zeros(tuple(shape), dtype=dtype, device=self._device)

    def concatenate(self, parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
        """Concatenate tensors along a dim."""
        return self._torch.cat(list(parts), dim)

    def reduce(self, terms: Sequence[torch.Tensor], op: str) -> torch.Tensor:
        """Reduce tensors in their order, 16-bit floats in float32."""
        torch, dtype = self._torch, terms[0].dtype
        step = getattr(torch, (_BOOL_STEPS if dtype == torch.bool else _STEPS)[op])
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        total = terms[0].to(wide)
        for term in terms[1:]:
            total = step(total, term.to(wide))
        return total.to(dtype)

    def local(
        self, call: Collective, x: torch.Tensor | None, position: int, count: int
    ) -> torch.Tensor:
        """Return the result of an op that needs no other rank."""
        args: dict[str, Any] = dict(call.args)
        if x is None or call.name == "axis_index":
            return self._torch.tensor(position, device=self._device)
        if call.name == "local_slice":
            return equal_parts(x, count, args["dim"])[position]
        return x if position == 0 else self._torch.full_like(x, self._neutral(args["op"], x.dtype))

    def _neutral(self, op: str, dtype: torch.dtype) -> float:
        """Return the neutral element of a reduction."""
        if op in ("sum", "prod"):
            return op == "prod"
        if dtype == self._torch.bool:
            return op == "min"
        if dtype.is_floating_point:
            return math.inf if op == "min" else -math.inf
        info = self._torch.iinfo(dtype)
        limit: float = info.max if op == "min" else info.min
        return limit
