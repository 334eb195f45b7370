# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as the configuration of DeepSpeed."""

from __future__ import annotations

import json
from typing import Any

from tvm import ir

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO
from .exported_plan import ExportedPlan, unsupported
from .reference_plan import check_reference
from .trainer_options import batch_sizes, pipeline_of, recomputation


def deepspeed_config(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the JSON configuration of DeepSpeed."""
    schedule = exported.plan.schedule
    if pipeline_of(exported) is not None:
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
    recomputation(exported, "DeepSpeed", {})
    check_reference(mod, exported)
    config: dict[str, Any] = {"zero_optimization": {"stage": exported.zero_stage}}
    if exported.expert_axes:
        if exported.degree(TENSOR) > 1:
            raise unsupported(
                "AutoEP does not shard an expert over the ranks of AutoTP", "Omit megatron."
            )
        config["expert_parallel"] = {"enabled": True, "autoep_size": exported.expert_degree}
    if exported.degree(TENSOR) > 1:
        config["tensor_parallel"] = {"autotp_size": exported.degree(TENSOR)}
    batch = batch_sizes(exported)
    if batch is not None:
        steps = schedule.micro_batches if schedule is not None else 1
        sizes = {"train_batch_size": batch[1], "train_micro_batch_size_per_gpu": batch[0]}
        config = {**sizes, "gradient_accumulation_steps": steps, **config}
    return json.dumps(config, indent=2) + "\n"
