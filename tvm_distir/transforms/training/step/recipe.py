# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the options of a step: the loss, the optimizer, and the handling of gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_distir.core.plan import Recomputation, match_name
from tvm_distir.hardware import System
from tvm_distir.support import ModelError, nearest, shortened
from tvm_distir.transforms.training.optimizers.master import Master
from tvm_distir.transforms.training.optimizers.protocol import Optimizer
from tvm_distir.transforms.training.optimizers.registry import optimizer_named
from tvm_distir.transforms.training.recompute.choice import Auto, read_recompute

from .objective import Term, read_losses

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
    scale : float
        The scale of the loss; 1: none. The initial value of a dynamic scale is an input of the
        step.
    dynamic : bool
        Whether the scale follows what overflows.
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
    """

    losses: tuple[Term, ...]
    optimizer: Optimizer
    reread: bool
    clip: float
    scale: float
    dynamic: bool
    rate_input: bool
    frozen: tuple[str, ...]
    recompute: Recomputation | Auto
    system: System | None
    recomputed_ops: tuple[str, ...]

    def trains(self, name: str) -> bool:
        """Return whether a weight is updated."""
        return not any(match_name(pattern, name) for pattern in self.frozen)

    def check_frozen(self, names: Sequence[str]) -> None:
        """Reject a pattern that matches no weight (ModelError DIST0351)."""
        for pattern in self.frozen:
            if not any(match_name(pattern, name) for name in names):
                raise ModelError(
                    "DIST0351",
                    f'there is no weight "{shortened(pattern)}"',
                    place="train_step (frozen)",
                    remedy=nearest(pattern, names),
                )


def check_functions(recipe: Recipe, names: Sequence[str]) -> None:
    """Reject a recomputation pattern that matches no function (ModelError DIST0351)."""
    unused = [] if isinstance(recipe.recompute, Auto) else recipe.recompute.unused(names)
    for pattern in unused:
        raise ModelError(
            "DIST0351",
            f'recompute names "{shortened(pattern)}", and there is no such private function',
            place="train_step",
            remedy=nearest(pattern, names),
        )


def recipe_of(
    loss: str,
    optimizer: str,
    options: Mapping[str, float],
    *,
    reread: bool,
    clip: float,
    loss_scale: float | str,
    master: bool,
    rate_input: bool,
    frozen: Sequence[str],
    recompute: str | Mapping[str, str],
    system: System | str | None,
    recomputed_ops: Sequence[str] = (),
) -> Recipe:
    """Parse the arguments of :func:`.train_step` (ModelError DIST0351)."""
    others = inspect.signature(recipe_of).parameters.keys() - {"options"}
    method = optimizer_named(optimizer, options, others)
    dynamic = loss_scale == DYNAMIC
    try:
        scale = 1.0 if dynamic else float(loss_scale)
    except ValueError:
        scale = math.nan
    for label, value, most in (("loss_scale", scale, math.inf), ("clip", clip or 1.0, math.inf)):
        if not 0 < value < most:
            option, other = (loss_scale, f", or {DYNAMIC}") if label == "loss_scale" else (clip, "")
            raise ModelError(
                "DIST0351",
                f"{label} is {shortened(str(option))}",
                place="train_step",
                remedy=f"Give a positive number{other}.",
            )
    return Recipe(
        read_losses(loss),
        Master(method) if master else method,
        reread,
        clip,
        scale,
        dynamic,
        rate_input,
        tuple(frozen),
        read_recompute(recompute),
        System.resolve(system),
        tuple(recomputed_ops),
    )
