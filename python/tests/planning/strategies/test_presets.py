# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Presets: what each stores, and that it sends what the formulas of docs/zero.md say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import ir

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError

LAYERS, HIDDEN, INNER, VOCAB = 2, 32, 128, 64
GPT = {
    "size": "tiny",
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": 4,
    "vocab": VOCAB,
    "seq": 32,
    "positions": 32,
    "batch": 32,
}
OF_LAYERS = 4 * LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER + 2 * HIDDEN)
"""Bytes of what the backward part of a layer reads: its matrices, the scales of its norms."""
OF_MAIN = 4 * (VOCAB * HIDDEN + HIDDEN)
"""Bytes that main's backward part reads: the token table, which is the head, and a norm's scale."""
LOSS = 16
"""Bytes of scalars at most, the loss among them."""

REPLICATED = ("deepspeed_zero1", "deepspeed_zero2", "lightning_sharded")


def step(reread: bool = False) -> ir.IRModule:
    return td.train_step(td.zoo.gpt(**GPT), optimizer="adam", rate=1.0, reread=reread)


def held_bytes(dist: ir.IRModule) -> dict[str, tuple[int, int]]:
    """Bytes of the weights and of their states, on a device and whole."""
    stored: dict[str, Counter[str]] = {"weights": Counter(), "states": Counter()}
    io = dist["main"].attrs["dist.io"]
    for item, param in zip(io["inputs"], dist["main"].params, strict=True):
        name = str(item["name"])
        if item["role"] != "weight" or not item["shape"]:
            continue
        kind = "states" if name.endswith((".m", ".v")) else "weights"
        stored[kind]["device"] += 4 * math.prod(int(n) for n in param.ty.shape)
        stored[kind]["whole"] += 4 * math.prod(int(n) for n in item["shape"])
    return {kind: (result["device"], result["whole"]) for kind, result in stored.items()}


def collectives(dist: ir.IRModule) -> Iterator[Any]:
    program = td.export(dist)
    for _, op in program.executed(program.entries[0].function):
        if op.kind == "collective":
            yield op


def sent_bytes(dist: ir.IRModule) -> Counter[tuple[str, tuple[int, ...]]]:
    """Bytes that a device sends on a ring, by kind and mesh axes."""
    matches: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for op in collectives(dist):
        n, b = op.group_size, op.payload_bytes
        sent = {
            "all_reduce": 2 * (n - 1) * b / n,
            "all_gather": (n - 1) * b / n,
            "reduce_scatter": (n - 1) * b,
            "all_to_all": (n - 1) * b / n,
        }[op.collective]
        matches[op.collective, tuple(op.mesh_axes)] += round(sent)
    return matches


@pytest.mark.parametrize("name", REPLICATED)
def test_stages_one_and_two_store_states_in_parts(name: str) -> None:
    """Weights whole: a gradient is scattered and a weight gathered, as much as an all-reduce."""
    n, mod = 4, step()
    dist = td.distribute(mod, strategy.make_plan(mod, name, {"dp": n}))
    weights, states = held_bytes(dist).values()
    assert weights[0] == weights[1]
    assert states == (2 * weights[1] // n, 2 * weights[1])
    result = sent_bytes(dist)
    assert result["all_gather", (0,)] == result["reduce_scatter", (0,)] == weights[1] * (n - 1) / n
    assert result["all_reduce", (0,)] + 2 * weights[1] * (n - 1) / n <= result.total() + LOSS
    kinds = Counter(op.collective for op in collectives(dist))
    count = 16 * LAYERS + 4
    assert kinds["all_gather"] == kinds["reduce_scatter"] == count


@pytest.mark.parametrize("reread", [False, True], ids=["held", "reread"])
@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero3"])
def test_stage_three_stores_everything_in_parts(name: str, reread: bool) -> None:
    """Gathers: each weight forward, what the backward part of layers reads once more."""
    n, mod = 4, step(reread)
    dist = td.distribute(mod, strategy.make_plan(mod, name, {"dp": n}))
    weights, states = held_bytes(dist).values()
    assert weights[0] == weights[1] // n
    assert states == (2 * weights[1] // n, 2 * weights[1])
    result = sent_bytes(dist)
    again = OF_LAYERS + (OF_MAIN if reread else 0)
    assert result["all_gather", (0,)] == (weights[1] + again) * (n - 1) / n
    assert result["reduce_scatter", (0,)] == weights[1] * (n - 1) / n
    assert result["all_reduce", (0,)] <= 2 * LOSS
    assert result["all_to_all", (0,)] <= GPT["positions"] * HIDDEN  # the table of positions, turned


def test_hybrid_sharding_reduces_the_parts_over_the_replicas() -> None:
    n, m, mod = 4, 2, step()
    plan = strategy.make_plan(mod, "hsdp", {"pod": m, "dp": n})
    dist = td.distribute(mod, plan)
    weights, states = held_bytes(dist).values()
    assert weights[0] == weights[1] // n
    assert states[0] == 2 * weights[1] // n
    result = sent_bytes(dist)
    assert result["all_gather", (1,)] == (weights[1] + OF_LAYERS) * (n - 1) / n
    assert result["reduce_scatter", (1,)] == weights[1] * (n - 1) / n
    assert result["all_reduce", (0,)] == 2 * (m - 1) / m * weights[1] / n
    by_parts = strategy.make_plan(mod, "data_parallel:axis=pod+zero", {"pod": m, "dp": n})
    assert set(plan.rules) == set(by_parts.rules)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("fsdp", "zero"),
        ("deepspeed_zero1", "zero:stage=1"),
        ("deepspeed_zero2", "zero:stage=2"),
        ("lightning_sharded", "zero:stage=2"),
        ("fsdp+megatron", "zero+megatron"),
        ("megatron+deepspeed_zero1", "megatron+zero:stage=1"),
    ],
)
def test_presets_are_stages_of_zero(text: str, same: str) -> None:
    mod, mesh = step(), {"dp": 2, "tp": 2}
    created, expected = (strategy.make_plan(mod, each, mesh) for each in (text, same))
    assert created == expected


@pytest.mark.parametrize(
    ("text", "mesh", "engine"),
    nightly_but(
        [
            ("fsdp", {"dp": 2}, "virtual"),
            ("hsdp", {"pod": 2, "dp": 2}, "threads"),
            ("hsdp+megatron", {"pod": 2, "dp": 2, "tp": 2}, "virtual"),
            ("lightning_sharded+megatron", {"dp": 2, "tp": 2}, "virtual"),
        ],
        {1, 3},
    ),
)
def test_steps_equal_one_device(text: str, mesh: dict[str, int], engine: str) -> None:
    model = td.zoo.gpt(**{**GPT, "layers": 1, "hidden": 16, "vocab": 32, "seq": 8, "batch": 4})
    mod = td.train_step(model, optimizer="sgd", momentum=0.9)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine=engine).equal


@pytest.mark.parametrize(
    ("text", "mesh", "error", "message"),
    [
        ("hsdp", {"dp": 2}, MeshError, "DIST0206.*hsdp:replicas=NAME"),
        ("fsdp", {"tp": 2}, MeshError, "DIST0206.*fsdp:axis=NAME"),
        ("deepspeed_zero1", {"dp": 2}, PlanError, "DIST0233.*deepspeed_zero1.*optimizer states"),
        ("fsdp", {"dp": 3}, PlanError, "DIST0234"),
    ],
)
def test_errors(text: str, mesh: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(td.zoo.gpt(**GPT), text, mesh)
