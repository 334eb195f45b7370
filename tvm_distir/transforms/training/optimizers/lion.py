# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define Lion, which follows the sign of a running mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax.op import add, sign, subtract

from .protocol import Shared, by_rate, scaled
from .ranges import at_least_zero, share


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

    def states(self, weight: Any) -> dict[str, Any]:
        """Return the type of the running mean."""
        return {"m": weight}

    def begin(self, builder: relax.BlockBuilder, step: Any) -> dict[str, Any]:
        """Return nothing, as no values are shared."""
        return {}

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: Shared,
    ) -> tuple[Any, list[Any]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        near, kept = (
            builder.emit(add(scaled(builder, beta, states[0]), scaled(builder, 1 - beta, grad)))
            for beta in (self.beta1, self.beta2)
        )
        move = by_rate(builder, self.rate, shared, builder.emit(sign(near)))
        if self.decay:
            move = builder.emit(add(move, by_rate(builder, self.rate, shared, weight, self.decay)))
        return subtract(weight, move), [kept]
