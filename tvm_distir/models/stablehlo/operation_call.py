# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent an operation during translation: operands, attributes and emitted values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.tree import Dense, Operation, RegionBlock

from .emitter import Emitter
from .translated_values import Tensors, TranslatedTensor, integers, typed

Result = TranslatedTensor | Tensors


@dataclass(eq=False)
class HloCall:
    """Operation with its operands translated.

    Parameters
    ----------
    operation : Operation
    operands : list of TranslatedTensor
    write : Emitter
    run : callable
        Translates a block, given values of its arguments; what it returns.
    loops : int, optional
        The iterations of loops that data ends and no counter bounds.
    """

    operation: Operation
    operands: Tensors
    write: Emitter
    run: Callable[[RegionBlock, Tensors], Tensors]
    loops: int | None = None

    def __getitem__(self, index: int) -> TranslatedTensor:
        return self.operands[index]

    def full(self, index: int) -> Expr:
        """Return an operand as a Relax tensor."""
        return self.write.full(self.operands[index])

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.operation.attributes.get(name, default)

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return an attribute that is a list of integers."""
        value = self.attribute(name)
        if isinstance(value, Dense):
            count = math.prod(n or 0 for n in value.type.shape)
            value = np.broadcast_to(value.values.reshape(-1), (count,)).tolist()
        if value is None and default is None:
            raise Unsupported(f"no {name}")
        return integers(default if value is None else value)

    def pairs(self, name: str, count: int) -> list[tuple[int, int]]:
        """Return an attribute of a number of integer pairs, which defaults to zeros."""
        value = self.attribute(name)
        if value is None:
            return [(0, 0)] * count
        if isinstance(value, Dense):
            value = np.broadcast_to(value.values.reshape(-1), (2 * count,)).reshape(count, 2)
        return [(int(a), int(b)) for a, b in value]

    def numbers(self, name: str) -> dict[str, Any]:
        """Return an attribute that names dims, such as those of a gather."""
        value = self.attribute(name)
        if not isinstance(value, dict):
            raise Unsupported(f"no {name}")
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the (first) result."""
        return typed(self.operation.result_types[0])[0]

    @property
    def dtype(self) -> str:
        """Return the element type of the (first) result."""
        return self.result_dtype(0)

    def result_dtype(self, index: int) -> str:
        """Return the element type of one of several results."""
        return typed(self.operation.result_types[index])[1]

    def region(self, index: int = 0) -> RegionBlock:
        """Return one of the operation's regions."""
        if index >= len(self.operation.regions):
            raise Unsupported("a region is missing")
        return self.operation.regions[index]


Converter = Callable[[HloCall], Result]
"""Writes what an operation computes: its result, or a list of them."""
