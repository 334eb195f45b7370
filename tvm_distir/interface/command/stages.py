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

from tvm_distir.support import UsageError

from .options import asked_by
from .progress import enter_stage
from .training import recompute_asked, training_step
from .values import parse_bytes


class Stopwatch:
    """Wall-clock seconds by stage, in the order the stages ran."""

    def __init__(self) -> None:
        self.timings_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what stands inside; repeated stages add up."""
        start_s = time.perf_counter()
        enter_stage(name)
        try:
            yield
        finally:
            took_s = time.perf_counter() - start_s
            self.timings_s[name] = self.timings_s.get(name, 0.0) + took_s


@dataclass
class StagedModel:
    """A model on its way through the pipeline (``model`` as ``frontend.load_model`` gives it).

    ``system``: whose times decide, None where none is given. ``bucket_bytes``, ``ahead_bytes``:
    bounds of what joins and overlaps collectives, None where none are given. ``source``: the model
    as it was loaded, before its training step was made.
    """

    model: Any
    plan: Any
    system: Any = None
    levels: dict[str, Any] = field(default_factory=dict)
    bucket_bytes: int | None = None
    ahead_bytes: int | None = None
    source: Any = None


STRATEGY_FAULTS = ("DIST0230", "DIST0231", "DIST0235")
"""Faults of the text of ``--strategy``: unknown names, options, and what cannot be read."""


def load_system(arguments: argparse.Namespace, watch: Stopwatch) -> Any:
    """Load the system of ``--system``; None where none is given."""
    if arguments.system is None:
        return None
    with watch.stage("load"):
        from tvm_distir.core import System

        with asked_by("--system", "DIST0701"):
            return System.load(arguments.system)


def load_work(
    arguments: argparse.Namespace,
    axes: dict[str, int] | None,
    watch: Stopwatch,
    *,
    planless: bool = False,
    source: Any = None,
) -> StagedModel:
    """Load the model and the plan, or make the plan.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of :func:`.options.add_model_options`.
    axes : dict of str to int or None
        The mesh of the command line.
    watch : Stopwatch
        Gets the stages ``load``, ``plan`` and, with ``--train``, ``train``.
    planless : bool
        Whether there may be no plan, where none is given.
    source : Model, optional
        The model, where it was loaded before, with these sizes.
    """
    plan, system = None, load_system(arguments, watch)
    with watch.stage("plan"):
        if arguments.plan is not None:
            plan = load_plan(arguments.plan, axes)
        elif arguments.strategy is not None:
            from tvm_distir.planning import strategies as strategy

            with asked_by("--strategy", *STRATEGY_FAULTS):
                specs = strategy.parse(arguments.strategy)
    schedule = None if plan is None else plan.schedule
    if arguments.strategy is not None:
        schedule = strategy.schedule_of(specs, axes)
    with watch.stage("load"):
        source = source or _layered(_load(arguments, schedule))
        model, others = _entered(source, arguments.entry)
        plan = plan and plan.without_functions(others)
    buckets: dict[str, Any] = {
        "bucket_bytes": parse_bytes(arguments.bucket_bytes, "--bucket-bytes"),
        "ahead_bytes": parse_bytes(arguments.ahead_bytes, "--ahead-bytes"),
    }

    def planned(mod: Any) -> Any:
        with watch.stage("plan"):
            if arguments.strategy is not None:
                with asked_by("--strategy", *STRATEGY_FAULTS):
                    return strategy.compose(mod, axes or {}, specs, system)
            if plan is None and planless:
                return None
            if plan is None:
                from tvm_distir.core import as_plan

                with asked_by("--plan", "DIST0238"):
                    return as_plan(None, mod)
            if arguments.train:
                from tvm_distir.planning import with_updates

                return with_updates(mod, plan)
            return plan

    if not arguments.train:
        return StagedModel(model, planned(model.mod), system, source=source, **buckets)
    from tvm_distir.planning import fitted

    usual = "none" if arguments.strategy is None else strategy.recompute_of(specs)
    again = recompute_asked(arguments, plan, axes, schedule, usual)
    make = training_step(model.mod, arguments, system, schedule)

    def trained(recompute: Any) -> Any:
        with watch.stage("train"):
            return make(recompute)

    if arguments.strategy is None and plan is None:  # nothing to be measured
        step = trained(again)
        given = {"system": system, "source": source, **buckets}
        return StagedModel(replace(model, mod=step), planned(step), **given)
    step, plan = fitted(trained, planned, again, system, **buckets)
    return StagedModel(replace(model, mod=step), plan, system, source=source, **buckets)


def _entered(model: Any, entry: str | None) -> tuple[Any, frozenset[str]]:
    """The model with one of its entry points, and the names of the functions left out."""
    from tvm_distir.core import keep_entry

    with asked_by("--entry", "DIST0341"):
        kept = keep_entry(model.mod, entry)
    names = [{str(gv.name_hint) for gv in mod.get_global_vars()} for mod in (model.mod, kept)]
    return replace(model, mod=kept), frozenset(names[0] - names[1])


def _layered(model: Any) -> Any:
    """The model, its repeated layers as functions where they were exported flat by torch."""
    if model.kind != "torch":
        return model
    from tvm_distir.transforms import OutlineRepeatedLayers

    return replace(model, mod=OutlineRepeatedLayers()(model.mod))


def _load(arguments: argparse.Namespace, schedule: Any) -> Any:
    """Load the model; of a step in micro-batches with the batch of one.

    Raises
    ------
    UsageError
        DIST0151 for a schedule without ``--train``; DIST0152 where the batch is no multiple of
        the micro-batches.
    """
    from tvm_distir.core import data_positions, entry_of
    from tvm_distir.models import load_model

    if schedule is not None and not arguments.train:
        raise UsageError(
            "DIST0151",
            "stages and micro-batches are those of a training step",
            place=f"tvm-distir {arguments.command}",
            remedy="Add --train.",
        )
    parts = 1 if schedule is None else schedule.micro_batches
    whole = arguments.batch
    if whole is None or parts == 1:
        model = load_model(arguments.model, batch=whole, dims=arguments.dims)
        if parts == 1 or model.is_text:
            return model
        entry = model.mod[entry_of(model.mod)]
        whole = int(entry.params[data_positions(entry)[0]].ty.shape[0])
    if whole % parts:
        raise UsageError(
            "DIST0152",
            f"the batch {whole} is no multiple of the {parts} micro-batches",
            place="--batch",
            remedy="Give the whole batch, a multiple of them.",
        )
    return load_model(arguments.model, batch=whole // parts, dims=arguments.dims)


def load_plan(path: str, axes: dict[str, int] | None) -> Any:
    """Read a plan and compare its mesh with that of the command line.

    Raises
    ------
    UsageError
        DIST0151 where both name a mesh and the two differ.
    """
    from tvm_distir.core import Plan

    plan = Plan.load(path)
    if axes is not None:
        found = [list(mesh.axes.items()) for mesh in plan.meshes]
        given = [list(axes.items())]
        if plan.schedule is not None:  # an axis is that of the stages
            stages = plan.schedule.stages
            given = [
                [a for a in axes.items() if a != cut] for cut in axes.items() if cut[1] == stages
            ]
            given = [rows for rows in given if [rows] == found] or [list(axes.items())]
        if found != given:
            said = "; ".join(",".join(f"{a}={n}" for a, n in mesh) for mesh in found)
            raise UsageError(
                "DIST0151",
                f"the plan {path} is for the mesh {said}, not for the one given",
                place="--mesh",
                remedy="Leave --mesh out, or change one of them.",
            )
    return plan


def run_passes(
    work: StagedModel,
    watch: Stopwatch,
    keep: bool,
    *,
    first: str = "annotate",
    until: str | None = None,
) -> Any:
    """Take the model through all passes.

    Parameters
    ----------
    work : StagedModel
    watch : Stopwatch
        Gets one stage per pass.
    keep : bool
        Whether ``work.levels`` gets the module after each pass.
    first : str
        The pass to begin with.
    until : str, optional
        The pass to end with; the last one if none is given.

    Returns
    -------
    mod : tvm.ir.IRModule
        At the level local, if the passes go so far.
    """
    from tvm_distir.transforms import PassSpec, communication_passes, passes_for

    known = [(name, {**given, "system": work.system}) for name, given in passes_for(work.plan)]
    later = communication_passes(
        work.model.mod, work.system, bucket_bytes=work.bucket_bytes, ahead_bytes=work.ahead_bytes
    )
    asked = [*known, *later]
    names = [name for name, _ in asked]
    end = len(asked) if until is None else names.index(until) + 1
    steps = [
        (name, PassSpec(name).make(**given)) for name, given in asked[names.index(first) : end]
    ]
    mod = work.model.mod
    for name, step in steps:
        with watch.stage(name):
            mod = step(mod)
        if keep:
            work.levels[name] = mod
    return mod
