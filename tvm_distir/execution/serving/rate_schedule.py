# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedule the learning rate of a training step that takes it as the input ``rate``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from tvm_distir.support import UsageError, nearest

RATE = "rate"
"""The input of steps with ``rate_input``."""

KINDS = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate by step: a linear warm-up, then constant, linear or cosine.

    Attributes
    ----------
    kind : str
        ``"constant"``, or from the peak to the final rate by ``"linear"`` or ``"cosine"``.
    peak : float
        The rate after the warm-up.
    warmup : int
        The number of steps of the warm-up: the rate of step n, 1 for the first, is
        ``peak * n / warmup``.
    steps : int
        The step from which the rate is ``final``.
    final : float

    Raises
    ------
    UsageError
        DIST0152 for other kinds, and numbers of steps that contradict each other.

    Examples
    --------
    >>> schedule = td.RateSchedule("cosine", peak=0.1, warmup=2, steps=6)
    >>> [round(schedule(step), 3) for step in range(1, 8)]
    [0.05, 0.1, 0.085, 0.05, 0.015, 0.0, 0.0]
    >>> td.RateSchedule.read("linear:peak=0.1,steps=4")(2)
    0.05
    """

    kind: str
    peak: float
    warmup: int = 0
    steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            problem = f'there is no schedule "{self.kind}"'
            raise UsageError("DIST0152", problem, location="rate", remedy=nearest(self.kind, KINDS))
        has_end = self.kind != "constant"
        if self.warmup < 0 or (self.steps <= self.warmup) == has_end:
            problem = f"warmup={self.warmup},steps={self.steps}"
            problem += " leaves no steps" if has_end else " is no end of a constant rate"
            remedy = "Give more steps than the warm-up has." if has_end else "Leave steps out."
            raise UsageError("DIST0152", problem, location="rate", remedy=remedy)

    @classmethod
    def read(cls, text: str, location: str = "rate") -> RateSchedule:
        """Read ``cosine:peak=0.001,warmup=100,steps=1000,final=0.0001``, or a constant number.

        Raises
        ------
        UsageError
            DIST0152 for other text.
        """
        kind, _, rest = text.partition(":")
        keys = {f.name: int if f.type == "int" else float for f in fields(cls) if f.name != "kind"}
        values: dict[str, Any] = {}
        if kind not in KINDS and ":" not in text:
            kind, rest = "constant", f"peak={text}"
        for item in rest.split(","):
            key, _, number = (word.strip() for word in item.partition("="))
            try:
                values[key] = keys[key](number)
            except (KeyError, ValueError):
                problem = f'"{item}" is not an option of a schedule with a number'
                remedy = f"Write {'|'.join(KINDS)}:peak=0.001,warmup=100,steps=1000,final=0."
                raise UsageError("DIST0152", problem, location=location, remedy=remedy) from None
        if not all(map(math.isfinite, values.values())) or "peak" not in values:
            problem = f'"{text}" has no finite peak rate'
            raise UsageError("DIST0152", problem, location=location, remedy="Write peak=0.001.")
        try:
            return cls(kind, **values)
        except UsageError as error:
            raise error.placed(lambda _: location) from None

    def __call__(self, step: int) -> float:
        """Return the rate of a step, 1 for the first."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        if self.kind == "constant":
            return self.peak
        progress = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        left = 1 - progress if self.kind == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.final + (self.peak - self.final) * left
