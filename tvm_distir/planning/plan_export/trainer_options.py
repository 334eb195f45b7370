# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as options of Megatron-LM and torchtitan, and as the configuration of DeepSpeed."""

from __future__ import annotations

import json
from typing import Any

from tvm import ir

from tvm_distir.core.plan import FULL, MEGATRON, NONE, SELECTIVE, Schedule

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO, check_megatron, context_method
from .exported_plan import ExportedPlan, unsupported

_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
_CONTEXT_METHODS = {"ring": "p2p", "all_to_all": "a2a", "gather": "all_gather"}
_ROTATIONS = {"ring": "alltoall", "gather": "allgather"}
"""Forms of ``context_parallel`` in torchtitan, whose keys and values move by an all-to-all."""
_TORCHTITAN_CHUNKS = 2
"""Stages of a rank in schedules with several, where no number of layers is given."""


def megatron_options(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the command-line options of Megatron-LM, one a line."""
    check_megatron(mod, exported)
    staged = _staged(exported)
    contexts, replicas = exported.degree(CONTEXT), exported.degree(DATA)
    if exported.expert_axes and contexts > 1:
        raise unsupported(
            "its ranks of context parallelism divide the experts too", "Use one of both."
        )
    if staged is not None and staged.kind not in ("1f1b", "interleaved"):
        raise unsupported(
            f'Megatron-LM has no schedule "{staged.kind}"', "Use 1f1b or interleaved."
        )
    if exported.zero_stage:
        _check_distributed_optimizer(exported)
    sizes: dict[str, object] = {
        "tensor-model-parallel-size": exported.degree(TENSOR),
        "sequence-parallel": exported.sequence,
        "context-parallel-size": contexts,
        "cp-comm-type": contexts > 1 and _CONTEXT_METHODS[context_method(mod, exported)],
        "expert-model-parallel-size": exported.expert_axes and exported.expert_degree,
        "pipeline-model-parallel-size": staged and staged.stages,
        "num-virtual-stages-per-pipeline-rank": staged and staged.chunks,
        "use-distributed-optimizer": exported.zero_stage > 0,
        "num-distributed-optimizer-instances": exported.zero_stage and replicas,
    }
    options = [option for name, size in sizes.items() for option in _option(name, size)]
    batch = _batch(exported)
    if batch is not None:
        micro, global_batch = batch
        options += [f"--micro-batch-size {micro}", f"--global-batch-size {global_batch}"]
    policy = _policy(exported)
    if policy == FULL:
        options += ["--recompute-granularity full", "--recompute-method uniform",
                    "--recompute-num-layers 1"]  # fmt: skip
    elif policy in (SELECTIVE, MEGATRON):
        options.append("--recompute-granularity selective")
    elif policy != NONE:
        raise unsupported(f'Megatron-LM has no recomputation "{policy}"', "Use full or selective.")
    return "".join(f"{option}\n" for option in options)


def _option(name: str, size: object) -> list[str]:
    """Return an option where there is more than one, or where it is a word or a switch."""
    if isinstance(size, bool):
        return [f"--{name}"] if size else []
    return [f"--{name} {size}"] if isinstance(size, str) or (size and size != 1) else []


def _check_distributed_optimizer(exported: ExportedPlan) -> None:
    if exported.zero_stage != 1:
        raise unsupported(
            f"ZeRO stage {exported.zero_stage} is no option of its distributed optimizer",
            "Use zero:stage=1, or the format deepspeed.",
        )
    if exported.degree(CONTEXT) > 1 and not exported.context_state:
        raise unsupported(
            "its distributed optimizer shards states over the ranks of context parallelism too",
            'Use zero:stage=1 without "axis=".',
        )
    if exported.degree(DATA) > 1:
        _check_instances(exported)


def _staged(exported: ExportedPlan) -> Schedule | None:
    schedule = exported.plan.schedule
    return schedule if schedule is not None and schedule.stages > 1 else None


def _check_instances(exported: ExportedPlan) -> None:
    """Refuse (DIST0241) replicas of the optimizer states along a minor axis.

    Each instance of the distributed optimizer of Megatron-LM shards its states over consecutive
    ranks of data and context parallelism, so that instances are along major axes.
    """
    uses = {axis: exported.uses[axis] for axis in exported.mesh.axes if axis in exported.uses}
    ranks = [axis for axis, use in uses.items() if use in (DATA, ZERO, CONTEXT)]
    replicas = [axis for axis in ranks if uses[axis] == DATA]
    if ranks[: len(replicas)] != replicas:
        minor = next(axis for axis in reversed(ranks) if uses[axis] == DATA)
        raise unsupported(
            f'its distributed optimizer shards states over consecutive ranks, and "{minor}", which '
            "replicates them, is not a major axis",
            f'Put "{minor}" first in the mesh.',
        )


def torchtitan_options(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the command-line options of torchtitan, one a line."""
    check_megatron(mod, exported)
    if exported.degree(ZERO) > 1 and exported.zero_stage < 3:
        raise unsupported(
            "torchtitan shards weights wherever it shards optimizer states", "Use zero:stage=3."
        )
    if exported.degree(CONTEXT) > 1 and not exported.context_state:
        raise unsupported(
            "torchtitan shards weights over the ranks of context parallelism too",
            'Use a training step with fsdp without "axis=", or the format megatron.',
        )
    _check_no_recomputation(
        exported, "torchtitan chooses recomputation in the configuration of the model", "set"
    )
    replicas = [axis for axis, use in exported.uses.items() if use == DATA]
    if exported.uses and list(exported.uses)[: len(replicas)] != replicas:
        raise unsupported(
            "its ranks that share the training state are consecutive",
            f"Put {' and '.join(replicas)} first in the mesh.",
        )
    options: dict[str, int | str] = {
        "data_parallel_replicate_degree": exported.degree(DATA),
        "data_parallel_shard_degree": exported.degree(ZERO),
        "tensor_parallel_degree": exported.degree(TENSOR),
        "context_parallel_degree": exported.degree(CONTEXT),
    }
    if exported.degree(CONTEXT) > 1:
        form = context_method(mod, exported)
        if form not in _ROTATIONS:
            raise unsupported(
                f'torchtitan has no context parallelism of the form "{form}"',
                f"Use {' or '.join(f'form={known}' for known in _ROTATIONS)}.",
            )
        options["context_parallel_rotate_method"] = _ROTATIONS[form]
    if exported.expert_axes:
        _check_torchtitan_experts(exported)
        options["expert_parallel_degree"] = exported.expert_degree
    staged, batch = _staged(exported), _batch(exported)
    if staged is not None:
        options |= _torchtitan_stages(staged)
    lines = [f"--parallelism.{name}={value}" for name, value in options.items()]
    if batch is not None:
        local = batch[0] * (1 if staged is None else staged.micro_batches)
        if staged is not None:
            lines.append(f"--parallelism.pipeline_parallel_microbatch_size={batch[0]}")
        sizes = {"local": local, "global": batch[1]}
        lines += [f"--training.{name}_batch_size={size}" for name, size in sizes.items()]
    return "\n".join([*lines, ""])


def _torchtitan_stages(schedule: Schedule) -> dict[str, int | str]:
    """Return the options of pipeline stages."""
    if schedule.kind not in _SCHEDULES:
        raise unsupported(
            f'torchtitan has no schedule "{schedule.kind}"', f"Use {', '.join(_SCHEDULES)}."
        )
    if schedule.chunks > 1 and schedule.chunks != _TORCHTITAN_CHUNKS:
        raise unsupported(
            f"torchtitan gives each rank {_TORCHTITAN_CHUNKS} stages, the plan {schedule.chunks}",
            f"Use chunks={_TORCHTITAN_CHUNKS}.",
        )
    return {
        "pipeline_parallel_degree": schedule.stages,
        "pipeline_parallel_schedule": _SCHEDULES[schedule.kind],
    }


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


def deepspeed_config(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the JSON configuration of DeepSpeed."""
    schedule = exported.plan.schedule
    if _staged(exported) is not None:
        raise unsupported(
            "stages of DeepSpeed are built in Python, by PipelineModule",
            "Choose a plan without stages.",
        )
    if exported.degree(CONTEXT) > 1:
        raise unsupported("its JSON has no sequence parallelism", "Use the format megatron.")
    if exported.sequence:
        raise unsupported("AutoTP does not shard activations", "Use megatron without sequence=1.")
    if DATA in exported.uses.values() and ZERO in exported.uses.values():
        raise unsupported("ZeRO shards over all replicas", "Use zero on all axes of the batch.")
    check_megatron(mod, exported)
    config: dict[str, Any] = {"zero_optimization": {"stage": exported.zero_stage}}
    if exported.expert_axes:
        if exported.zero_stage == 3 or exported.degree(TENSOR) > 1:
            other = "stage 3 of ZeRO" if exported.zero_stage == 3 else "AutoTP"
            raise unsupported(
                f"AutoEP does not divide experts with {other}",
                "Use zero:stage=1, without megatron.",
            )
        config["expert_parallel"] = {"enabled": True, "autoep_size": exported.expert_degree}
    if exported.degree(TENSOR) > 1:
        config["tensor_parallel"] = {"autotp_size": exported.degree(TENSOR)}
    batch = _batch(exported)
    if batch is not None:
        steps = schedule.micro_batches if schedule is not None else 1
        sizes = {"train_batch_size": batch[1], "train_micro_batch_size_per_gpu": batch[0]}
        config = {**sizes, "gradient_accumulation_steps": steps, **config}
    _check_no_recomputation(exported, "recomputation is switched on in the model", "switch", " on")
    return json.dumps(config, indent=2) + "\n"


def _batch(exported: ExportedPlan) -> tuple[int, int] | None:
    """Return the samples of a micro-batch on a device, and those of the step; None if unknown."""
    sizes = {parameter.shape[0] for parameter in exported.parameters
             if parameter.is_data and parameter.shape and len(parameter.shape) > 1}  # fmt: skip
    if len(sizes) != 1:
        return None
    [size] = sizes
    schedule = exported.plan.schedule
    replicas = exported.degree(DATA) * exported.degree(ZERO)
    return size // replicas, size * (schedule.micro_batches if schedule is not None else 1)


def _policy(exported: ExportedPlan) -> str:
    """Return the recomputation policy of all layers."""
    policies = set(exported.plan.recompute.values()) or {NONE}
    if len(policies) > 1:
        raise unsupported("layers have different recomputation policies", "Use one policy.")
    return policies.pop()


def _check_no_recomputation(exported: ExportedPlan, problem: str, verb: str, on: str = "") -> None:
    if _policy(exported) != NONE:
        remedy = f"Choose a plan without recomputation, and {verb} it{on} there."
        raise unsupported(problem, remedy)
