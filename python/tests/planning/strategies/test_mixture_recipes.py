# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Nine recipes of NVIDIA for mixtures: meshes, and the bytes that go to experts and come back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import pytest

import tvm_distir as td
from tvm_distir.planning import Study

Weights = Mapping[str, tuple[int, ...]]
"""Shapes of weights by name."""


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
        states = "/".join(axis for axis in ("dp", "cp") if axis in self.mesh)
        names = [f"zero:stage=1,axis={states}"] if states else []
        names += ["megatron:sequence=1"] if self.tp > 1 else []
        names += ["context_parallel:form=gather"] if self.cp > 1 else []
        return "+".join([*names, f"expert_parallel:axis={'/'.join(self.mesh)}"])

    @property
    def tile(self) -> float:
        """Return the bytes of the tokens of a sample that a device has between layers."""
        return SEQ // (self.cp * self.tp) * self.hidden * BFLOAT16_BYTES

    @property
    def bytes_to_experts(self) -> float:
        """Return the bytes that a device sends to experts and back, forward and backward.

        It sends each of its tokens to ``top_k`` experts; slots of other devices, (ep - 1) / ep of
        them, cross the network.
        """
        return 4 * MICRO_BATCHES * self.tile * self.top_k * (self.ep - 1) / self.ep

    def bytes_around_products(self, weights: Weights) -> float:
        """Return the bytes that gathers and scatters of sequences send along the axis of tensors.

        A pair of products gathers its input in the forward pass, again for the gradient of its
        weights, and the gradient of its output; it scatters its output and the gradient of its
        input. Such pairs are attention, an MLP beside the experts, and the head with the table.
        Latent attention gathers latents in place of the input, which queries without latents
        read too.
        """
        names = [name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))]
        tiles = 5.0 * (1 + sum(name.endswith("down_proj.weight") for name in names))
        for name in names:
            if name.endswith("o_proj.weight"):
                layer = name.removesuffix("o_proj.weight")
                query, key = (
                    sum(shape[0] for other, shape in weights.items()
                        if other.startswith(f"{layer}{latent}_a_proj"))
                    for latent in ("q", "kv")
                )  # fmt: skip
                tiles += 2 + 3 * ((query + key) / self.hidden + (not query))
        return MICRO_BATCHES * tiles * self.tile * (self.tp - 1)

    def bytes_of_gradients(self, weights: Weights) -> float:
        """Return the bytes of gradients in float32, and of updated weights.

        Weights but those of experts have their states in parts over the axes of data and context,
        which scatter gradients and gather weights. Routers, norms and projections to latents are
        whole on each device of the axis of tensors, which sums their gradients.
        """
        sizes = {name: math.prod(shape) for name, shape in weights.items() if len(shape) < 3}
        whole = sum(n for name, n in sizes.items() if re.search("norm|router|_a_proj", name))
        held = (sum(sizes.values()) - whole) / self.tp + whole
        parts = self.ep // self.tp
        by_states = held * (4 + BFLOAT16_BYTES) * (parts - 1) / parts
        return by_states + 4 * whole * 2 * (self.tp - 1) / self.tp


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
def test_bytes_are_those_of_a_hand_count(name: str) -> None:
    """What goes to experts, and what all collectives of a step send, within 5 percent."""
    recipe = RECIPES[name]
    ours = Study(
        f"{recipe.model},seq={SEQ}", strategy=recipe.strategy, mesh=recipe.mesh,
        batch=MICRO_BATCHES * recipe.mesh.get("dp", 1), micro_batches=MICRO_BATCHES,
        train={"optimizer": "adamw"}, system="h100", stack="megatron-core",
    )  # fmt: skip
    main = ours.source.mod["main"]
    weights = {
        str(param.name): tuple(int(size) for size in param.ty.shape) for param in main.params[1:]
    }
    axes = ",".join(recipe.mesh)
    to_experts = sum(
        c.wire_bytes_per_device for c in ours.result.collectives
        if c.kind in ("all_to_all", "exchange") and c.mesh_axis == axes
    )  # fmt: skip
    sent = sum(c.wire_bytes_per_device for c in ours.result.collectives)
    parts = (recipe.bytes_to_experts, recipe.bytes_around_products(weights),
             recipe.bytes_of_gradients(weights))  # fmt: skip
    print(f"{name}: {to_experts / 1e6:.1f} of {sent / 1e6:.1f} MB; by hand", *parts)
    assert to_experts == pytest.approx(recipe.bytes_to_experts, rel=0.05)
    assert sent == pytest.approx(sum(parts), rel=0.05)


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
