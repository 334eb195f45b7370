# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keep float32 master copies of half-precision weights for the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax
from tvm.ir import Type
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import astype

from .protocol import Optimizer, Shared

MASTER = "master"
"""Name of the state."""


@dataclass(frozen=True)
class Master:
    """Optimizer of master weights (Micikevicius et al. 2018).

    The master is a state beside those of the optimizer, all in float32. A new weight is the new
    master rounded. A weight that is float32 already has none.

    Attributes
    ----------
    inner : Optimizer
    """

    inner: Optimizer
    wide = True

    @property
    def counts(self) -> bool:
        """Return whether the wrapped optimizer reads the step number."""
        return self.inner.counts

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the types of the master weight and its states."""
        if str(weight.dtype) == "float32":
            return self.inner.states(weight)
        wide = relax.TensorType(weight.shape, "float32")
        return {MASTER: wide, **self.inner.states(wide)}

    def begin(self, builder: BlockBuilder, step: Expr) -> dict[str, Expr]:
        """Return the shared values of the wrapped optimizer."""
        return self.inner.begin(builder, step)

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        if str(weight.ty.dtype) == "float32":
            return self.inner.update(builder, weight, grad, states, shared)
        new, moments = self.inner.update(builder, states[0], grad, states[1:], shared)
        master = builder.emit(new)
        return astype(master, str(weight.ty.dtype)), [master, *moments]
