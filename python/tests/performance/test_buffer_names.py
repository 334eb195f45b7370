# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Buffers have the names of modules of the model, not of values of the compiler."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.memory.buffer_names import BufferNames
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import ACCUMULATE
from tvm_distir.planning.strategies.composition import make_plan

SIZES: dict[str, Any] = {"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "dtype": "bfloat16"}
SHAPE = r"\((\d+(, \d+)*)?\) \w+"
COMPILER = re.compile(r"\b(forward|sums\d*|lv\d*|gv\d*)\b(\.\d+)+|^(lv|gv)\d*$")


@functools.cache
def program(stages: int) -> Program:
    """A training step with two layers per stage."""
    model = td.zoo.llama(layers=2 * stages, batch=4, seq=32, vocab=128, **SIZES)
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": 4} if stages > 1 else None
    step = td.train_step(model, optimizer="adamw", master=True, schedule=schedule)
    words = "pipeline:micro_batches=4+megatron" if stages > 1 else "megatron"
    mesh = {"pp": stages, "tp": 2} if stages > 1 else {"tp": 2}
    return td.export(td.distribute(step, make_plan(step, words, mesh)))


def weights(layers: range) -> set[str]:
    """The weights of layers as the model names them."""
    model = td.zoo.llama(layers=4, batch=4, seq=32, vocab=128, **SIZES)
    names = [str(name) for name in model["main"].attrs["dist.param_names"]]
    return {n for n in names if any(n.startswith(f"layers.{layer}.") for layer in layers)}


@pytest.mark.parametrize("profile", ["eager", "megatron-lm"])
def test_sums_have_the_names_of_their_weights(profile: str) -> None:
    """The second layer of a stage is not called as the first, though they share a function."""
    grown = grouped(program(2), profile)
    names = BufferNames(grown)
    assert grown.staged is not None
    for stage in range(2):
        role = grown.staged.stage_kind_of(stage)
        phase = role.phase(ACCUMULATE)
        assert phase is not None
        sums = [names.slot(role, slot) for slot in phase.outputs]
        layers = {name for name in sums if name.startswith("layers.")}
        expected = weights(range(2 * stage, 2 * stage + 2))
        assert layers == {f"{name}.grad (float32)" for name in expected}


def test_activations_have_the_names_of_the_modules_that_make_them() -> None:
    grown = grouped(program(2), "megatron-lm")
    names = BufferNames(grown)
    assert grown.staged is not None
    role = grown.staged.stage_kind_of(0)
    remaining = [names.slot(role, slot) for slot in role.stash]
    for layer in (0, 1):
        assert f"layers.{layer}.mlp.up_proj output" in remaining
        assert f"layers.{layer}.input_layernorm output" in remaining
    up_proj = next(s for s in role.stash if names.slot(role, s).endswith("up_proj output"))
    assert role.slots[up_proj].shape[-1] == SIZES["ffn"] // 2  # over two devices


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("profile", ["eager", "flash"])
def test_holders_name_no_value_of_the_compiler(stages: int, profile: str) -> None:
    """A name is that of a module, or the op that makes the buffer with its shape and type."""
    result = td.simulate(program(stages), "dgx-h100-megatron", kernels=profile)
    whole = {"embed_tokens.weight", "lm_head.weight"}
    seen = set()
    for lane in result.lanes:
        for holder in lane.account.holders:
            assert not COMPILER.search(holder.what), holder
            seen.add(holder.what)
    assert any(re.fullmatch(r"[\w.*]+ master \(float32\)", name) for name in seen) or any(
        re.fullmatch(r"[\w.*]+ output( \(\w+\))?", name) for name in seen
    )
    for name in seen - whole:
        if "output (" in name and name.count("(") == 1 and "," in name:
            assert re.search(SHAPE, name.replace("*", "0")), name


def test_states_stand_behind_their_weight() -> None:
    names = BufferNames(program(2))
    name = names.resident("layers_0_mlp_up_proj_weight_master", "float32")
    assert name == "layers.0.mlp.up_proj.weight master (float32)"
    assert names.resident("lm_head_weight", "bfloat16") == "lm_head.weight"
