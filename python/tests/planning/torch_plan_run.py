# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Runs the exported code of a plan on gloo: a decoder with the weights of a case, in PyTorch.

``python torch_plan_run.py FOLDER`` reads ``case.json`` and ``parallelism.py`` there, and writes
``result.json``: how much the outputs of all ranks differ from those of a single process, and the
shapes of the local weights of the first rank.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import distributed, nn

HEAD = 16
TOKENS = (4, 8)


class Attention(nn.Module):
    def __init__(self, shapes: dict[str, list[int]], prefix: str) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, linear(shapes, f"{prefix}.{name}"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in parts)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, shapes: dict[str, list[int]], prefix: str) -> None:
        super().__init__()
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self, name, linear(shapes, f"{prefix}.{name}"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shapes: dict[str, list[int]], prefix: str) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shapes[f"{prefix}.input_layernorm.weight"])
        self.self_attn = Attention(shapes, f"{prefix}.self_attn")
        size = shapes[f"{prefix}.post_attention_layernorm.weight"]
        self.post_attention_layernorm = nn.RMSNorm(size)
        self.mlp = Mlp(shapes, f"{prefix}.mlp")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shapes: dict[str, list[int]]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(*shapes["embed_tokens.weight"])
        count = sum(name.endswith("input_layernorm.weight") for name in shapes)
        self.layers = nn.ModuleList(Layer(shapes, f"layers.{i}") for i in range(count))
        self.norm = nn.RMSNorm(shapes["norm.weight"])
        self.lm_head = linear(shapes, "lm_head")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def linear(shapes: dict[str, list[int]], name: str) -> nn.Linear:
    rows, columns = shapes[f"{name}.weight"]
    return nn.Linear(columns, rows, bias=False)


def run_rank(rank: int, folder: str, case: dict[str, Any], port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=case["ranks"])
    import parallelism

    torch.manual_seed(0)
    model = Decoder(case["shapes"])
    assert {name for name, _ in model.named_parameters()} == set(case["shapes"])
    ids = torch.randint(case["shapes"]["embed_tokens.weight"][0], TOKENS)
    expected = model(ids).detach()
    mesh = parallelism.make_mesh("cpu")
    parallelism.parallelize(model, mesh)
    local = {
        name: list((p.to_local() if hasattr(p, "to_local") else p).shape)
        for name, p in model.named_parameters()
    }
    replicas = mesh["dp"].size() if "dp" in mesh.mesh_dim_names else 1
    part = TOKENS[0] // replicas
    start = part * (mesh.get_local_rank("dp") if replicas > 1 else 0)
    out = model(ids[start : start + part]).detach()
    difference = (out - expected[start : start + part]).abs().max()
    distributed.all_reduce(difference, distributed.ReduceOp.MAX)
    if rank == 0:
        result = {
            "difference": float(difference), "magnitude": float(expected.abs().max()),
            "local": local,
        }  # fmt: skip
        Path(folder, "result.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    FOLDER = sys.argv[1]
    CASE = json.loads(Path(FOLDER, "case.json").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        PORT = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, (FOLDER, CASE, PORT), nprocs=CASE["ranks"])
