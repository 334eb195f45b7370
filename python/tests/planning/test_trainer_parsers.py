# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The trainers' own code reads exported options as the readers of the tests do, where installed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tests.planning.trainer_readers import (
    megatron_arguments,
    read_deepspeed,
    read_megatron,
    titan_values,
)
from tvm_distir.planning.plan_export.torchtitan_options import divided_layers

DENSE = "zoo:llama?size=tiny,layers=4,vocab=256"
MIXTURE = "zoo:mixtral?size=tiny,layers=4"
PIPE = "pipeline:micro_batches=4"
CASES: dict[str, list[tuple[str, str, dict[str, int]]]] = {
    "megatron": [
        (DENSE, "data_parallel:axis=pod+zero:stage=1", {"pod": 2, "dp": 2}),
        (DENSE, "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 2}),
        (DENSE, "zero:stage=1+context_parallel", {"dp": 2, "cp": 2}),
        (DENSE, f"{PIPE},schedule=interleaved,chunks=2+megatron", {"pp": 2, "tp": 2}),
        (MIXTURE, "zero:stage=1,axis=dp/ep+expert_parallel", {"dp": 2, "ep": 2}),
        (MIXTURE, f"{PIPE}+data_parallel", {"pp": 2, "dp": 2}),
    ],
    "torchtitan": [
        (DENSE, "hsdp+megatron", {"pod": 2, "dp": 2, "tp": 2}),
        (DENSE, "fsdp+context_parallel:form=gather", {"dp": 2, "cp": 2}),
        (DENSE, f"{PIPE},schedule=interleaved,chunks=2+fsdp", {"pp": 2, "dp": 2}),
        (MIXTURE, "fsdp:axis=dp/ep+expert_parallel", {"dp": 2, "ep": 2}),
        (MIXTURE, f"{PIPE}+megatron", {"pp": 2, "tp": 2}),
    ],
    "deepspeed": [
        (DENSE, "zero:stage=2", {"dp": 4}),
        (DENSE, "fsdp+megatron", {"dp": 2, "tp": 2}),
        (DENSE, f"{PIPE},stages=1+data_parallel", {"dp": 4}),
        (MIXTURE, "fsdp:axis=dp/ep+expert_parallel", {"dp": 2, "ep": 2}),
    ],
}


def exported(form: str, case: tuple[str, str, dict[str, int]]) -> str:
    """Return the options of a training step."""
    model, strategy, mesh = case
    study = td.planning.Study(
        model, strategy=strategy, mesh=mesh, system="h100", batch=16, train={"optimizer": "adam"}
    )
    return td.export_plan(study.step, study.step_plan, form)


@pytest.mark.parametrize("case", CASES["torchtitan"], ids=lambda case: case[1])
def test_tyro_reads_the_options_of_torchtitan(case: Any) -> None:
    tyro = pytest.importorskip("tyro")
    configs = pytest.importorskip("torchtitan.config.configs")
    checkpointing = pytest.importorskip("torchtitan.distributed.activation_checkpoint")
    fields = {"parallelism": configs.ParallelismConfig, "training": configs.TrainingConfig}
    policy = checkpointing.ActivationCheckpointingConfig
    config_type = make_dataclass(
        "Config",
        [(name, kind, field(default_factory=kind)) for name, kind in fields.items()]
        + [
            (
                "activation_checkpoint",
                policy,
                field(default_factory=checkpointing.SelectiveAC.Config),
            )
        ],
    )
    text = exported("torchtitan", case)
    config = tyro.cli(config_type, args=text.split())
    values = titan_values(text)
    assert values.pop("activation_checkpoint") == "none" and config.activation_checkpoint is None
    for name, value in values.items():
        section = config.parallelism if hasattr(config.parallelism, name) else config.training
        assert getattr(section, name) == value
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims")
    read = dims.ParallelDims.from_config(config.parallelism, int(np.prod([*case[2].values()])))
    assert read.dp_shard == config.parallelism.data_parallel_shard_degree


@pytest.mark.quick
@pytest.mark.parametrize(("count", "stages"), [(4, 2), (6, 4), (8, 4), (7, 3), (3, 2)])
def test_layers_are_divided_as_torchtitan_does(count: int, stages: int) -> None:
    module = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    for first in range(3):
        for last in range(3):
            try:
                names = module._generate_llm_fqn_per_model_part(stages, count, first, last)
            except ValueError:
                assert divided_layers(count, stages, first, last) == ()
                continue
            found = tuple(sum(name.startswith("layers.") for name in part) for part in names)
            assert found == divided_layers(count, stages, first, last)


@dataclass
class Group:
    """What DeepSpeed asks of the ranks of data parallelism."""

    size: int

    def get_data_parallel_world_size(self) -> int:
        """Return their number."""
        return self.size


@pytest.mark.parametrize("case", CASES["deepspeed"], ids=lambda case: case[1])
def test_deepspeed_reads_its_configuration(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    folding = pytest.importorskip("deepspeed.module_inject.auto_ep_folding")
    mesh, text = case[2], exported("deepspeed", case)
    read = read_deepspeed(text, int(np.prod([*mesh.values()])))
    data = read.mesh.get("dp", 1) * read.mesh.get("ep", 1)
    found = config.DeepSpeedConfig(json.loads(text), mpu=Group(data))
    assert found.train_batch_size == read.batch
    stages = {f"zero:stage={found.zero_optimization_stage}", "data_parallel:axis=dp"}
    assert stages & {part.partition(",")[0] for part in read.strategy.split("+")}
    assert found.tensor_parallel_config.autotp_size == read.mesh.get("tp", 0)
    experts = read.mesh.get("ep", 1)
    if experts > 1:
        assert found.expert_parallel_config.autoep_size == experts
        spec = folding.build_folding_spec(
            world_size=data, pp_size=1, tp_size=1, ep_size=experts, mp_mode="sp"
        )
        folding.validate_folding_global(spec, zero_stage=found.zero_optimization_stage)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES["megatron"], ids=lambda case: case[1])
def test_megatron_has_these_ranks(case: Any) -> None:
    """Its configuration takes the options, and its groups of ranks are the axes of the mesh."""
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    state = pytest.importorskip("megatron.core.parallel_state")
    text = exported("megatron", case)
    args, world = megatron_arguments(text), int(np.prod([*case[2].values()]))
    chunks = args.num_virtual_stages_per_pipeline_rank
    options: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                     "context_parallel_size", "expert_model_parallel_size", "sequence_parallel",
                     "cp_comm_type")
    }  # fmt: skip
    if args.decoder_first_pipeline_num_layers:
        options["num_layers_in_first_pipeline_stage"] = args.decoder_first_pipeline_num_layers
        options["num_layers_in_last_pipeline_stage"] = args.decoder_last_pipeline_num_layers
    config.TransformerConfig(
        num_layers=4, hidden_size=64, num_attention_heads=4, add_bias_linear=False,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        num_moe_experts=4 if case[0] == MIXTURE else None, pipeline_dtype="bf16", **options,
    )  # fmt: skip
    mesh = read_megatron(text, world).mesh
    data = mesh.get("pod", 1) * mesh.get("dp", 1) * mesh.get("ep", 1)
    sizes = {"pp": mesh.get("pp", 1), "dp": data, "cp": mesh.get("cp", 1), "tp": mesh.get("tp", 1)}
    ranks = np.arange(world).reshape(tuple(sizes.values()))
    generator = state.RankGenerator(ep=1, order="tp-cp-ep-dp-pp", **sizes)
    for number, axis in enumerate(sizes):
        groups = np.moveaxis(ranks, number, -1).reshape(-1, sizes[axis]).tolist()
        assert sorted(generator.get_ranks(axis)) == sorted(groups)
    if args.expert_model_parallel_size > 1:
        experts = args.expert_model_parallel_size
        generator = state.RankGenerator(
            tp=1, ep=experts, dp=data // experts, pp=1, cp=1, order="tp-cp-ep-dp-pp"
        )
        assert generator.get_ranks("ep") == ranks.reshape(-1, experts).tolist()
