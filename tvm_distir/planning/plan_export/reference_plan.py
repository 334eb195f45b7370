# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare a plan with that of the strategies that a trainer applies for its options.

Options name kinds of parallelism, and trainers choose the placements. A plan is exported only where
it has these placements, so that options that are read back give the same program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tvm import ir

from tvm_distir.core.ir import R, is_private, relax_functions
from tvm_distir.core.plan import Pipeline, Plan
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support import DistIRError

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO, value_labels
from .exported_plan import ExportedPlan, PlacedParameter, placed_parameters, unsupported


def strategy_text(exported: ExportedPlan, context: str = "") -> str:
    """Return the strategies that the axes of a plan stand for; empty where no axis is divided.

    Parameters
    ----------
    exported : ExportedPlan
        With the roles of its axes.
    context : str
        The form of ``context_parallel``, as :func:`.axis_uses.context_method` finds it.
    """
    uses, experts = exported.uses, exported.expert_axes
    stored = [
        axis for axis, use in uses.items()
        if use == ZERO or (use == CONTEXT and exported.context_state)
    ]  # fmt: skip
    tensor = ",sequence=1" if exported.sequence else ""
    parts = [
        *(f"data_parallel:axis={a}" for a, use in uses.items() if use == DATA and a not in experts),
        *([f"zero:stage={exported.zero_stage},axis={'/'.join(stored)}"] if stored else []),
        *([f"expert_parallel:axis={'/'.join(experts)}"] if experts else []),
        *(f"context_parallel:axis={a},form={context}" for a, use in uses.items() if use == CONTEXT),
        *(f"megatron:axis={axis}{tensor}" for axis, use in uses.items() if use == TENSOR),
    ]
    return "+".join(parts)


def check_reference(mod: ir.IRModule, exported: ExportedPlan, context: str = "") -> None:
    """Refuse (DIST0241) a plan whose program is not that of the strategies of a trainer.

    The parameters must have the placements of the strategies, but for the dims along which ZeRO
    stores them; values and arguments those that the strategies state.
    """
    plan, text = exported.plan, strategy_text(exported, context)
    if plan.complete:
        raise unsupported(
            "the cheapest placements complete the plan, and no trainer chooses by costs",
            'Use a plan without "complete", or export the format jax.',
        )
    if not text:
        return
    exported.axis_of(TENSOR)
    try:
        reference = make_plan(mod, text, dict(exported.mesh.axes))
    except DistIRError as error:
        subject = "sharded as Megatron-LM does" if exported.axis_of(TENSOR) else f'for "{text}"'
        raise unsupported(f"the model is not {subject}: {error.what}", error.remedy) from error
    for name in ("ring", "regather"):
        if getattr(plan, name) != getattr(reference, name):
            axes = ", ".join({*getattr(plan, name)} ^ {*getattr(reference, name)})
            raise unsupported(
                f'"{name}" of the plan differs from that of "{text}" (axis {axes})',
                f'Use the strategy "{text}".',
            )
    reference = replace(reference, schedule=plan.schedule)
    others = placed_parameters(mod, reference)
    for parameter, other in zip(exported.parameters, others, strict=True):
        _check_parameter(exported, parameter, other)
    inner = {str(gv.name_hint) for gv, fn in relax_functions(mod) if is_private(fn)}
    _check_values(exported, reference, text, inner)


def _check_parameter(
    exported: ExportedPlan, parameter: PlacedParameter, other: PlacedParameter
) -> None:
    """Refuse (DIST0241) a parameter that the plan shards otherwise than the strategies do."""
    for number, axis in enumerate(exported.mesh.axes):
        have, want = parameter.labels[number], other.labels[number]
        use = exported.uses.get(axis)
        divided = axis in exported.expert_axes and parameter.expert_dim is not None
        if use in (ZERO, CONTEXT) and not parameter.is_data and not divided:
            have, want = (0 if label >= 0 else label for label in (have, want))
        if use is not None and have != want:
            source, target = (f"dim {label}" if label >= 0 else "no dim" for label in (have, want))
            trainers = "Megatron-LM" if use == TENSOR else "trainers"
            raise unsupported(
                f'the plan shards {source} of "{parameter.name}" along "{axis}", '
                f"{trainers} {target}",
                "Export the format jax, which has the placement of every parameter.",
            )


def _check_values(
    exported: ExportedPlan, reference: Plan, text: str, inner: Collection[str]
) -> None:
    """Refuse (DIST0241) rules of values, arguments and ``inner`` functions of no strategy.

    Along replicas, what is open is replicated.
    """
    for number, axis in enumerate(exported.mesh.axes):
        use = exported.uses.get(axis)
        if use is None:
            continue
        have, want = (value_labels(plan, number, inner) for plan in (exported.plan, reference))
        default = R if use == DATA else None
        for key in sorted(have.keys() | want.keys(), key=str):
            if have.get(key, default) != want.get(key, default):
                raise unsupported(
                    f'the plan places the {key[0]} "{key[1]}" along "{axis}" otherwise than '
                    f'"{text}", which the options of a trainer stand for',
                    f'Use the strategy "{text}", or export the format jax.',
                )


def stage_layers(mod: ir.IRModule) -> tuple[int, ...]:
    """Return how many numbered layers each stage of a step has; none where it has no stages."""
    pipeline = Pipeline.of(mod)
    counts = []
    for stage in pipeline.stages if pipeline is not None else ():
        heads = {match[0] for name in stage.params if (match := re.match(r".+?\.\d+\.", name))}
        most = Counter(re.sub(r"\d+\.$", "", head) for head in heads).most_common(1)
        counts.append(most[0][1] if most else 0)
    return tuple(counts)
