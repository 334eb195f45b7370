# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as command-line options of Megatron-LM."""

from __future__ import annotations

from tvm import ir

from tvm_distir.core.plan import CHECKPOINT, CORE, Schedule
from tvm_distir.transforms import is_training_step

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO, context_method
from .exported_plan import ExportedPlan, unsupported
from .reference_plan import check_reference, stage_layers
from .trainer_options import batch_sizes, pipeline_of, recomputation

_CONTEXT_METHODS = {"ring": "p2p", "all_to_all": "a2a", "gather": "all_gather"}
_RECOMPUTED = {CORE: "selective", CHECKPOINT: "full"}


def megatron_options(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the command-line options of Megatron-LM, one a line."""
    stages = pipeline_of(exported)
    contexts, replicas = exported.degree(CONTEXT), exported.degree(DATA)
    _check_experts(mod, exported)
    if stages is not None and stages.kind not in ("1f1b", "interleaved"):
        raise unsupported(
            f'Megatron-LM has no schedule "{stages.kind}"', "Use 1f1b or interleaved."
        )
    if exported.zero_stage:
        _check_distributed_optimizer(exported)
    method = context_method(mod, exported) if contexts > 1 else ""
    check_reference(mod, exported, method)
    sizes: dict[str, object] = {
        "tensor-model-parallel-size": exported.degree(TENSOR),
        "sequence-parallel": exported.sequence,
        "context-parallel-size": contexts,
        "cp-comm-type": contexts > 1 and _CONTEXT_METHODS[method],
        "expert-model-parallel-size": exported.expert_degree,
        "expert-tensor-parallel-size": _expert_tensor_size(exported),
        "pipeline-model-parallel-size": stages and stages.stages,
        "num-virtual-stages-per-pipeline-rank": stages and stages.chunks,
        **(_uneven_layers(stages, stage_layers(mod)) if stages is not None else {}),
        "use-distributed-optimizer": exported.zero_stage > 0,
        "num-distributed-optimizer-instances": exported.zero_stage and replicas,
    }
    options = [option for name, size in sizes.items() for option in _option(name, size)]
    batch = batch_sizes(exported)
    if batch is not None:
        options += [f"--micro-batch-size {batch[0]}", f"--global-batch-size {batch[1]}"]
    granularity = recomputation(exported, "Megatron-LM", _RECOMPUTED)
    if granularity:
        options.append(f"--recompute-granularity {granularity}")
    if granularity == "full":
        options += ["--recompute-method uniform", "--recompute-num-layers 1"]
    return "".join(f"{option}\n" for option in options)


def _check_experts(mod: ir.IRModule, exported: ExportedPlan) -> None:
    """Refuse (DIST0241) mixtures of experts on ranks that share their tokens."""
    experts, tensor = exported.expert_axes, exported.axis_of(TENSOR)
    inner = [axis for axis in exported.uses if axis != tensor or axis in experts]
    if experts and inner[-len(experts) :] != [*experts]:
        raise unsupported(
            f"it divides experts over consecutive ranks, and {', '.join(experts)} are not the "
            "minor axes",
            f"Use expert_parallel:axis={'/'.join(inner[-len(experts) :])}, or no experts.",
        )
    if _is_mixture(exported) and tensor and not exported.sequence and is_training_step(mod):
        raise unsupported(
            "Megatron-LM trains mixtures of experts with tensor parallelism only where activations "
            "are sharded along the sequence too",
            "Use megatron:sequence=1.",
        )


def _is_mixture(exported: ExportedPlan) -> bool:
    return any(parameter.expert_dim is not None for parameter in exported.weights)


def _expert_tensor_size(exported: ExportedPlan) -> str:
    """Return into how many parts tensor parallelism divides each expert, empty where by default."""
    tensor = exported.axis_of(TENSOR)
    if tensor is None or not _is_mixture(exported):
        return ""
    return "1" if tensor in exported.expert_axes else str(exported.degree(TENSOR))


def _uneven_layers(schedule: Schedule, layers: tuple[int, ...]) -> dict[str, object]:
    """Return the options of the layers of the first and the last stage, where stages differ."""
    if len(set(layers)) <= 1:
        return {}
    first, *middle, last = layers
    if schedule.chunks > 1 or len(set(middle)) > 1 or not all(layers):
        raise unsupported(
            f"its stages have {'/'.join(map(str, layers))} layers; in Megatron-LM all have "
            "some, and only the first and the last stage without chunks have fewer or more",
            "Use a number of stages that divides the layers.",
        )
    return {
        "decoder-first-pipeline-num-layers": str(first),
        "decoder-last-pipeline-num-layers": str(last),
    }


def _option(name: str, size: object) -> list[str]:
    """Return an option where there is more than one, or where it is a word or a switch."""
    if isinstance(size, bool):
        return [f"--{name}"] if size else []
    return [f"--{name} {size}"] if size and size != 1 else []


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
