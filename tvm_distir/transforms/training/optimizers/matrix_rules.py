# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the update rules Muon and Adafactor, which read entire matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Type
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import (
    add,
    divide,
    matmul,
    maximum,
    mean,
    minimum,
    multiply,
    permute_dims,
    power,
    rsqrt,
    sqrt,
    subtract,
)
from tvm.relax.op import sum as sum_op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import scalar

from .protocol import RATE, Shared, by_rate, cast, like, scaled
from .ranges import above_zero, at_least_zero, at_most_zero, share
from .update_rules import AdamW

_NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315
"""Coefficients of the quintic iteration."""
_LEAST_NORM = 1e-7
ITERATED = "bfloat16"
"""Type of the iterations."""


@dataclass(frozen=True)
class Muon:
    """Muon (Jordan et al. 2024) for matrices, AdamW for other weights.

    The mean of the gradients is made nearly orthogonal by five Newton-Schulz iterations in
    bfloat16. They read entire matrices: the products of sharded ones exchange what they need. A
    matrix with a dim that is more than ``ratio`` times the other, such as a table of tokens, is
    updated by AdamW.

    Attributes
    ----------
    rate, momentum, decay : float
    rms : float
        The root mean square of updates, as 0.2 to match AdamW (Liu et al. 2025); 0: the rate is
        multiplied by the root of rows / columns where that is above one.
    ratio : float
    beta1, beta2, epsilon : float
        The options of AdamW.
    """

    rate: float = at_least_zero(1e-3)
    momentum: float = share(0.95)
    decay: float = at_least_zero(0.1)
    rms: float = at_least_zero(0.0)
    ratio: float = at_least_zero(16.0)
    beta1: float = share(0.9)
    beta2: float = share(0.999)
    epsilon: float = at_least_zero(1e-8)
    counts = True
    wide = False

    @property
    def _other(self) -> AdamW:
        return AdamW(self.rate, self.beta1, self.beta2, self.epsilon, self.decay)

    def _is_matrix(self, weight: Type) -> bool:
        shape = known_shape(weight) or ()
        return len(shape) == 2 and max(shape) <= self.ratio * min(shape)

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the type of the mean of the gradients, or those of the states of AdamW."""
        return {"momentum": weight} if self._is_matrix(weight) else self._other.states(weight)

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return the shared values of AdamW."""
        return self._other.begin(builder, step)

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        if not self._is_matrix(weight.ty):
            return self._other.update(builder, weight, grad, states, shared)
        rows, columns = known_shape(weight.ty) or ()
        buffer = _lerp(builder, states[0], grad, 1 - self.momentum)
        near = _lerp(builder, grad, buffer, self.momentum)
        times = math.sqrt(max(1.0, rows / columns))
        if self.rms:
            times = self.rms * math.sqrt(max(rows, columns))
        direction = cast(builder, _orthogonal(builder, near), str(weight.ty.dtype))
        move = by_rate(builder, self.rate, shared, direction, times)
        if self.decay:
            move = builder.emit(add(move, by_rate(builder, self.rate, shared, weight, self.decay)))
        return subtract(weight, move), [buffer]


def _lerp(builder: BlockBuilder, start: Expr, end: Expr, part: float) -> Expr:
    """Return ``start + part (end - start)``."""
    return builder.emit(add(scaled(builder, 1 - part, start), scaled(builder, part, end)))


