# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the operations on arrays by which collectives are stated, and those of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import tvm

from tvm_distir.core.collectives import Collective, all_reduce, apply_local
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array, to_array, to_tensor
from tvm_distir.support import EngineError

if TYPE_CHECKING:
    import torch

Data = TypeVar("Data")
Operand: TypeAlias = "Array | torch.Tensor"
"""An array of either kind."""


class Arrays(Protocol[Data]):
    """The operations on the arrays of a fabric: those of NumPy, or tensors of PyTorch."""

    def read(self, tensor: tvm.runtime.Tensor) -> Data:
        """Return the array of a TVM tensor."""

    def result(self, out: tvm.runtime.Tensor) -> Data | None:
        """Return the array over the memory of a result, where a collective can write there."""

    def write(self, out: tvm.runtime.Tensor, array: Data) -> None:
        """Write an array to a TVM tensor; DIST0611 where its shape or type is another one."""

    def tensor(self, array: Data) -> tvm.runtime.Tensor:
        """Return a TVM tensor with a copy of an array."""

    def dtype(self, tensor: tvm.runtime.Tensor) -> Any:
        """Return the type of the array of a TVM tensor."""

    def contiguous(self, x: Data) -> Data:
        """Return an array of contiguous memory, without a copy where it is."""

    def copy(self, x: Data) -> Data:
        """Return a contiguous copy."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Data:
        """Return an array of zeros."""

    def concatenate(self, parts: Sequence[Data], dim: int) -> Data:
        """Concatenate arrays along a dim."""

    def reduce(self, terms: Sequence[Data], op: str) -> Data:
        """Reduce arrays in their order; see :func:`tvm_distir.core.collectives.all_reduce`."""

    def local(self, call: Collective, x: Data | None, position: int, count: int) -> Data:
        """Return the result of an op that needs no other rank."""


class NumpyArrays:
    """The operations of NumPy."""

    def read(self, tensor: tvm.runtime.Tensor) -> Array:
        """Return the array of a TVM tensor."""
        array: Array = to_array(tensor)
        return array

    def result(self, out: tvm.runtime.Tensor) -> None:
        """Return None: results are copied, since NumPy and TVM do not share all types."""
        return

    def write(self, out: tvm.runtime.Tensor, array: Array) -> None:
        """Write an array to a TVM tensor; DIST0611 where its shape or type is another one."""
        if tuple(out.shape) != array.shape or np_dtype(str(out.dtype)) != array.dtype:
            raise EngineError(
                "DIST0611",
                f"the result is {array.dtype}{list(array.shape)}, the code expects "
                f"{out.dtype}{list(out.shape)}",
                remedy="Report it: this is a bug of the lowering.",
            )
        out.copyfrom(self.contiguous(array))

    def tensor(self, array: Array) -> tvm.runtime.Tensor:
        """Return a TVM tensor with a copy of an array."""
        return to_tensor(array)

    def dtype(self, tensor: tvm.runtime.Tensor) -> np.dtype[np.generic]:
        """Return the type of the array of a TVM tensor."""
        return np_dtype(str(tensor.dtype))

    def contiguous(self, x: Array) -> Array:
        """Return an array of contiguous memory, shape () included."""
        return np.ascontiguousarray(x).reshape(x.shape)

    def copy(self, x: Array) -> Array:
        """Return a contiguous copy."""
        return np.array(x, order="C")

    def zeros(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
        """Return an array of zeros."""
        return np.zeros(shape, dtype)

    def concatenate(self, parts: Sequence[Array], dim: int) -> Array:
        """Concatenate arrays along a dim."""
        return np.concatenate(parts, axis=dim)

    def reduce(self, terms: Sequence[Array], op: str) -> Array:
        """Reduce arrays in their order."""
        return all_reduce(terms, op)

    def local(self, call: Collective, x: Array | None, position: int, count: int) -> Array:
        """Return the result of an op that needs no other rank."""
        return apply_local(call, x, position, count)


NUMPY = NumpyArrays()
