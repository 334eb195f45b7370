# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as command-line options of torchtitan, of version 0.3."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.plan import ALTERNATE, CHECKPOINT, Schedule

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO, context_method
from .exported_plan import ExportedPlan, unsupported
from .reference_plan import check_reference, stage_layers
from .trainer_options import batch_sizes, pipeline_of, recomputation

_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
_CHUNKS = 2
"""Stages of a rank in schedules with several, where no number of layers is stated."""
_RECOMPUTED = {ALTERNATE: "selective", CHECKPOINT: "full"}
_METHOD = "gather"
"""The form of ``context_parallel`` in torchtitan."""


def torchtitan_options(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the command-line options of torchtitan, one a line.

    What the configuration of a model may state otherwise is stated too: activations between layers
    and recomputation.
    """
    _check_torchtitan(mod, exported)
    options: dict[str, int | str] = {
        "data_parallel_replicate_degree": exported.degree(DATA),
        "data_parallel_shard_degree": exported.degree(ZERO),
        "tensor_parallel_degree": exported.degree(TENSOR),
        "context_parallel_degree": exported.degree(CONTEXT),
    }
    if exported.expert_axes:
        _check_torchtitan_experts(exported)
        options["expert_parallel_degree"] = exported.expert_degree
    check_reference(mod, exported, _METHOD)
    stages, batch = pipeline_of(exported), batch_sizes(exported)
    if stages is not None:
        options |= _stage_options(stages, stage_layers(mod))
        if exported.zero_stage:
            options["fsdp_reshard_after_forward"] = "always"
    lines = [f"--parallelism.{name}={value}" for name, value in options.items()]
    if exported.degree(TENSOR) > 1:
        off = "" if exported.sequence else "no-"
        lines.append(f"--parallelism.{off}enable_sequence_parallel")
    if batch is not None:
        local = batch[0] * (1 if stages is None else stages.micro_batches)
        if stages is not None:
            lines.append(f"--parallelism.pipeline_parallel_microbatch_size={batch[0]}")
        sizes = {"local": local, "global": batch[1]}
        lines += [f"--training.{name}_batch_size={size}" for name, size in sizes.items()]
    policy = recomputation(exported, "torchtitan", _RECOMPUTED) or "none"
    return "\n".join([*lines, f"activation_checkpoint:{policy}", ""])


def _check_torchtitan(mod: ir.IRModule, exported: ExportedPlan) -> None:
    """Refuse (DIST0241) parallelism that torchtitan has not."""
    if exported.degree(ZERO) > 1 and exported.zero_stage < 3:
        raise unsupported(
            "torchtitan shards weights wherever it shards optimizer states", "Use zero:stage=3."
        )
    if exported.degree(CONTEXT) > 1:
        if not exported.context_state:
            raise unsupported(
                "torchtitan shards weights over the ranks of context parallelism too",
                'Use a training step with fsdp without "axis=", or the format megatron.',
            )
        method = context_method(mod, exported)
        if method != _METHOD:
            raise unsupported(
                f'torchtitan has no context parallelism of the form "{method}"',
                f"Use form={_METHOD}.",
            )
    replicas = [axis for axis, use in exported.uses.items() if use == DATA]
    if exported.uses and list(exported.uses)[: len(replicas)] != replicas:
        raise unsupported(
            "its ranks that share the training state are consecutive",
            f"Put {' and '.join(replicas)} first in the mesh.",
        )


def _stage_options(schedule: Schedule, layers: tuple[int, ...]) -> dict[str, int | str]:
    """Return the options of pipeline stages, and of the layers that the outer stages have less."""
    if schedule.kind not in _SCHEDULES:
        raise unsupported(
            f'torchtitan has no schedule "{schedule.kind}"', f"Use {', '.join(_SCHEDULES)}."
        )
    if schedule.chunks > 1 and schedule.chunks != _CHUNKS:
        raise unsupported(
            f"torchtitan gives each rank {_CHUNKS} stages, the plan {schedule.chunks}",
            f"Use chunks={_CHUNKS}.",
        )
    fewer = next(
        ((first, last) for first in (1, 0, 2) for last in (1, 0, 2)
         if divided_layers(sum(layers), len(layers), first, last) == layers), None
    )  # fmt: skip
    if fewer is None:
        raise unsupported(
            f"its stages have {'/'.join(map(str, layers))} layers, and torchtitan divides them "
            "otherwise",
            "Use a number of stages that divides the layers.",
        )
    return {
        "pipeline_parallel_degree": schedule.stages,
        "pipeline_parallel_schedule": _SCHEDULES[schedule.kind],
        "pipeline_parallel_first_stage_less_layers": fewer[0],
        "pipeline_parallel_last_stage_less_layers": fewer[1],
    }


def divided_layers(count: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Return how torchtitan divides layers over stages; empty where it refuses to.

    Parameters
    ----------
    count, stages : int
        The number of layers, and of stages over all ranks.
    first, last : int
        How many layers the first and the last stage have less than others.
    """
    least, more = divmod(count + first + last, stages)
    if not least or max(first, last) > least:
        return ()
    layers = [least + (stage < more) for stage in range(stages)]
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def _check_torchtitan_experts(exported: ExportedPlan) -> None:
    """Refuse (DIST0241) experts over ranks that do not store the other weights in parts."""
    if any(exported.uses[axis] != ZERO for axis in exported.expert_axes):
        axes = "/".join(exported.expert_axes)
        raise unsupported(
            "torchtitan stores the other weights in parts over the ranks of expert parallelism",
            f'Use "fsdp:axis={axes}+expert_parallel", or the format megatron.',
        )
    if exported.degree(TENSOR) > 1 or exported.degree(CONTEXT) > 1:
        raise unsupported(
            "torchtitan divides the experts over the ranks of tensor and context parallelism too",
            "Use the format megatron.",
        )
