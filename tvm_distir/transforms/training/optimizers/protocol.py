# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the interface of optimizers, with helpers to write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tvm import relax
from tvm.relax.op import astype, multiply

from tvm_distir.core.rewriting import scalar

STEP = "step"
"""Name of the parameter that counts the steps done, int64 ()."""

RATE = "rate"
"""Name of the learning rate, float32 (), where it is an input of the step."""

Shared = Mapping[str, Any]
"""Scalars, float32 (), that all weights share in a step, by name."""


class Optimizer(Protocol):
    """Elementwise update rule of weights, whose states are sharded as their weight.

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

    def states(self, weight: Any) -> dict[str, Any]:
        """Return the types of the states of a weight by name, for the weight's type."""

    def begin(self, builder: relax.BlockBuilder, step: Any) -> dict[str, Any]:
        """Return the values all weights share; ``step``, float32 (), counts from 1."""

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: Shared,
    ) -> tuple[Any, list[Any]]:
        """Return the new weight, not emitted yet, and its new states."""


def scaled(builder: relax.BlockBuilder, factor: float, value: Any) -> Any:
    """Multiply a tensor by a number."""
    return builder.emit(multiply(scalar(factor, str(value.ty.dtype)), value))


def by_rate(
    builder: relax.BlockBuilder, rate: float, shared: Shared, value: Any, times: float = 1.0
) -> Any:
    """Multiply a tensor by a number and the learning rate, an option or an input of the step."""
    if RATE not in shared:
        return scaled(builder, rate * times, value)
    learning_rate = like(builder, shared[RATE], value)
    moved = builder.emit(multiply(learning_rate, value))
    return moved if times == 1.0 else scaled(builder, times, moved)


def like(builder: relax.BlockBuilder, value: Any, other: Any) -> Any:
    """Cast a value to the dtype of another."""
    return cast(builder, value, str(other.ty.dtype))


def cast(builder: relax.BlockBuilder, value: Any, dtype: str) -> Any:
    """Cast a value to a dtype."""
    return value if str(value.ty.dtype) == dtype else builder.emit(astype(value, dtype))
