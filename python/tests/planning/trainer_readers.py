# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the options of trainers as the trainers do, and state the plan as strategies."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ReadPlan:
    """The plan that options stand for.

    ``mesh`` is in the order of the ranks, ``batch`` that of the step; ``layers`` are the options of
    the layers of the first and the last stage.
    """

    mesh: dict[str, int]
    strategy: str
    batch: int
    recompute: str = "none"
    layers: tuple[Any, Any] = (None, None)


@dataclass
class Degrees:
    """Degrees of parallelism, whatever a trainer calls them."""

    world: int
    stages: int = 1
    replicas: int = 1
    experts: int = 1
    context: int = 1
    tensor: int = 1
    folded: bool = False
    parts: list[str] = field(default_factory=list)

    @property
    def data(self) -> int:
        """Return the ranks of data parallelism: what other degrees leave."""
        rest, others = divmod(self.world, self.stages * self.replicas * self.context * self.tensor)
        assert not others
        return rest

    def mesh(self) -> dict[str, int]:
        """Return the axes, ranks of tensor parallelism last; experts divide ranks of data.

        Where experts are folded, they divide the ranks of tensor and context parallelism first.
        """
        inner = self.context * self.tensor if self.folded else 1
        along_data, others = divmod(self.experts, inner)
        assert not others
        data, others = divmod(self.data, along_data)
        assert not others
        sizes = {"pp": self.stages, "pod": self.replicas, "dp": data, "ep": along_data,
                 "cp": self.context, "tp": self.tensor}  # fmt: skip
        return {name: size for name, size in sizes.items() if size > 1} or {"dp": 1}

    @property
    def of_experts(self) -> str:
        """Return the strategy of the experts, empty where no axis divides them."""
        axes = self.axes("ep", *(("cp", "tp") if self.folded else ()))
        return f"expert_parallel:axis={'/'.join(axes)}" if self.experts > 1 else ""

    def axes(self, *names: str) -> list[str]:
        """Return those of some axes that the mesh has."""
        return [name for name in names if name in self.mesh()]


def replicated(degrees: Degrees, *names: str) -> list[str]:
    """Return data parallelism along axes; expert parallelism divides the batch by itself."""
    return [f"data_parallel:axis={name}" for name in degrees.axes(*names)]


def stored(degrees: Degrees, stage: int, *names: str) -> list[str]:
    """Return ZeRO over axes."""
    axes = "/".join(degrees.axes(*names))
    return [f"zero:stage={stage},axis={axes}"] if axes else []


def micro_batches(batch: int, micro: int, degrees: Degrees, schedule: str, chunks: int) -> str:
    """Return the strategy of stages and micro-batches, empty for one of both."""
    count = batch // (micro * degrees.replicas * degrees.data)
    if count == degrees.stages == 1:
        return ""
    stages = "" if degrees.stages > 1 else ",stages=1"
    return f"pipeline:micro_batches={count},schedule={schedule},chunks={chunks}{stages}"


MEGATRON = {
    "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
    "expert-model-parallel-size": 1, "expert-tensor-parallel-size": 0,
    "num-virtual-stages-per-pipeline-rank": 1, "num-distributed-optimizer-instances": 1,
    "micro-batch-size": 0, "global-batch-size": 0,
    "decoder-first-pipeline-num-layers": 0, "decoder-last-pipeline-num-layers": 0,
    "recompute-num-layers": 0,
}  # fmt: skip


