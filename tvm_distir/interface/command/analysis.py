# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A model and a plan to the analysis of its step: what `analyze` and `compare` share."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NamedTuple

from .exporting import exported
from .options import TRAINING, asked_by
from .stages import StagedModel, Stopwatch, load_work, run_passes
from .terminal import say

LEAST_WAITING = 0.25
"""Share of a step that waits for communication from which one device is looked at too."""


class Analysed(NamedTuple):
    """A step that was analysed: the model with its modules, and what came of it."""

    work: StagedModel
    program: Any
    result: Any
    analysis: Any


def analyse(
    arguments: argparse.Namespace, axes: dict[str, int] | None, *, keep: bool = False
) -> Analysed:
    """Load, distribute, export, simulate.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of :func:`.options.add_model_options` and of
        :func:`.exporting.add_exporting`, checked.
    axes : dict of str to int or None
        The mesh of the command line.
    keep : bool
        Whether the work keeps the module after each pass.
    """
    watch = Stopwatch()
    work = load_work(arguments, axes, watch)
    local = run_passes(work, watch, keep=keep)
    warned = unused_axes(work.plan) if work.plan.rules else ()
    for line in warned:
        say(f"warning: {line}")
    with watch.stage("export"):
        program = exported(local, arguments)
    with watch.stage("simulate"):
        from tvm_distir.performance import simulate

        with asked_by("--kernels", "DIST0701"):
            result = simulate(
                program, work.system, kernels=arguments.kernels, allocator=arguments.allocator
            )
        planned = arguments.plan is not None or arguments.strategy is not None
        forward = planned and not (arguments.train or arguments.measure)
        alone = one_device(work, result, arguments.kernels) if forward else ""
    if alone:
        say(f"warning: {alone}")
        warned += (alone,)
    from tvm_distir.interface.report.collect import analysis_of, batch_of

    analysis = analysis_of(
        result,
        program,
        work.system,
        model=arguments.model,
        command=command_line(arguments),
        strategy=arguments.strategy,
        batch=batch_of(program) if not work.model.is_text else None,
        plan=work.plan.to_dict(),
        warnings=warned,
        timings_s=watch.timings_s,
    )
    return Analysed(work, program, result, analysis)


def one_device(work: StagedModel, result: Any, kernels: str | None = None) -> str:
    """What to say where one device takes no longer than all, a step waiting for communication.

    Parameters
    ----------
    work : StagedModel
        The model, no training step, and the system.
    result : Result
        Of the step on all devices.
    kernels : str, optional
        Profile of kernels; None: that of the system.
    """
    waits_s = max((d.exposed_comm_s for d in result.devices), default=0.0)
    if len(result.devices) < 2 or waits_s < LEAST_WAITING * result.time_s:
        return ""
    from tvm_distir.core import Plan
    from tvm_distir.performance import export, simulate
    from tvm_distir.transforms import distribute

    plan = Plan.from_dict({"schema_version": 1, "mesh": {"one": 1}, "rules": []})
    alone = simulate(export(distribute(work.model.mod, plan)), work.system, kernels=kernels)
    fits = alone.devices[0].peak_memory_bytes <= work.system.memory_capacity_bytes
    if not fits or alone.time_s > result.time_s:
        return ""
    return (
        f"one device is as fast as these {len(result.devices)}: it takes "
        f"{alone.time_s * 1e3:.3g} ms, they take {result.time_s * 1e3:.3g} ms, "
        f"{waits_s / result.time_s:.0%} of it waiting for communication"
    )


def command_line(arguments: argparse.Namespace) -> str:
    """The command that gives the same analysis again, without its output files."""
    words = ["tvm-distir", "analyze", arguments.model]
    options = ("plan", "strategy", "mesh", "batch", "dim", "entry", "train", *TRAINING, "system",
               "allocator", "measure", "kernels", "advice")  # fmt: skip
    usual = (("allocator", "framework"), ("advice", "quick"))
    for option in options:
        value, flag = getattr(arguments, option, None), f"--{option.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value not in (None, False) and (option, value) not in usual:
            for one in value if isinstance(value, list) else [value]:
                words += [flag, str(one)]
    return shlex.join(words)


def unused_axes(plan: Any) -> tuple[str, ...]:
    """What to say of each mesh axis along which nothing is cut."""
    return tuple(
        f'the mesh axis "{axis}" of "{mesh.name}" cuts nothing: the {mesh.axes[axis]} devices '
        "along it do the same work"
        for mesh, axis in plan.unused_axes()
    )
