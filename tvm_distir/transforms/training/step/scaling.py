# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute common inputs of updates: the gradient factor (loss scale, clipping), step, rate.

A dynamic scale halves when a gradient overflows, and that step changes no weight; it doubles after
:data:`GROW_EVERY` steps without overflow (Micikevicius et al. 2018, section 3.2).
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import add, astype, divide, less, minimum, multiply, sqrt, where

from tvm_distir.core.rewriting import scalar
from tvm_distir.transforms.training.optimizers.protocol import RATE, STEP, Shared

from .recipe import Recipe

FACTOR, FINITE = "factor", "finite"
"""Names of what all updates share: the factor of gradients, float32 (); whether the step counts."""

LOSS_SCALE, SCALE_STEPS = "loss_scale", "scale_steps"
"""Names of the states: the scale, float32 (); steps since it changed, int64 ()."""

GROW_EVERY = 2000
GROWTH = 2.0

SMALL = 1e-6
"""Added to a norm before it divides."""


def _f32(value: float) -> Expr:
    return scalar(value, "float32")


class Scaling:
    """Loss scale and norm bound of a step.

    Parameters
    ----------
    recipe : Recipe

    Attributes
    ----------
    params : list of (str, Var)
        States of the step, with their names.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.params: list[tuple[str, Var]] = []
        if recipe.dynamic:
            self.params = [
                (LOSS_SCALE, relax.Var(LOSS_SCALE, relax.TensorType([], "float32"))),
                (SCALE_STEPS, relax.Var(SCALE_STEPS, relax.TensorType([], "int64"))),
            ]
        self._finite: Any = None

    @property
    def looks_at_gradients(self) -> bool:
        """Return whether the sum of the squares of all gradients is needed."""
        return bool(self.recipe.clip) or self.recipe.dynamic

    def seed(self, loss: Expr) -> Any:
        """Return the initial gradient of the loss, or None if it is 1."""
        dtype = str(loss.ty.dtype)
        if self.recipe.dynamic:
            scale = self.params[0][1]
            return scale if dtype == "float32" else relax.op.astype(scale, dtype)
        return None if self.recipe.scale == 1.0 else scalar(self.recipe.scale, dtype)

    def shared(
        self, builder: BlockBuilder, squares: Any, step: Any, rate: Any
    ) -> tuple[Shared, list[tuple[str, Any]]]:
        """Emit the common inputs of updates; return them with the unemitted new counters, by name.

        Parameters
        ----------
        builder : BlockBuilder
        squares : Var or None
            The sum of the squares of all gradients as they come, float32 ().
        step : Var or None
            The steps before, int64 ().
        rate : Var or None
            The learning rate, float32 ().
        """
        result: dict[str, Expr] = {}
        counters: list[tuple[str, Expr]] = []
        factor = self._unscale(builder)
        if self.recipe.clip:
            norm = builder.emit(sqrt(squares))
            norm = norm if factor is None else builder.emit(multiply(norm, factor))
            below = builder.emit(add(norm, _f32(SMALL)))
            ratio = builder.emit(divide(_f32(self.recipe.clip), below))
            bound = builder.emit(minimum(ratio, _f32(1.0)))
            factor = bound if factor is None else builder.emit(multiply(bound, factor))
        if factor is not None:
            result[FACTOR] = factor
        if self.recipe.dynamic:
            self._finite = builder.emit(less(squares, _f32(math.inf)), FINITE)
            result[FINITE] = self._finite
        if step is not None:
            count = builder.emit(add(step, relax.const(1, "int64")))
            wide = builder.emit(astype(count, "float32"))
            result.update(self.recipe.optimizer.begin(builder, wide))
            counts = self._finite is not None
            new = where(self._finite, builder.emit(count), step) if counts else count
            counters.append((STEP, new))
        if rate is not None:
            result[RATE] = rate
        return result, counters

    def _unscale(self, builder: BlockBuilder) -> Any:
        if self.recipe.dynamic:
            return builder.emit(divide(_f32(1.0), self.params[0][1]))
        return None if self.recipe.scale == 1.0 else _f32(1.0 / self.recipe.scale)

    def updated(self, builder: BlockBuilder) -> list[tuple[str, Any]]:
        """Return the new states by name, not emitted yet."""
        if not self.recipe.dynamic:
            return []
        scale, steps = (var for _, var in self.params)
        done = builder.emit(add(steps, relax.const(1, "int64")))
        due = builder.emit(less(relax.const(GROW_EVERY - 1, "int64"), done))
        grown = builder.emit(where(due, builder.emit(multiply(scale, _f32(GROWTH))), scale))
        halved = builder.emit(multiply(scale, _f32(1 / GROWTH)))
        zero = relax.const(0, "int64")
        left = builder.emit(where(due, zero, done))
        return [
            (LOSS_SCALE, where(self._finite, grown, halved)),
            (SCALE_STEPS, where(self._finite, left, zero)),
        ]
