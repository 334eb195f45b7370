# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Nine recipes of NVIDIA for mixtures: meshes, and the bytes that go to experts and come back."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

import tvm_distir as td
from tvm_distir.planning import Study


class Recipe(NamedTuple):
    """Sizes of a mixture, and its degrees of parallelism.

    The degrees are those of the table "MoE models" in NVIDIA-NeMo/Megatron-Bridge at commit
    033eb68f, ``skills/perf-techniques/parallelism-strategies/SKILL.md``. ``model`` has the
    published name, or is a stand-in of the zoo with its hidden size, experts and ``top_k``, which
    alone decide what goes to experts.
    """

    model: str
    hidden: int
    top_k: int
    tp: int
    pp: int
    ep: int
    cp: int = 1

    @property
    def mesh(self) -> dict[str, int]:
        """The least devices of a stage: experts lie on all ranks of data, context and tensors."""
        sizes = {"dp": self.ep // (self.cp * self.tp), "cp": self.cp, "tp": self.tp}
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def family(self) -> str:
        """Return the family of the model, among :data:`TINY`."""
        return "qwen3" if "qwen3" in self.model else "deepseek"

    @property
    def strategy(self) -> str:
        """Return the strategy of a stage: the distributed optimizer, and sequence parallelism."""
        parts = {"dp": "zero:stage=1", "tp": "megatron:sequence=1", "cp": "context_parallel"}
        names = [parts[name] for name in ("dp", "tp", "cp") if name in self.mesh]
        return "+".join([*names, f"expert_parallel:axis={'/'.join(self.mesh)}"])


SEQ, MICRO_BATCHES, BFLOAT16_BYTES = 4096, 2, 2
DEEPSEEK = "layers=2,dense_layers=1"
RECIPES = {
    "OLMoE-7B": Recipe("zoo:qwen3?size=30b-a3b,layers=1,experts=64,heads=16,kv_heads=16", 2048, 8,
                       tp=1, pp=1, ep=8),
    "Moonlight-16B": Recipe(f"zoo:deepseek?size=v2-lite,{DEEPSEEK}", 2048, 6, tp=2, pp=1, ep=8),
    "DeepSeek-V2": Recipe(f"hf:deepseek-v2?{DEEPSEEK}", 5120, 6, tp=1, pp=4, ep=32),
    "GLM-4.5-Air": Recipe("zoo:qwen3?size=30b-a3b,layers=1,hidden=4096,heads=96,kv_heads=8", 4096,
                          8, tp=1, pp=4, ep=8),
    "Qwen3-30B": Recipe("hf:qwen3-30b-a3b?layers=1", 2048, 8, tp=4, pp=2, ep=4),
    "GLM-4.5": Recipe("zoo:qwen3?size=30b-a3b,layers=1,hidden=5120,heads=96,kv_heads=8,experts=160",
                      5120, 8, tp=2, pp=8, ep=16),
    "Qwen3-235B": Recipe("hf:qwen3-235b-a22b?layers=1", 4096, 8, tp=4, pp=16, ep=8, cp=2),
    "DeepSeek-V3": Recipe(f"hf:deepseek-v3?{DEEPSEEK}", 7168, 8, tp=2, pp=16, ep=64),
    "Kimi-K2": Recipe("hf:kimi-k2-instruct?layers=2", 7168, 8, tp=2, pp=16, ep=32),
}  # fmt: skip
TINY = {
    "deepseek": "zoo:deepseek?size=tiny",
    "qwen3": "zoo:qwen3?size=tiny,experts=8,top_k=4,expert_ffn=32",
}
"""Small models of the families: latent attention and shared experts, or grouped heads."""
SUITE = ("Qwen3-30B", "Moonlight-16B", "Kimi-K2", "Qwen3-235B")
EXECUTED = ("GLM-4.5-Air", "Qwen3-235B")
"""Cases of every run; the others run at night."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of the case of a recipe."""
    return [] if name in SUITE else [pytest.mark.nightly]


def test_six_of_nine_have_experts_over_ranks_of_tensors() -> None:
    assert sum(recipe.tp > 1 for recipe in RECIPES.values()) == 6
    assert all(math.prod(recipe.mesh.values()) == recipe.ep for recipe in RECIPES.values())


@pytest.mark.filterwarnings("ignore:megatron over")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=marks(name)) for name in RECIPES
])  # fmt: skip
def test_bytes_to_experts_are_those_of_a_hand_count(name: str) -> None:
    """Of its tokens, ``SEQ / (cp * tp)`` of a sample, a device sends each to ``top_k`` experts.

    Slots of other devices, (ep - 1) / ep of them, cross the network: once to the experts and once
    back, in the forward and again in the backward pass.
    """
    recipe = RECIPES[name]
    ours = Study(
        f"{recipe.model},seq={SEQ}", strategy=recipe.strategy, mesh=recipe.mesh,
        batch=MICRO_BATCHES * recipe.mesh.get("dp", 1), micro_batches=MICRO_BATCHES,
        train={"optimizer": "adamw"}, system="h100", stack="megatron-core",
    )  # fmt: skip
    axes = ",".join(recipe.mesh)
    moved = [c for c in ours.result.collectives
             if c.kind in ("all_to_all", "exchange") and c.mesh_axis == axes]  # fmt: skip
    tokens = SEQ // (recipe.cp * recipe.tp)
    slots = tokens * recipe.top_k * recipe.hidden * BFLOAT16_BYTES
    expected = 4 * MICRO_BATCHES * slots * (recipe.ep - 1) / recipe.ep
    sent = sum(c.wire_bytes_per_device for c in moved)
    print(f"{name}: {sent / 1e6:.1f} MB to experts, {expected / 1e6:.1f} MB by hand")
    assert sent == pytest.approx(expected, rel=0.05)


@pytest.mark.filterwarnings("ignore:megatron over", "ignore:.*pipeline")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in EXECUTED else [pytest.mark.nightly]) for name in RECIPES
])  # fmt: skip
def test_a_step_of_small_size_equals_one_device(name: str) -> None:
    """Two devices along each axis of the recipe, and two stages where it has stages."""
    recipe = RECIPES[name]
    mesh, strategy = dict.fromkeys(recipe.mesh, 2), recipe.strategy
    if recipe.pp > 1:
        mesh, strategy = {"pp": 2, **mesh}, f"pipeline:micro_batches=2+{strategy}"
    ours = Study(
        TINY[recipe.family], strategy=strategy, mesh=mesh, batch=4 * mesh.get("dp", 1),
        micro_batches=2, train={"optimizer": "adamw"}, system="h100", stack="megatron-core",
    )  # fmt: skip
    assert td.verify(ours.step, ours.step_plan, "virtual", dist=ours.local).equal
