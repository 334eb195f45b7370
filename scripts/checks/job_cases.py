# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Forty programs for at most four devices, with inputs, for ``torchrun_programs.py`` and others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.execution.runtime.mpi_cases import CASES as SMALL_MODULES

import tvm_distir as td
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

GPT = "zoo:gpt?size=tiny,vocab=19,layers=2,hidden=16,heads=4,seq=8,batch=4"
LLAMA = (
    "zoo:llama?size=tiny,vocab=32,layers=1,hidden=16,heads=4,kv_heads=2,ffn=24,seq=8,batch=4,"
    "dtype={}"
)
BERT = "zoo:bert?size=tiny,vocab=19,layers=1,hidden=16,heads=4,seq=8,batch=4"
VIT = "zoo:vit?size=tiny,layers=1,hidden=16,heads=4,batch=4"
T5 = "zoo:t5?size=tiny,vocab=19,layers=1,hidden=16,heads=4,batch=4"
MOE = "zoo:moe?size=tiny,layers=1,hidden=16,ffn=24,vocab=19,batch=12"
RESNET = "zoo:resnet?size=tiny,batch=4"
MLP = "zoo:mlp?size=tiny,batch=6,hidden=10"

Program = tuple[Any, list[Any]]


def forward(model: str, plan: str, mesh: dict[str, int], **options: Any) -> Program:
    """Return a model, distributed, and inputs."""
    mod = td.load_model(model).mod
    dist = td.distribute(mod, strategy.make_plan(mod, plan, mesh), **options)
    return dist, draw_inputs(mod, seed=1)


def step(
    model: str,
    plan: str,
    mesh: dict[str, int],
    optimizer: str = "adamw",
    schedule: dict[str, Any] | None = None,
    **options: Any,
) -> Program:
    """Return a training step of a model, distributed, and inputs."""
    mod = td.train_step(td.load_model(model).mod, optimizer=optimizer, schedule=schedule)
    dist = td.distribute(mod, strategy.make_plan(mod, plan, mesh), **options)
    return dist, draw_inputs(mod, seed=2)


def pipeline(
    kind: str, mesh: dict[str, int], more: str = "", model: str = GPT, chunks: int = 1
) -> Program:
    """Return a pipelined training step."""
    schedule = {"kind": kind, "stages": mesh["pp"], "micro_batches": 4}
    options = f"micro_batches=4,schedule={kind}"
    if chunks > 1:
        schedule["chunks"], options = chunks, f"{options},chunks={chunks}"
    return step(model, f"pipeline:{options}{more}", mesh, "sgd", schedule)


DP4, TP4, CP4, BOTH = {"dp": 4}, {"tp": 4}, {"cp": 4}, {"dp": 2, "tp": 2}
FLOAT, HALF = LLAMA.format("float32"), LLAMA.format("bfloat16")
DEEP = GPT.replace("layers=2", "layers=4")

CASES: dict[str, Callable[[], Program]] = {
    # Forward passes
    "gpt megatron": partial(forward, GPT, "megatron", TP4),
    "gpt data and megatron": partial(forward, GPT, "data_parallel+megatron", BOTH),
    "gpt megatron sequence": partial(forward, GPT, "megatron:sequence=1", TP4),
    "gpt context all-to-all": partial(forward, GPT, "context_parallel", CP4),
    "gpt context ring": partial(forward, GPT, "context_parallel:form=ring", CP4),
    "gpt context gather": partial(
        forward, GPT, "data_parallel+context_parallel:form=gather", {"dp": 2, "cp": 2}
    ),
    "gpt of 3 uneven": partial(forward, GPT, "tensor_parallel", {"tp": 3}),
    "llama copies of heads": partial(forward, FLOAT, "megatron", TP4),
    "llama bfloat16": partial(forward, HALF, "data_parallel+megatron", BOTH),
    "bert tensor": partial(forward, BERT, "tensor_parallel", TP4),
    "vit data and tensor": partial(forward, VIT, "data_parallel+tensor_parallel", BOTH),
    "t5 tensor": partial(forward, T5, "tensor_parallel", TP4),
    "resnet spatial": partial(forward, RESNET, "spatial_parallel", {"sp": 2}),
    "moe experts": partial(forward, MOE, "expert_parallel", {"ep": 4}),
    "moe data and experts": partial(
        forward, MOE, "data_parallel+expert_parallel", {"dp": 2, "ep": 2}
    ),
    "mlp uneven columns": partial(forward, MLP, "tensor_parallel", TP4),
    "bert data and tensor": partial(forward, BERT, "data_parallel+tensor_parallel", BOTH),
    "two meshes bfloat16": SMALL_MODULES["two_meshes"],
    "two meshes of the forum": SMALL_MODULES["example"],
    "all-to-all of tokens": SMALL_MODULES["all_to_all"],
    # Training steps
    "gpt step data": partial(step, GPT, "data_parallel", DP4, "sgd"),
    "gpt step zero 1": partial(step, GPT, "zero:stage=1", DP4),
    "gpt step zero 2": partial(step, GPT, "zero:stage=2", DP4),
    "gpt step zero 3": partial(step, GPT, "zero:stage=3", DP4),
    "gpt step zero 3 overlap": partial(
        step, GPT, "zero:stage=3+megatron", BOTH, overlap="dgx-a100"
    ),
    "gpt step zero 2 megatron": partial(step, GPT, "zero:stage=2+megatron", BOTH, "lion"),
    "gpt step hsdp": partial(step, GPT, "hsdp", {"pod": 2, "dp": 2}, "adam"),
    "gpt step sequence": partial(step, GPT, "megatron:sequence=1", TP4, "sgd"),
    "gpt step context": partial(step, GPT, "context_parallel", CP4, "sgd"),
    "llama step bfloat16": partial(step, HALF, "zero:stage=3", DP4),
    "bert step tensor": partial(step, BERT, "tensor_parallel", TP4, "sgd"),
    "moe step experts": partial(step, MOE, "expert_parallel", {"ep": 4}, "sgd"),
    "mlp step uneven": partial(step, MLP, "zero:stage=3", {"dp": 3}),
    # Pipelines
    "gpipe of 4": partial(pipeline, "gpipe", {"pp": 4}, model=DEEP),
    "1f1b of 2 data": partial(pipeline, "1f1b", {"pp": 2, "dp": 2}, "+data_parallel"),
    "1f1b of 2 megatron": partial(pipeline, "1f1b", {"pp": 2, "tp": 2}, "+megatron"),
    "1f1b of 2 bfloat16": partial(
        pipeline, "1f1b", {"pp": 2}, model=HALF.replace("layers=1", "layers=2")
    ),
    "interleaved of 2": partial(pipeline, "interleaved", {"pp": 2}, model=DEEP, chunks=2),
    "interleaved of 2 data": partial(
        pipeline, "interleaved", {"pp": 2, "dp": 2}, "+data_parallel", DEEP, 2
    ),
    "zero bubble of 2": partial(pipeline, "zero_bubble", {"pp": 2}),
}
