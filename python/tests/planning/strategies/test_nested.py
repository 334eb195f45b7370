# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Strategies nested on meshes of several shapes: each row of the table equals one device."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import ir

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.planning import strategies as strategy

SMALL = {"size": "tiny", "layers": 1, "hidden": 16, "heads": 4, "vocab": 32, "batch": 4, "seq": 8}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {**SMALL, "positions": 16},
    "bert": {**SMALL, "positions": 16},
    "llama": {**SMALL, "kv_heads": 4, "ffn": 32},
}
CP, RING, GATHER = (f"context_parallel:form={f}" for f in ("all_to_all", "ring", "gather"))

INFERENCE = [
    ("gpt", f"data_parallel+{CP}", {"dp": 2, "cp": 4}),
    ("llama", f"fsdp+{CP}", {"dp": 2, "cp": 2}),
    ("bert", f"hsdp+{CP}", {"pod": 2, "dp": 2, "cp": 2}),
    ("gpt", f"{RING}+megatron", {"cp": 4, "tp": 2}),
    ("llama", f"{RING}+tensor_parallel", {"tp": 2, "cp": 2}),
    ("bert", f"data_parallel+{RING}+megatron+sequence", {"dp": 2, "cp": 2, "tp": 2}),
    ("llama", f"deepspeed_zero3+{RING}", {"cp": 3, "dp": 2}),
    ("gpt", f"{GATHER}+megatron+sequence", {"cp": 2, "tp": 2}),
    ("llama", f"{CP}+context_parallel:axis=cp2,form=ring", {"cp": 2, "cp2": 2}),
    ("bert", "data_parallel+sequence", {"dp": 2, "tp": 3}),
]
TRAINING = [
    ("gpt", f"data_parallel+{CP}+megatron", {"dp": 2, "cp": 2, "tp": 2}),
    ("llama", f"hsdp+{CP}", {"pod": 2, "dp": 2, "cp": 2}),
    ("gpt", f"lightning_sharded+{GATHER}", {"cp": 3, "dp": 2}),
    ("gpt", "fsdp+megatron+sequence", {"dp": 2, "tp": 2}),
]
ENGINES = [
    ("threads", "llama", f"data_parallel+{RING}+megatron", {"dp": 2, "cp": 2, "tp": 2}, False),
    ("threads", "gpt", f"fsdp+{RING}", {"dp": 2, "cp": 2}, False),
    ("threads", "gpt", f"hsdp+{CP}", {"pod": 2, "dp": 2, "cp": 2}, True),
    ("threads", "llama", "data_parallel+megatron+sequence", {"dp": 2, "tp": 2}, True),
]


def model(name: str) -> ir.IRModule:
    return td.zoo.build(name, MODELS[name])


@pytest.mark.parametrize(("name", "text", "mesh"), nightly_but(INFERENCE, range(0, 10, 2)))
def test_inference(name: str, text: str, mesh: dict[str, int]) -> None:
    mod = model(name)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine="virtual").equal


@pytest.mark.parametrize(("name", "text", "mesh"), nightly_but(TRAINING, {0, 2}))
def test_training(name: str, text: str, mesh: dict[str, int]) -> None:
    mod = td.train_step(model(name), optimizer="sgd", momentum=0.9)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine="virtual").equal


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        (CP, {"pp": 2, "cp": 2}),
        ("fsdp+megatron+sequence", {"pp": 2, "dp": 2, "tp": 2}),
    ],
)
def test_stages(text: str, mesh: dict[str, int]) -> None:
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    small = td.zoo.gpt(**{**MODELS["gpt"], "layers": 2})
    mod = td.train_step(small, optimizer="sgd", schedule=schedule)
    plan = strategy.make_plan(mod, f"pipeline:micro_batches=2+{text}", mesh)
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize(("engine", "name", "text", "mesh", "train"), nightly_but(ENGINES, {1, 2}))
def test_engines(engine: str, name: str, text: str, mesh: dict[str, int], train: bool) -> None:
    mod = model(name)
    if train:
        mod = td.train_step(mod, optimizer="sgd", rate=0.1)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine=engine).equal
