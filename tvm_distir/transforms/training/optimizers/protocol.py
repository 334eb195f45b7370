# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the interface of optimizers, with helpers to write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tvm.ir import Type
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import astype, multiply

from tvm_distir.core.rewriting import scalar

STEP = "step"
"""Name of the parameter that counts the steps done, int64 ()."""

RATE = "rate"
"""Name of the learning rate, float32 (), where it is an input of the step."""

Shared = Mapping[str, Expr]
"""Scalars, float32 (), that all weights share in a step, by name."""


class Optimizer(Protocol):
    """Update rule of weights, whose states are sharded as their weight.

    Attributes
    ----------
    counts : bool
        Whether it needs the number of the step.
    wide : bool
        Whether it takes gradients in float32, whatever the weight is.
    """

    @property
    def counts(self) -> bool:
        """Return whether the step number is read."""

    @property
    def wide(self) -> bool:
        """Return whether gradients are float32."""

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the types of the states of a weight by name, for the weight's type."""

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return the values all weights share; ``step``, float32 (), counts from 1."""

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Return the new weight, not emitted yet, and its new states."""


def scaled(builder: BlockBuilder, factor: float, value: Expr) -> Expr:
    """Multiply a tensor by a number."""
    return builder.emit(multiply(scalar(factor, str(value.ty.dtype)), value))


def by_rate(
    builder: BlockBuilder, rate: float, shared: Shared, value: Expr, times: float = 1.0
) -> Expr:
    """Multiply a tensor by a number and the learning rate, an option or an input of the step."""
    if RATE not in shared:
        return scaled(builder, rate * times, value)
    moved = builder.emit(multiply(like(builder, shared[RATE], value), value))
    return moved if times == 1.0 else scaled(builder, times, moved)


def like(builder: BlockBuilder, value: Expr, other: Expr) -> Expr:
    """Cast a value to the dtype of another."""
    return cast(builder, value, str(other.ty.dtype))


def cast(builder: BlockBuilder, value: Expr, dtype: str) -> Expr:
    """Cast a value to a dtype."""
    return value if str(value.ty.dtype) == dtype else builder.emit(astype(value, dtype))
