# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a training step, element by element: a state is cut as its weight is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from tvm import relax
from tvm.relax.op import add, astype, divide, multiply, power, sqrt, subtract

from ...errors import ModelError, UsageError, nearest, shortened
from .constants import scalar

STEP = "step"
"""Name of the parameter that counts the steps done, int64 ()."""


class Optimizer(Protocol):
    """What a training step asks of an optimizer.

    Attributes
    ----------
    slots : tuple of str
        Names of the states of each weight, of its shape and dtype.
    counts : bool
        Whether it needs the number of the step.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the states of each weight."""

    @property
    def counts(self) -> bool:
        """Whether the number of the step is read."""

    def begin(self, builder: relax.BlockBuilder, step: Any) -> tuple[Any, ...]:
        """What all weights share in this step; ``step``, float32 (), counts from 1."""

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: tuple[Any, ...],
    ) -> tuple[Any, list[Any]]:
        """New weight and new states, the weight not emitted yet."""


def _scaled(builder: relax.BlockBuilder, factor: float, value: Any) -> Any:
    return builder.emit(multiply(scalar(factor, str(value.ty.dtype)), value))


@dataclass(frozen=True)
class Sgd:
    """``w - rate (g + decay w)``; with momentum of the running sum ``m g' = momentum m + g``.

    Attributes
    ----------
    rate, momentum, decay : float
    """

    rate: float = 1e-2
    momentum: float = 0.0
    decay: float = 0.0
    counts = False

    @property
    def slots(self) -> tuple[str, ...]:
        """The running sum, where there is momentum."""
        return ("momentum",) if self.momentum else ()

    def begin(self, builder: relax.BlockBuilder, step: Any) -> tuple[Any, ...]:
        """Nothing."""
        return ()

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: tuple[Any, ...],
    ) -> tuple[Any, list[Any]]:
        """See :class:`Optimizer`."""
        if self.decay:
            grad = builder.emit(add(grad, _scaled(builder, self.decay, weight)))
        kept = []
        if states:
            grad = builder.emit(add(_scaled(builder, self.momentum, states[0]), grad))
            kept = [grad]
        return subtract(weight, _scaled(builder, self.rate, grad)), kept


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba 2015, algorithm 1; with decay as in Loshchilov and Hutter 2019 (AdamW).

    States: the first and second moments, in the dtype of the weight.

    Attributes
    ----------
    rate, beta1, beta2, epsilon, decay : float
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    counts = True
    slots = ("m", "v")

    def begin(self, builder: relax.BlockBuilder, step: Any) -> tuple[Any, ...]:
        """What the moments fall short by so far: ``1 - beta^step`` of either."""
        one = scalar(1.0, "float32")
        left = [builder.emit(power(scalar(b, "float32"), step)) for b in self._betas]
        return tuple(builder.emit(subtract(one, part)) for part in left)

    @property
    def _betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2

    def update(
        self,
        builder: relax.BlockBuilder,
        weight: Any,
        grad: Any,
        states: Sequence[Any],
        shared: tuple[Any, ...],
    ) -> tuple[Any, list[Any]]:
        """See :class:`Optimizer`."""
        dtype = str(weight.ty.dtype)
        shares = [s if dtype == "float32" else builder.emit(astype(s, dtype)) for s in shared]
        squared = builder.emit(multiply(grad, grad))
        moments = []
        for state, new, beta in zip(states, (grad, squared), self._betas, strict=True):
            kept = _scaled(builder, beta, state)
            moments.append(builder.emit(add(kept, _scaled(builder, 1 - beta, new))))
        first, second = (
            builder.emit(divide(moment, share))
            for moment, share in zip(moments, shares, strict=True)
        )
        small = scalar(self.epsilon, dtype)
        below = builder.emit(add(builder.emit(sqrt(second)), small))
        move = _scaled(builder, self.rate, builder.emit(divide(first, below)))
        if self.decay:
            move = builder.emit(add(move, _scaled(builder, self.rate * self.decay, weight)))
        return subtract(weight, move), moments


OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}


def optimizer_named(name: str, options: Mapping[str, float]) -> Optimizer:
    """Make an optimizer by name (ModelError DIST0351)."""
    if name not in OPTIMIZERS:
        raise ModelError(
            "DIST0351",
            f'no optimizer "{name}"',
            place="train_step",
            remedy=nearest(name, OPTIMIZERS),
        )
    kind = OPTIMIZERS[name]
    known = [f.name for f in fields(kind)]
    for option in options:
        if option not in known:
            raise ModelError(
                "DIST0351",
                f'the optimizer "{name}" has no option "{option}"',
                place="train_step",
                remedy=nearest(option, known),
            )
    return kind(**{key: float(value) for key, value in options.items()})


def read_optimizer(text: str, place: str) -> tuple[str, dict[str, float]]:
    """Read ``adam:rate=0.001,beta1=0.9``: a name and numbers (UsageError DIST0152)."""
    name, colon, rest = text.partition(":")
    options: dict[str, float] = {}
    for item in rest.split(",") if colon else []:
        key, equals, value = (word.strip() for word in item.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not key or not equals or not math.isfinite(number) or key in options:
            raise UsageError(
                "DIST0152",
                f'"{shortened(item)}" is not an option and its number',
                place=place,
                remedy="Write NAME:key=value,..., e.g. adam:rate=0.001.",
            )
        options[key] = number
    return name.strip(), options
