# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide the cluster into stages, which process a training step by micro-batches.

Stages of a forward pass or of a serving step are those of :mod:`.forward_stages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.core.ir import mesh_devices, relax_functions
from tvm_distir.core.ir.attributes import training_notes
from tvm_distir.core.plan import MeshSpec, Pipeline, Plan, Schedule
from tvm_distir.support import PlanError, UsageError, shortened

from .forward_stages import forward_stages
from .model_info import MeshLike, as_mesh_spec, mesh_axis
from .registry import StrategySpec, checked, plan_maker
from .stage_division import slashed_numbers, unfit

PIPELINE = "pipeline"
"""Name of the strategy: it takes an axis away, and all others work on the mesh of a stage."""

AXIS = "pp"


@plan_maker
def pipeline(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = AXIS,
    stages: int = 0,
    micro_batches: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    stash: bool = False,
    offload: str = "none",
    layers: str = "",
) -> Plan:
    """Plan that places pipeline stages along a mesh axis.

    The batch is cut into micro-batches; the stages hand activations on and gradients back, in the
    order of the schedule. Each device holds the weights, gradients and optimizer states of the
    stages of its rank alone: ``1 / (P v)`` of those of equal stages, v per rank. It sends and
    receives the activations at each cut once per micro-batch and their gradients back. A weight
    that several stages read is kept by each, and its gradients are summed between them.

    The layers of a forward pass, or of a serving step, are divided over the stages; activations
    are sent from stage to stage. A stage holds the weights and the caches of its layers.

    Parameters
    ----------
    mod : IRModule
        A training step made with the same schedule (``train_step(..., schedule=...)``), or a
        module that is run forward.
    mesh : MeshSpec or mapping of str to int
        Of the whole cluster.
    axis : str
        The mesh axis of the pipeline's ranks; other strategies use the other axes.
    stages : int
        Number of ranks of the pipeline; 0 for the size of the axis. 1 is allowed without the
        axis, for micro-batches alone.
    micro_batches : int
        Number of micro-batches.
    schedule : str
        ``gpipe``, ``1f1b``, ``interleaved``, ``zero_bubble``, ``zero_bubble_v``, or the name of an
        entry point of the group ``tvm_distir.schedules``.
    chunks : int
        Number of stages per rank, for ``interleaved`` and schedules of other packages.
    stash : bool
        Update the weights after every micro-batch, and store those that its forward pass read for
        its backward pass (PipeDream).
    offload : str
        Stages that offload stored activations to the host: ``none``, ``all``, or numbers, as
        ``0/1``.
    layers : str
        Numbers of layers of each stage of a forward pass, as ``17/15``; empty: evenly, where
        layers that are left over go to the stages before the last one.

    Returns
    -------
    Plan
        The mesh of one stage, and the schedule with the devices of every rank; for a forward pass
        the meshes of all stages, and rules for its parameters.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 the step has no stages, or others, or a forward pass cannot be divided so;
        DIST0236 the schedule is wrong.
    """
    spec = as_mesh_spec(mesh)
    target_schedule = _schedule(
        spec.axes, axis, stages, micro_batches, schedule, chunks, stash, offload
    )
    if is_forward(mod):
        check_forward(target_schedule)
        return forward_stages(mod, spec, axis, layers)
    check_layers(layers)
    return on_stages(mod, spec, target_schedule, axis)


def is_forward(mod: ir.IRModule) -> bool:
    """Return whether a module is run forward: it is no training step, with stages or without."""
    return Pipeline.of(mod) is None and not any(
        training_notes(fn, "updated") for _, fn in relax_functions(mod)
    )


def check_forward(schedule: Schedule) -> None:
    """Refuse (PlanError DIST0233) a schedule of several micro-batches for a forward pass."""
    if not is_single_pass(schedule):
        raise unfit(
            f"the module is not a training step, and the strategy divides it into "
            f"{schedule.micro_batches} micro-batches and {schedule.chunks} stages per rank",
            "Use the options axis and layers only, or create a training step with --train, "
            "or train_step(..., schedule=...).",
        )


def check_layers(layers: str) -> None:
    """Refuse (PlanError DIST0233) numbers of layers for a training step."""
    if layers:
        problem = f'layers="{shortened(layers)}" divides forward passes, not training steps'
        raise unfit(problem, 'Create the step with the "cuts" of a schedule.')


def is_single_pass(schedule: Schedule) -> bool:
    """Return whether each rank has one stage, which runs once."""
    parts = schedule.micro_batches, schedule.chunks
    return parts == (1, 1) and not schedule.stash and not schedule.offload


def schedule_of(specs: Sequence[StrategySpec], axes: Mapping[str, int] | None) -> Schedule | None:
    """Return the schedule that a list of strategies asks for; None where no pipeline is among them.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no axis for it.
    PlanError
        DIST0232 two pipelines; DIST0236 the schedule is wrong.
    """
    pipelines = [spec for spec in specs if spec.name == PIPELINE]
    if not pipelines:
        return None
    if len(pipelines) > 1:
        remedy = "Give the number of chunks with chunks=."
        raise PlanError("DIST0232", "two pipelines", location="strategy", remedy=remedy)
    return _schedule(axes or {}, **checked(pipelines[0]).options)


def in_micro_batches(specs: Sequence[StrategySpec], count: int) -> list[StrategySpec]:
    """Return strategies whose step has so many micro-batches, with or without stages.

    Raises
    ------
    UsageError
        DIST0151 where a pipeline has another number of micro-batches.
    """
    if all(spec.name != PIPELINE for spec in specs):
        return [StrategySpec(PIPELINE, {"stages": 1, "micro_batches": count}), *specs]
    result = []
    for spec in specs:
        if spec.name == PIPELINE:
            stated = spec.options.get("micro_batches")
            if stated is not None:
                check_micro_batches(count, int(stated), "strategy")
            spec = replace(spec, options={**spec.options, "micro_batches": count})
        result.append(spec)
    return result


def check_micro_batches(count: int, other: int, subject: str) -> None:
    """Refuse (UsageError DIST0151) two different numbers of micro-batches."""
    if count != other:
        raise UsageError(
            "DIST0151", f"{count} micro-batches are given, and the {subject} has {other}",
            location="micro_batches", remedy="Remove either of them.",
        )  # fmt: skip


def _schedule(
    axes: Mapping[str, int],
    axis: str = AXIS,
    stages: int = 0,
    micro_batches: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    stash: bool = False,
    offload: str = "none",
    layers: str = "",
) -> Schedule:
    """Return the schedule of the options of :func:`pipeline`, with its errors.

    It does not depend on ``layers``.
    """
    size = axes.get(axis)
    if size is None and stages != 1:
        mesh_axis(MeshSpec("mesh", axes or {"": 1}), axis, PIPELINE)
    if stages not in (0, size or 1):
        raise PlanError(
            "DIST0236", f'stages={stages}, and the mesh axis "{axis}" has {size} devices',
            location=f'strategy "{PIPELINE}"', remedy="Remove stages, or change the mesh.",
        )  # fmt: skip
    base = Schedule(schedule, size or 1, micro_batches, chunks, stash=stash)
    return replace(base, offload=_stages(offload, base.stage_count))


def _stages(text: str, count: int) -> tuple[int, ...]:
    """Return the stages of the option ``offload``."""
    if text in ("none", "all"):
        return tuple(range(count)) if text == "all" else ()
    numbers = slashed_numbers(text)
    if not numbers:
        problem = f'offload="{shortened(text)}" names no stages'
        remedy = "Write none, all, or numbers of stages joined by a slash: 0/1."
        raise PlanError("DIST0236", problem, location=f'strategy "{PIPELINE}"', remedy=remedy)
    return numbers


def on_stages(mod: ir.IRModule, mesh: MeshSpec, target_schedule: Schedule, axis: str) -> Plan:
    """Return a plan without rules that has the mesh of a stage and the schedule."""
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        remedy = "Create it with --train, or train_step(..., schedule=...)."
        raise unfit("the module is not a pipelined training step", remedy)
    schedule = pipeline.schedule
    sizes = [(s.stages, s.micro_batches, s.chunks) for s in (schedule, target_schedule)]
    if sizes[0] != sizes[1]:
        raise unfit(
            f"the step has {schedule.stages} stages, {schedule.micro_batches} micro-batches and "
            f"{schedule.chunks} chunks, the strategy requires {target_schedule.stages}, "
            f"{target_schedule.micro_batches} and {target_schedule.chunks}",
            "Create the step with the schedule that the strategy requires.",
        )
    if target_schedule.stash and not schedule.stash:
        problem = "the step sums gradients over all micro-batches, the strategy requires stash"
        raise unfit(problem, "Create the step with a schedule that sets stash.")
    stage, devices = _stage_mesh(mesh, axis)
    if schedule.kind != "custom":
        schedule = replace(target_schedule, cuts=schedule.cuts, stash=schedule.stash)
    return Plan((stage,), schedule=replace(schedule, devices=devices))


def _stage_mesh(mesh: MeshSpec, axis: str) -> tuple[MeshSpec, tuple[tuple[int, ...], ...]]:
    """Return the mesh of the first rank, without the axis, and the devices of all ranks.

    The devices are left out where ranks have consecutive ranges of devices.
    """
    if axis not in mesh.axes:
        return mesh, ()
    ids = np.moveaxis(mesh_devices(mesh.device_mesh()), mesh.axis_number(axis), 0)
    axes: dict[str, Any] = {name: n for name, n in mesh.axes.items() if name != axis}
    rows = [tuple(int(i) for i in row.ravel()) for row in ids]
    one_behind_the_other = [i for row in rows for i in row]
    first, count = one_behind_the_other[0], len(one_behind_the_other)
    in_order = one_behind_the_other == list(range(first, first + count))
    start = {"start": first} if in_order else {"device_ids": rows[0]}
    return MeshSpec(mesh.name, axes or {axis: 1}, **start), () if in_order else tuple(rows)
