# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the options of a step: the loss, the optimizer, and the handling of gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm_distir.core.plan import Recomputation, match_name
from tvm_distir.hardware import System
from tvm_distir.support import nearest, parse_float, shortened
from tvm_distir.transforms.step_faults import wrong_argument
from tvm_distir.transforms.training.optimizers.protocol import Optimizer
from tvm_distir.transforms.training.recompute.choice import Auto

from .objective import Term

DYNAMIC = "dynamic"
"""The loss scale that grows and shrinks with what overflows."""


@dataclass(frozen=True)
class Recipe:
    """Options of a training step.

    Attributes
    ----------
    losses : tuple of Term
    optimizer : Optimizer
    reread : bool
    clip : float
        Most that the norm of all gradients together may be; 0: any.
    loss_scale : float or str
    rate_input : bool
        Whether the learning rate is an input of the step.
    frozen : tuple of str
        Patterns of weights that stay as they are.
    recompute : Recomputation or Auto
        The policy of what functions save for their backward pass.
    system : System or None
        The system whose times and memory decide that.
    recomputed_ops : tuple of str
        Ops that kernels of the backward pass compute again.
    adapters : frozenset of str
        The weights that alone are trained; empty: all are.

    Raises
    ------
    ModelError
        DIST0351 for a loss scale or a bound of the norm that is no positive number.
    """

    losses: tuple[Term, ...]
    optimizer: Optimizer
    reread: bool = False
    clip: float = 0.0
    loss_scale: float | str = 1.0
    rate_input: bool = False
    frozen: tuple[str, ...] = ()
    recompute: Recomputation | Auto = field(default_factory=Recomputation)
    system: System | None = None
    recomputed_ops: tuple[str, ...] = ()
    adapters: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for label, option, value, other in (
            ("loss_scale", self.loss_scale, self.scale, f", or {DYNAMIC}"),
            ("clip", self.clip, self.clip or 1.0, ""),
        ):
            if not 0 < value < math.inf:
                problem = f"{label} is {shortened(str(option))}"
                raise wrong_argument(problem, f"Give a positive number{other}.")

    @property
    def dynamic(self) -> bool:
        """Return whether the scale follows what overflows."""
        return self.loss_scale == DYNAMIC

    @cached_property
    def scale(self) -> float:
        """Return the scale of the loss; 1: none. A dynamic scale is an input of the step."""
        scale = self.loss_scale
        if self.dynamic:
            return 1.0
        return parse_float(scale) if isinstance(scale, str) else float(scale)

    def trains(self, name: str) -> bool:
        """Return whether a weight is updated."""
        if self.adapters and name not in self.adapters:
            return False
        return not any(match_name(pattern, name) for pattern in self.frozen)

    @property
    def policies(self) -> Recomputation:
        """Return the policies of recomputation; none while they are not decided."""
        return Recomputation() if isinstance(self.recompute, Auto) else self.recompute

    def recomputes(self, policy: str) -> bool:
        """Return whether calls of some functions have a recomputation policy."""
        rules = self.policies.rules
        return any(policy == name for _, runs in rules for name, _ in runs.parts)

    def check_frozen(self, names: Sequence[str]) -> None:
        """Reject a pattern that matches no weight (ModelError DIST0351)."""
        for pattern in self.frozen:
            if not any(match_name(pattern, name) for name in names):
                problem = f'there is no weight "{shortened(pattern)}"'
                raise wrong_argument(problem, nearest(pattern, names), "frozen")


def check_functions(recipe: Recipe, names: Sequence[str]) -> None:
    """Reject a recomputation pattern that matches no function (ModelError DIST0351)."""
    for pattern in recipe.policies.unused(names):
        problem = f'recompute names "{shortened(pattern)}", and there is no such private function'
        raise wrong_argument(problem, nearest(pattern, names))
