# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Strategies of modules as MLC-LLM exports them: weights in a tuple, in words of int4, unread."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tvm import ir, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

import tvm_distir as td
from tvm_distir.core.rewriting.entries import keep_entry
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors import PlanError

WIDTH, HIDDEN, WORDS = 64, 128, 32
GROUP = 32


class Quantized(nn.Module):
    """A linear layer (out, in) whose weight is int4 in words of uint32, with a scale per group."""

    def __init__(self, width: int, out: int, dtype: str) -> None:
        self.out, self.width, self.dtype = out, width, dtype
        self.q_weight = nn.Parameter((out, width // 8), "uint32")
        self.q_scale = nn.Parameter((out, width // GROUP), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the weight that the words mean."""

        def unpack(words: te.Tensor, scale: te.Tensor) -> te.Tensor:
            def number(i: Any, j: Any) -> Any:
                bits = words[i, j // 8] >> tirx.Cast("uint32", (j % 8) * 4)
                value = tirx.Cast(self.dtype, bits & tirx.const(15, "uint32"))
                return (value - tirx.const(7, self.dtype)) * scale[i, j // GROUP]

            return te.compute((self.out, self.width), number, name="dequantize")

        weight = op.tensor_expr_op(unpack, "dequantize", [self.q_weight, self.q_scale])
        return op.matmul(x, op.permute_dims(weight))


class Block(nn.Module):
    """A residual feed-forward block with a token table."""

    def __init__(self, quantized: bool, dtype: str) -> None:
        def linear(width: int, out: int) -> nn.Module:
            if quantized:
                return Quantized(width, out, dtype)
            return nn.Linear(width, out, bias=False, dtype=dtype)

        self.embed_tokens = nn.Embedding(WORDS, WIDTH, dtype)
        self.norm = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False, dtype=dtype)
        self.up_proj, self.down_proj = linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the rows of tokens."""
        return self.embed_tokens(ids)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        return x + self.down_proj(op.silu(self.up_proj(self.norm(x))))


def exported(quantized: bool = False, dtype: str = "float32", tokens: int = 8) -> ir.IRModule:
    """Return the block as `relax.nn` exports it with packed parameters."""
    mode = {"param_mode": "packed", "effect_mode": "none"}
    spec = {
        "embed": {"ids": nn.spec.Tensor([tokens], "int32"), "$": mode},
        "forward": {"x": nn.spec.Tensor([1, tokens, WIDTH], dtype), "$": mode},
    }
    return Block(quantized, dtype).export_tvm(spec)[0]


def placements(mod: ir.IRModule, entry: str) -> dict[str, str]:
    """Return the placements of the inputs of a lowered entry by name."""
    ports = mod[entry].attrs["dist.io"]["inputs"]
    return {str(port["name"]): str(port["placement"]) for port in ports}


@pytest.mark.parametrize("quantized", [False, True])
def test_megatron_shards_packed_weights(quantized: bool) -> None:
    """Both entries are equal, and have the same placement of a weight that only one reads."""
    mod = exported(quantized)
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    for entry in ("embed", "forward"):
        assert td.verify(mod, plan, entry=entry).equal
    dist = td.distribute(mod, plan)
    names = ("q_weight", "q_scale") if quantized else ("weight",)
    for entry in ("embed", "forward"):
        known = placements(dist, entry)
        assert known["embed_tokens_weight"] == "S[0]"
        assert {known[f"up_proj_{name}"] for name in names} == {"S[0]"}
        assert {known[f"down_proj_{name}"] for name in names} == {"S[1]"}
    assert dist["forward"].script().count("R.dist.all_reduce(") == 1


@pytest.mark.parametrize("strategy", ["data_parallel:dim=1", "tensor_parallel", "zero:stage=3"])
def test_strategies_of_packed_weights(strategy: str) -> None:
    """Strategies that know no names treat the fields of the tuple as weights."""
    mod = exported()
    axis = "tp" if strategy == "tensor_parallel" else "dp"
    entry = "embed" if strategy.startswith("zero") else "forward"
    mod = keep_entry(mod, entry)
    plan = td.planning.make_plan(mod, strategy, {axis: 2})
    assert td.verify(mod, plan).equal
    known = placements(td.distribute(mod, plan), entry)
    sharded = [name for name, placement in known.items() if placement != "R"]
    if strategy.startswith("data_parallel"):
        assert known["x"] == "S[1]" and sharded == ["x"]
    else:
        assert any(name.endswith("weight") for name in sharded)


def test_batch_of_one_names_the_option() -> None:
    """A batch of 1 whose tokens lie along dim 1 is refused with the option that shards them."""
    mod = keep_entry(exported(), "forward")
    with pytest.raises(PlanError, match="data_parallel:dim=1"):
        td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    with pytest.raises(PlanError, match="DIST0231"):
        td.planning.make_plan(mod, "data_parallel:dim=-1", {"dp": 2})
    with pytest.raises(PlanError, match="at least 4 dims"):
        td.planning.make_plan(mod, "data_parallel:dim=3", {"dp": 2})


def test_words_mean_weights() -> None:
    """Words and scales are drawn so that the numbers they mean have the deviation of weights."""
    mod = keep_entry(exported(quantized=True), "forward")
    values = draw_inputs(mod, 0)
    words, scale = next(
        (a, b) for a, b in itertools.pairwise(values) if a.shape == (HIDDEN, WIDTH // 8)
    )
    bits = (words[:, :, None] >> (4 * np.arange(8, dtype="uint32"))) & 15
    numbers = bits.reshape(HIDDEN, WIDTH).astype("float32") - 7
    weight = numbers * np.repeat(scale, GROUP, axis=1)
    assert len(np.unique(bits)) == 16
    assert 0.8 < weight.std() * np.sqrt(WIDTH) < 1.4


def test_half_precision_words_are_verified() -> None:
    """A float16 model of int4 words has finite values, and is verified."""
    mod = exported(quantized=True, dtype="float16")
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    assert td.verify(mod, plan, entry="forward").equal
