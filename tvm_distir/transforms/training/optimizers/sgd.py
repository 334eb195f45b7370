# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax.op import add, subtract

from .protocol import Shared, by_rate, scaled
from .ranges import at_least_zero


@dataclass(frozen=True)
class Sgd:
    """``w - rate (g + decay w)``; with momentum of the running sum ``m g' = momentum m + g``.

    Attributes
    ----------
    rate, momentum, decay : float
    """

    rate: float = at_least_zero(1e-2)
    momentum: float = at_least_zero(0.0)
    decay: float = at_least_zero(0.0)
    counts = False
    wide = False

    def states(self, weight: Any) -> dict[str, Any]:
        """The running sum, where there is momentum."""
        return {"momentum": weight} if self.momentum else {}

    def begin(self, builder: relax.BlockBuilder, step: Any) -> dict[str, Any]:
        """Nothing is shared."""
        return {}

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: Shared,
    ) -> tuple[Any, list[Any]]:
        """See :class:`.protocol.Optimizer`."""
        kept = []
        if self.decay:
            grad = builder.emit(add(grad, scaled(builder, self.decay, weight)))
        if states:
            grad = builder.emit(add(scaled(builder, self.momentum, states[0]), grad))
            kept = [grad]
        return subtract(weight, by_rate(builder, self.rate, shared, grad)), kept
