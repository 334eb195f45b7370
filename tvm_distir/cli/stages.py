# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The stages that several commands run, each timed: model, plan, passes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UsageError, nearest
from .options import parse_optimizer

LEVELS = {
    "annotate": "annotated",
    "propagate": "distributed",
    "legalize": "legalized",
    "optimize": "legalized",
    "lower": "local",
}
"""Passes of the pipeline, in order, and the level each ends at."""

STRUCTURE = ("outline", "inline")
"""Further passes of ``opt -p``, which keep the level."""

COLLECTIVES = {
    "share": "legalized",
    "slices": "legalized",
    "gathers": "legalized",
    "cancel": "legalized",
    "fuse": "legalized",
    "merge": "legalized",
    "unused": "legalized",
    "bucket": "local",
    "bucket-gathers": "local",
    "split": "local",
    "schedule": "local",
}
"""Single passes over collectives, for ``opt -p``, and the level they work at."""

PASSES = (*STRUCTURE, *LEVELS, *COLLECTIVES)

_FACTORIES = {
    "outline": "OutlineRepeatedLayers",
    "inline": "InlinePrivateFunctions",
    "propagate": "PropagateSharding",
    "legalize": "LegalizeRedistribute",
    "optimize": "OptimizeCollectives",
    "lower": "LowerDistIR",
    "share": "ShareCollectives",
    "slices": "MoveSlices",
    "gathers": "MoveGathers",
    "cancel": "CancelCollectives",
    "fuse": "FuseCollectives",
    "merge": "MergeReductions",
    "unused": "RemoveUnused",
    "bucket": "BucketReductions",
    "bucket-gathers": "BucketGathers",
    "split": "SplitCollectives",
    "schedule": "ScheduleCollectives",
}


class Stopwatch:
    """Wall-clock seconds by stage, in the order the stages ran."""

    def __init__(self) -> None:
        self.timings_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what stands inside; repeated stages add up."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            took_s = time.perf_counter() - start_s
            self.timings_s[name] = self.timings_s.get(name, 0.0) + took_s


@dataclass
class Work:
    """A model on its way through the pipeline (``model`` as ``frontend.load_model`` gives it)."""

    model: Any
    plan: Any
    levels: dict[str, Any] = field(default_factory=dict)


def check_pass(name: str, has_plan: bool) -> None:
    """Refuse a pass of ``opt -p`` before TVM is loaded.

    Raises
    ------
    UsageError
        DIST0152 for an unknown name, DIST0151 for ``annotate`` without a plan.
    """
    if name not in PASSES:
        raise UsageError("DIST0152", f'no pass "{name}"', place="-p", remedy=nearest(name, PASSES))
    if name == "annotate" and not has_plan:
        raise UsageError(
            "DIST0151", "annotate needs a plan", place="-p", remedy="Add --plan P.json."
        )


def make_pass(name: str, plan: Any | None) -> Any:
    """The pass called ``name`` in ``opt -p``; `check_pass` has seen the name."""
    from .. import transform

    if name == "annotate" and plan is not None:
        return transform.AnnotateSharding(plan)
    return getattr(transform, _FACTORIES[name])()


def load_work(arguments: argparse.Namespace, axes: dict[str, int] | None, watch: Stopwatch) -> Work:
    """Load the model and the plan, or make the plan.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of :func:`.options.add_model_options`.
    axes : dict of str to int or None
        The mesh of the command line.
    watch : Stopwatch
        Gets the stages ``load``, ``plan`` and, with ``--train``, ``train``.
    """
    plan = None
    with watch.stage("plan"):
        if arguments.plan is not None:
            plan = load_plan(arguments.plan, axes)
        else:
            from .. import strategy

            specs = strategy.parse(arguments.strategy)
    with watch.stage("load"):
        from ..frontend import load_model

        model = load_model(arguments.model, batch=arguments.batch)
    if arguments.train:
        with watch.stage("train"):
            model = replace(model, mod=training_step(model.mod, arguments))
    with watch.stage("plan"):
        if plan is None:
            plan = strategy.compose(model.mod, axes or {}, specs)
        elif arguments.train:
            from ..strategy.training import with_updates

            plan = with_updates(model.mod, plan)
    return Work(model, plan)


def training_step(mod: Any, arguments: argparse.Namespace) -> Any:
    """Make the training step that ``--train``, ``--loss`` and ``--optimizer`` ask for."""
    from ..frontend.training import train_step

    name, options = parse_optimizer(arguments.optimizer or "sgd")
    return train_step(mod, arguments.loss or "cross_entropy", name, False, **options)


def load_plan(path: str, axes: dict[str, int] | None) -> Any:
    """Read a plan and compare its mesh with that of the command line.

    Raises
    ------
    UsageError
        DIST0151 where both name a mesh and the two differ.
    """
    from ..plan import Plan

    plan = Plan.load(path)
    if axes is not None:
        found = [list(mesh.axes.items()) for mesh in plan.meshes]
        if found != [list(axes.items())]:
            said = "; ".join(",".join(f"{a}={n}" for a, n in mesh) for mesh in found)
            raise UsageError(
                "DIST0151",
                f"the plan {path} is for the mesh {said}, not for the one given",
                place="--mesh",
                remedy="Leave --mesh out, or change one of them.",
            )
    return plan


def run_passes(work: Work, watch: Stopwatch, keep: bool) -> Any:
    """Take the model through all passes.

    Parameters
    ----------
    work : Work
    watch : Stopwatch
        Gets one stage per pass.
    keep : bool
        Whether ``work.levels`` gets the module after each pass.

    Returns
    -------
    mod : tvm.ir.IRModule
        At the level local.
    """
    from .. import transform  # noqa: F401  (its import is not part of a pass's time)

    mod = work.model.mod
    for name in LEVELS:
        with watch.stage(name):
            mod = make_pass(name, work.plan)(mod)
        if keep:
            work.levels[name] = mod
    return mod
