# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define stochastic gradient descent."""

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

    def states(self, weight: Any) -> dict[str, Any]:
        """Return the type of the momentum, if there is any."""
        return {"momentum": weight} if self.momentum else {}

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
        kept = []
        if self.decay:
            grad = builder.emit(add(grad, scaled(builder, self.decay, weight)))
        if states:
            grad = builder.emit(add(scaled(builder, self.momentum, states[0]), grad))
            kept = [grad]
        return subtract(weight, by_rate(builder, self.rate, shared, grad)), kept
