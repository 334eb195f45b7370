# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Note what is remarkable about an analyzed step."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_distir.core.ir import known_shape
from tvm_distir.core.plan import Pipeline, Plan, data_positions
from tvm_distir.core.rewriting import entry_of
from tvm_distir.performance import Remedy, Result, simulate
from tvm_distir.planning import Study, kernels_for, lighter_kinds

from .report.model import Analysis

LEAST_WAITING = 0.25
"""Smallest share of exposed communication for which a single device is analyzed too."""


def tokens_of(study: Study) -> int | None:
    """Return the tokens of a step: of the first input of integers with dims (samples, length).

    None for a model without such an input, and for one whose sizes are symbolic.
    """
    main = study.forward[entry_of(study.forward)]
    pipeline = Pipeline.of(study.step)
    for position in data_positions(main):
        ty = main.params[position].ty
        shape = known_shape(ty)
        if shape is not None and len(shape) == 2 and str(ty.dtype).startswith(("int", "uint")):
            return math.prod(shape) * (1 if pipeline is None else pipeline.schedule.micro_batches)
    return None


def one_device(study: Study, result: Result) -> tuple[str, ...]:
    """Return a warning if a single device is as fast as all devices with communication.

    Parameters
    ----------
    study : Study
        Of a forward step.
    result : Result
        Of the step on all devices.
    """
    waits_s = max((d.exposed_comm_s for d in result.devices), default=0.0)
    if len(result.devices) < 2 or waits_s < LEAST_WAITING * result.time_s:
        return ()
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"one": 1}, "rules": []})
    alone = Study(
        study.step, plan, system=study.system, decide="bytes", kernels=study.kernels
    ).result
    if alone.peak_memory_bytes > result.memory_capacity_bytes or alone.time_s > result.time_s:
        return ()
    return (
        f"a single device is as fast as these {len(result.devices)}: {alone.time_s * 1e3:.3g} ms "
        f"instead of {result.time_s * 1e3:.3g} ms, of which {waits_s / result.time_s:.0%} is "
        "exposed communication",
    )


def with_lighter_weights(report: Analysis, study: Study) -> Analysis:
    """Return the report of a step whose verdict names the types of weights that take less memory.

    They are simulated. A step that fits, and a training step, have no other verdict.
    """
    verdict, system = report.verdict, study.known_system
    if verdict is None or system is None or study.training() is not None:
        return report
    remedies, chosen = list(verdict.remedies), verdict.chosen
    for kind in lighter_kinds(system):
        kernels = kernels_for(study.kernels or system.kernels, kind, None, system)
        options = {**study.passed_to("simulate"), "kernels": kernels}
        result = simulate(study.program, system, **options)
        if result.peak_memory_bytes < report.peak_memory_bytes:
            remedies.append(Remedy(f"--quantize {kind}", result.peak_memory_bytes))
            if result.fits:
                chosen = chosen or remedies[-1].name
    verdict = replace(verdict, remedies=tuple(remedies), chosen=chosen)
    return replace(report, verdict=verdict)


def unused_axes(plan: Plan) -> tuple[str, ...]:
    """Return a warning for each mesh axis along which nothing is sharded."""
    return tuple(
        f'the mesh axis "{axis}" of "{mesh.name}" shards nothing: the {mesh.axes[axis]} devices '
        "along it do redundant work"
        for mesh, axis in plan.unused_axes()
    )