def _orthogonal(builder: BlockBuilder, matrix: Expr) -> Expr:
    """Return the matrix with all singular values near one."""
    rows, columns = known_shape(matrix.ty) or ()
    wide = cast(builder, matrix, "float32")
    norm = builder.emit(sqrt(builder.emit(sum_op(builder.emit(multiply(wide, wide))))))
    norm = builder.emit(maximum(norm, scalar(_LEAST_NORM, "float32")))
    x = cast(builder, builder.emit(divide(wide, norm)), ITERATED)
    if rows > columns:
        x = builder.emit(permute_dims(x))
    a, b, c = _NEWTON_SCHULZ
    for _ in range(5):
        gram = builder.emit(matmul(x, builder.emit(permute_dims(x))))
        square = scaled(builder, c, builder.emit(matmul(gram, gram)))
        factor = builder.emit(add(scaled(builder, b, gram), square))
        x = builder.emit(add(scaled(builder, a, x), builder.emit(matmul(factor, x))))
    return builder.emit(permute_dims(x)) if rows > columns else x


_ROOT, _FRESH = "root", "fresh"
_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Adafactor:
    """Adafactor (Shazeer and Stern 2018), whose second moments are those of rows and columns.

    A matrix of the shape (..., n, m) has states of the shapes (..., n, 1) and (..., 1, m); a vector
    has one of its shape. Steps are relative to the root mean square of the weight.

    Attributes
    ----------
    rate : float
        The most that a relative step may be.
    power : float
        The share of new squares in the means is ``step ** power``.
    least : float
        The least root mean square of a weight.
    most : float
        The most root mean square of an update.
    decay : float
    """

    rate: float = at_least_zero(1e-2)
    power: float = at_most_zero(-0.8)
    least: float = at_least_zero(1e-3)
    most: float = above_zero(1.0)
    decay: float = at_least_zero(0.0)
    counts = True
    wide = False

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the types of the means of squares."""
        shape = list(weight.shape)
        if len(shape) < 2:
            return {"v": weight}
        types = [*shape[:-1], 1], [*shape[:-2], 1, shape[-1]]
        row, column = (relax.TensorType(sizes, str(weight.dtype)) for sizes in types)
        return {"row": row, "column": column}

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return the share of new squares and the most relative step."""
        return {
            _FRESH: builder.emit(power(step, scalar(self.power, "float32"))),
            _ROOT: builder.emit(rsqrt(step)),
        }

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        dtype = str(weight.ty.dtype)
        fresh = like(builder, shared[_FRESH], grad)
        tiny = _EPSILON[dtype]
        squares = builder.emit(multiply(grad, grad))
        means = [squares]
        if len(states) == 2:
            means = [builder.emit(mean(squares, axis=[k], keepdims=True)) for k in (-1, -2)]
        new = []
        for state, now in zip(states, means, strict=True):
            moved = builder.emit(multiply(fresh, builder.emit(subtract(now, state))))
            new.append(builder.emit(add(state, moved)))
        estimate = new[0]
        if len(new) == 2:
            average = builder.emit(mean(new[0], axis=[-2], keepdims=True))
            average = builder.emit(maximum(average, scalar(tiny, dtype)))
            estimate = builder.emit(divide(builder.emit(multiply(*new)), average))
        estimate = builder.emit(maximum(estimate, scalar(tiny * tiny, dtype)))
        update = builder.emit(multiply(builder.emit(rsqrt(estimate)), grad))
        size = _rms(builder, weight)
        size = builder.emit(maximum(size, scalar(self.least, "float32")))
        rate = shared.get(RATE, scalar(self.rate, "float32"))
        size = builder.emit(multiply(size, builder.emit(minimum(rate, shared[_ROOT]))))
        excess = scaled(builder, 1 / self.most, _rms(builder, update))
        excess = builder.emit(maximum(excess, scalar(1.0, "float32")))
        step = like(builder, builder.emit(divide(size, excess)), weight)
        move = builder.emit(multiply(step, update))
        if self.decay:
            move = builder.emit(add(move, by_rate(builder, self.rate, shared, weight, self.decay)))
        return subtract(weight, move), new


def _rms(builder: BlockBuilder, value: Expr) -> Expr:
    """Return the root mean square of a tensor, float32 ()."""
    wide = cast(builder, value, "float32")
    return builder.emit(sqrt(builder.emit(mean(builder.emit(multiply(wide, wide))))))