def megatron_arguments(text: str) -> argparse.Namespace:
    """Parse options as ``megatron/training/arguments.py`` does, with its defaults."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name, default in MEGATRON.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for switch in ("sequence-parallel", "use-distributed-optimizer"):
        parser.add_argument(f"--{switch}", action="store_true")
    parser.add_argument("--cp-comm-type", default="p2p", choices=["p2p", "a2a", "all_gather"])
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    return parser.parse_args(text.split())


def read_megatron(text: str, world: int) -> ReadPlan:
    """Read the options of Megatron-LM for a number of ranks."""
    args = megatron_arguments(text)
    degrees = Degrees(
        world, args.pipeline_model_parallel_size, args.num_distributed_optimizer_instances,
        args.expert_model_parallel_size, args.context_parallel_size,
        args.tensor_model_parallel_size,
        folded=args.tensor_model_parallel_size > args.expert_tensor_parallel_size == 1,
    )  # fmt: skip
    chunks = args.num_virtual_stages_per_pipeline_rank
    schedule = "interleaved" if chunks > 1 else "1f1b"
    parts = [
        micro_batches(args.global_batch_size, args.micro_batch_size, degrees, schedule, chunks)
    ]
    if args.use_distributed_optimizer:
        parts += [*replicated(degrees, "pod"), *stored(degrees, 1, "dp", "ep", "cp")]
    else:
        parts += replicated(degrees, "dp")
    parts.append(degrees.of_experts)
    if degrees.context > 1:
        forms = {"p2p": "ring", "a2a": "all_to_all", "all_gather": "gather"}
        parts.append(f"context_parallel:form={forms[args.cp_comm_type]}")
    if degrees.tensor > 1:
        parts.append(f"megatron:sequence={int(args.sequence_parallel)}")
    recompute = {None: "none", "selective": "core", "full": "checkpoint"}
    if args.recompute_granularity == "full":
        assert args.recompute_method == "uniform" and args.recompute_num_layers == 1
    ends = args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers
    return ReadPlan(
        degrees.mesh(), "+".join(filter(None, parts)), args.global_batch_size,
        recompute[args.recompute_granularity], ends,
    )  # fmt: skip


TITAN: dict[str, Any] = {
    "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1,
    "tensor_parallel_degree": 1, "context_parallel_degree": 1, "expert_parallel_degree": 1,
    "enable_sequence_parallel": True, "pipeline_parallel_degree": 1,
    "pipeline_parallel_schedule": "1F1B", "pipeline_parallel_microbatch_size": 1,
    "pipeline_parallel_first_stage_less_layers": 1, "pipeline_parallel_last_stage_less_layers": 1,
    "fsdp_reshard_after_forward": "default", "local_batch_size": 8, "global_batch_size": -1,
    "activation_checkpoint": "selective",
}  # fmt: skip
"""The options of torchtitan 0.3 that plans state, with their defaults."""


def titan_values(text: str) -> dict[str, Any]:
    """Parse options of torchtitan as tyro does, by the names of their fields."""
    values = dict(TITAN)
    for line in text.split():
        flag = re.fullmatch(r"--(?:parallelism|training)\.(no-)?(\w+?)(?:=(\S+))?", line)
        if flag is None:
            assert line.startswith("activation_checkpoint:")
            values["activation_checkpoint"] = line.partition(":")[2]
            continue
        assert flag[2] in values
        word = flag[3] if flag[3] is not None else not flag[1]
        values[flag[2]] = int(word) if isinstance(word, str) and word.isdigit() else word
    return values


def read_torchtitan(text: str, world: int) -> ReadPlan:
    """Read the options of torchtitan for a number of ranks."""
    values = titan_values(text)
    degrees = Degrees(
        world, values["pipeline_parallel_degree"], values["data_parallel_replicate_degree"],
        values["expert_parallel_degree"], values["context_parallel_degree"],
        values["tensor_parallel_degree"],
    )  # fmt: skip
    assert degrees.data == values["data_parallel_shard_degree"]
    names = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
    schedule = names[values["pipeline_parallel_schedule"]]
    staged, local = degrees.stages > 1, values["local_batch_size"]
    if staged and degrees.data > 1:
        assert values["fsdp_reshard_after_forward"] == "always"
    micro = values["pipeline_parallel_microbatch_size"] if staged else local
    batch, chunks = values["global_batch_size"], 2 if schedule == "interleaved" else 1
    parts = [micro_batches(batch, micro, degrees, schedule, chunks), *replicated(degrees, "pod")]
    parts += stored(degrees, 3, "dp", "ep", "cp")
    parts += ["expert_parallel"] * (degrees.experts > 1)
    parts += ["context_parallel:form=gather"] * (degrees.context > 1)
    if degrees.tensor > 1:
        parts.append(f"megatron:sequence={int(values['enable_sequence_parallel'])}")
    recompute = {"none": "none", "selective": "alternate", "full": "checkpoint"}
    names_of_ends = (f"pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
    first, last = (values[name] for name in names_of_ends)
    return ReadPlan(
        degrees.mesh(), "+".join(filter(None, parts)), batch,
        recompute[values["activation_checkpoint"]], (first, last),
    )  # fmt: skip


def read_deepspeed(text: str, world: int) -> ReadPlan:
    """Read the configuration of DeepSpeed for a number of ranks."""
    config = json.loads(text)
    degrees = Degrees(
        world,
        experts=config.get("expert_parallel", {}).get("autoep_size", 1),
        tensor=config.get("tensor_parallel", {}).get("autotp_size", 1),
    )
    batch, micro = config["train_batch_size"], config["train_micro_batch_size_per_gpu"]
    assert batch == micro * config["gradient_accumulation_steps"] * degrees.data
    stage = config["zero_optimization"]["stage"]
    parts = [micro_batches(batch, micro, degrees, "1f1b", 1)]
    parts += stored(degrees, stage, "dp", "ep") if stage else replicated(degrees, "dp")
    parts += ["expert_parallel"] * (degrees.experts > 1) + ["megatron"] * (degrees.tensor > 1)
    return ReadPlan(degrees.mesh(), "+".join(filter(None, parts)), batch)


READERS = {
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
}
