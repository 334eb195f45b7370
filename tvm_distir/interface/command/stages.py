# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the study of a step from the options of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import Stopwatch

from .options import asked_by, named_by_options
from .progress import enter_stage

if TYPE_CHECKING:
    from tvm_distir.hardware import System, Systems
    from tvm_distir.planning import Study

STRATEGY_FAULTS = ("DIST0230", "DIST0231", "DIST0235")
"""Faults of the text of ``--strategy``: unknown names, options, and what cannot be read."""


def stopwatch() -> Stopwatch:
    """Return a stopwatch whose stages are shown on a terminal."""
    return Stopwatch(enter_stage)


def load_system(
    name: Systems | None, watch: Stopwatch, price: float | None = None
) -> System | None:
    """Load the system of ``--system`` with the price of ``--price``; return None without it."""
    if name is None:
        return None
    with watch.stage("load"):
        from tvm_distir.hardware import System

        with asked_by("--system", "DIST0701", "DIST0706"), named_by_options("price"):
            system = System.required(name)
            return system if price is None else system.priced(price)


def training_keywords(step: StepOptions, system: System | None) -> dict[str, object] | None:
    """Return the keywords of ``train_step`` on a system; None for a forward step."""
    with asked_by("--optimizer", "DIST0351"):
        return step.training(system)


def study_of(
    step: StepOptions, *, watch: Stopwatch | None = None, planless: bool = False, **fields: Any
) -> Study:
    """Build the study of the options, up to its plan.

    Parameters
    ----------
    step : StepOptions
    watch : Stopwatch, optional
        Measures the stages.
    planless : bool
        Whether there may be no plan, where none is given.
    **fields : value
        Further fields of the study.
    """
    watch = watch or stopwatch()
    with watch.stage("load"):
        from tvm_distir.planning import Study
    with (
        asked_by("--kernels", "DIST0701"),
        asked_by("--system", "DIST0701", "DIST0706"),
        asked_by("--stack", "DIST0701"),
        asked_by("--optimizer", "DIST0351"),
        asked_by("--strategy", *STRATEGY_FAULTS),
        named_by_options("price"),
    ):
        study = Study.of(step, watch=watch, **fields)
    with (
        asked_by("--strategy", *STRATEGY_FAULTS),
        asked_by("--plan", "DIST0238"),
        asked_by("--entry", "DIST0341"),
        asked_by("--kernels", "DIST0701"),
        named_by_options("batch", "mesh", "micro_batches", "recompute", "train"),
    ):
        _ = study.step if planless and not study.is_planned else study.step_plan
    return study
