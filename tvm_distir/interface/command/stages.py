# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the study of a step from the options of a command."""

from __future__ import annotations

import argparse
from typing import Any

from tvm_distir.support import Stopwatch

from .option_values import parse_bytes, parse_count, parse_number
from .options import asked_by, named_by_options
from .progress import enter_stage

STRATEGY_FAULTS = ("DIST0230", "DIST0231", "DIST0235")
"""Faults of the text of ``--strategy``: unknown names, options, and what cannot be read."""


def stopwatch() -> Stopwatch:
    """Return a stopwatch whose stages are shown on a terminal."""
    return Stopwatch(enter_stage)


def load_system(arguments: argparse.Namespace, watch: Stopwatch) -> Any:
    """Load the system of ``--system`` with the price of ``--price``; return None without it."""
    if arguments.system is None:
        return None
    with watch.stage("load"):
        from tvm_distir.core import System

        with asked_by("--system", "DIST0701"):
            system = System.load(arguments.system)
        price = getattr(arguments, "price", None)
        if price is None:
            return system
        with named_by_options("price"):
            return system.priced(parse_number(price, "--price"))


def study_of(
    arguments: argparse.Namespace,
    axes: dict[str, int] | None,
    *,
    watch: Stopwatch | None = None,
    planless: bool = False,
    **settings: Any,
) -> Any:
    """Build the study of the options, up to its plan.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of :func:`.options.add_model_options`.
    axes : dict of str to int or None
        The mesh of the command line.
    watch : Stopwatch, optional
        Measures the stages.
    planless : bool
        Whether there may be no plan, where none is given.
    **settings : value
        Further fields of the study.
    """
    watch = watch or stopwatch()
    system = load_system(arguments, watch)
    with watch.stage("load"):
        from tvm_distir.planning import Study
    study = Study(
        arguments.model,
        arguments.plan,
        strategy=arguments.strategy,
        mesh=axes,
        system=system,
        train=training_keywords(arguments, system) if arguments.train else None,
        recompute=arguments.recompute,
        micro_batches=micro_batches_of(arguments),
        batch=arguments.batch,
        dims=arguments.dims,
        entry=arguments.entry,
        bucket_bytes="unit"
        if arguments.bucket_bytes == "unit"
        else parse_bytes(arguments.bucket_bytes, "--bucket-bytes"),
        ahead_bytes=parse_bytes(arguments.ahead_bytes, "--ahead-bytes"),
        overlap_activations=arguments.overlap_activations,
        overlap_optimizer=arguments.overlap_optimizer,
        watch=watch,
        **settings,
    )
    with (
        asked_by("--strategy", *STRATEGY_FAULTS),
        asked_by("--plan", "DIST0238"),
        asked_by("--entry", "DIST0341"),
        asked_by("--kernels", "DIST0701"),
        named_by_options("batch", "mesh", "micro_batches", "recompute", "train"),
    ):
        _ = study.step if planless and not study.is_planned else study.step_plan
    return study


def micro_batches_of(arguments: argparse.Namespace) -> int | None:
    """Return the number of ``--micro-batches``; None without the option."""
    text = arguments.micro_batches
    return None if text is None else parse_count(text, "--micro-batches")


def training_keywords(arguments: argparse.Namespace, system: Any) -> dict[str, Any]:
    """Return the keywords of ``train_step`` for the options (UsageError DIST0152)."""
    from tvm_distir.interface.analysis import keeps_master
    from tvm_distir.transforms import optimizer_named, read_optimizer

    name, numbers = read_optimizer(arguments.optimizer or "sgd", "--optimizer")
    with asked_by("--optimizer", "DIST0351"):
        optimizer_named(name, numbers)
    return {
        "loss": arguments.loss or "cross_entropy",
        "optimizer": name,
        "clip": 0.0 if arguments.clip is None else parse_number(arguments.clip, "--clip"),
        "loss_scale": 1.0 if arguments.loss_scale is None else arguments.loss_scale,
        "master": keeps_master(system) if arguments.master is None else arguments.master,
        "frozen": arguments.freeze or (),
        **numbers,
    }
