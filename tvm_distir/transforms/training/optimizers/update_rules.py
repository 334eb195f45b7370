# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the update rules SGD, Adam, AdamW and Lion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.ir import Type
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import add, divide, multiply, power, sign, sqrt, subtract

from tvm_distir.core.rewriting import scalar

from .protocol import Shared, by_rate, like, scaled
from .ranges import at_least_zero, share


@dataclass(frozen=True)
class Sgd:
    """SGD, ``w - rate (g + decay w)``, with momentum of the sum ``m g' = momentum m + g``.

    Attributes
    ----------
    rate, momentum, decay : float
    """

    rate: float = at_least_zero(1e-2)
    momentum: float = at_least_zero(0.0)
    decay: float = at_least_zero(0.0)
    counts = False
    wide = False

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the type of the momentum, if there is any."""
        return {"momentum": weight} if self.momentum else {}

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return nothing, as no values are shared."""
        return {}

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        new_state = []
        if self.decay:
            grad = builder.emit(add(grad, scaled(builder, self.decay, weight)))
        if states:
            grad = builder.emit(add(scaled(builder, self.momentum, states[0]), grad))
            new_state = [grad]
        return subtract(weight, by_rate(builder, self.rate, shared, grad)), new_state


LEFT = ("left1", "left2")
"""Names of what the moments fall short by so far."""


def adam_moments(
    builder: BlockBuilder, grad: Expr, states: Sequence[Expr], betas: Sequence[float]
) -> list[Expr]:
    """Return the running means of a gradient and of its square, with decays ``betas``."""
    squared = builder.emit(multiply(grad, grad))
    moments: list[Expr] = []
    for state, new, beta in zip(states, (grad, squared), betas, strict=True):
        new_state = scaled(builder, beta, state)
        moments.append(builder.emit(add(new_state, scaled(builder, 1 - beta, new))))
    return moments


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1), with decay added to the gradient (L2).

    States: the first and second moments, in the dtype of the weight.

    Attributes
    ----------
    rate, beta1, beta2, epsilon, decay : float
    """

    rate: float = at_least_zero(1e-3)
    beta1: float = share(0.9)
    beta2: float = share(0.999)
    epsilon: float = at_least_zero(1e-8)
    decay: float = at_least_zero(0.0)
    counts = True
    wide = False
    decoupled = False

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the types of the moments."""
        return {"m": weight, "v": weight}

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return the bias corrections ``1 - beta^step`` of both moments."""
        unit = scalar(1.0, "float32")
        left = [builder.emit(power(scalar(b, "float32"), step)) for b in (self.beta1, self.beta2)]
        return {
            name: builder.emit(subtract(unit, part)) for name, part in zip(LEFT, left, strict=True)
        }

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        if self.decay and not self.decoupled:
            grad = builder.emit(add(grad, scaled(builder, self.decay, weight)))
        left = [like(builder, shared[name], grad) for name in LEFT]
        moments = adam_moments(builder, grad, states, (self.beta1, self.beta2))
        first, second = (
            builder.emit(divide(moment, part)) for moment, part in zip(moments, left, strict=True)
        )
        small = scalar(self.epsilon, str(grad.ty.dtype))
        root = builder.emit(add(builder.emit(sqrt(second)), small))
        move = by_rate(builder, self.rate, shared, builder.emit(divide(first, root)))
        if self.decay and self.decoupled:
            move = builder.emit(add(move, by_rate(builder, self.rate, shared, weight, self.decay)))
        return subtract(weight, move), moments


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2), with decoupled weight decay.

    Attributes
    ----------
    rate, beta1, beta2, epsilon, decay : float
    """

    decay: float = at_least_zero(1e-2)
    decoupled = True


@dataclass(frozen=True)
class Lion:
    """Lion (Chen et al. 2023, algorithm 2), with decoupled weight decay as in AdamW.

    State: the running mean of the gradients.

    Attributes
    ----------
    rate, beta1, beta2, decay : float
    """

    rate: float = at_least_zero(1e-4)
    beta1: float = share(0.9)
    beta2: float = share(0.99)
    decay: float = at_least_zero(0.0)
    counts = False
    wide = False

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the type of the running mean."""
        return {"m": weight}

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return nothing, as no values are shared."""
        return {}

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        near, new_state = (
            builder.emit(add(scaled(builder, beta, states[0]), scaled(builder, 1 - beta, grad)))
            for beta in (self.beta1, self.beta2)
        )
        move = by_rate(builder, self.rate, shared, builder.emit(sign(near)))
        if self.decay:
            move = builder.emit(add(move, by_rate(builder, self.rate, shared, weight, self.decay)))
        return subtract(weight, move), [new_state]
