# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A training step of a decoder of any size, tensor and data parallel by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from .cases import Tensors, grads
from .communicating_functions import CopyTo, ReduceFrom

HINTS = {"ids": {"dp": 0}, "labels": {"dp": 0}}


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder and of its mesh.

    Attributes
    ----------
    layers, width, heads, kv_heads, hidden, vocabulary : int
    batch, length : int
        Sequences of all ranks, and tokens of each.
    dp, tp : int
    device : str
        ``meta`` for tensors without memory.
    """

    layers: int
    width: int = 64
    heads: int = 8
    kv_heads: int = 8
    hidden: int = 128
    vocabulary: int = 96
    batch: int = 4
    length: int = 16
    dp: int = 4
    tp: int = 8
    device: str = "meta"

    @property
    def mesh(self) -> dict[str, int]:
        return {"dp": self.dp, "tp": self.tp}

    def inputs(self, dp: int, tp: int) -> tuple[Tensors, Tensors]:
        """Return parameters and data of a rank of so many."""

        def new(*shape: int) -> torch.Tensor:
            return torch.ones(shape, device=self.device, requires_grad=True)

        size = self.width // self.heads
        query, key, hidden = self.width // tp, self.kv_heads * size // tp, self.hidden // tp
        parameters = {"emb": new(self.vocabulary, self.width)}
        for i in range(self.layers):
            shapes = {"n1": (self.width,), "n2": (self.width,), "q": (self.width, query)}
            shapes |= {"k": (self.width, key), "v": (self.width, key), "o": (query, self.width)}
            shapes |= {"gate": (self.width, hidden), "up": (self.width, hidden)}
            shapes |= {"down": (hidden, self.width)}
            parameters |= {f"l{i}.{name}": new(*shape) for name, shape in shapes.items()}
        parameters |= {"n": new(self.width), "head": new(self.width, self.vocabulary)}
        indices = torch.zeros(self.batch // dp, self.length, dtype=torch.long, device=self.device)
        tables = torch.ones(self.length, size // 2, device=self.device)
        mask = torch.zeros(self.length, self.length, device=self.device)
        data = {"ids": indices, "labels": indices.clone(), "cos": tables, "sin": tables.clone()}
        return parameters, {**data, "mask": mask}

    def single(self, rank: int) -> Any:
        parameters, data = self.inputs(1, 1)
        same = _identity
        return (lambda p, d: self._step(p, d, same, same, 1, "")), parameters, data

    def ranks(self, bug: str = "") -> Callable[[int], Any]:
        """Return the maker of a rank."""

        def make(rank: int) -> Any:
            mesh = init_device_mesh("cpu", (self.dp, self.tp), mesh_dim_names=("dp", "tp"))
            tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()

            def step(p: Tensors, d: Tensors) -> Tensors:
                out = self._step(
                    p, d, lambda x: CopyTo.apply(x, tp), lambda x: ReduceFrom.apply(x, tp), self.tp,
                    bug,
                )  # fmt: skip
                for name in p:
                    gradient = out["grad:" + name].clone()
                    dist.all_reduce(gradient, group=tp if bug == "dp over tp" else dp)
                    out["grad:" + name] = gradient / self.dp
                return out

            return step, *self.inputs(self.dp, self.tp)

        return make

    def _step(self, p: Tensors, d: Tensors, f: Any, g: Any, tp: int, bug: str) -> Tensors:
        h = F.embedding(d["ids"], p["emb"])
        for i in range(self.layers):
            layer = {n.split(".")[1]: w for n, w in p.items() if n.startswith(f"l{i}.")}
            h = self._layer(layer, h, d, f, _identity if bug == "no g" and not i else g, tp)
        z = F.rms_norm(h, (self.width,), p["n"], 1e-5) @ p["head"]
        return grads(F.cross_entropy(z.flatten(0, 1), d["labels"].flatten()), p)

    def _layer(
        self, p: Tensors, h: torch.Tensor, d: Tensors, f: Any, g: Any, tp: int
    ) -> torch.Tensor:
        size = self.width // self.heads

        def heads(w: torch.Tensor, count: int) -> torch.Tensor:
            return (x @ w).unflatten(-1, (count // tp, size)).transpose(1, 2)

        def turned(t: torch.Tensor) -> torch.Tensor:
            a, b = t.chunk(2, -1)
            return torch.cat([a * d["cos"] - b * d["sin"], b * d["cos"] + a * d["sin"]], -1)

        x = f(F.rms_norm(h, (self.width,), p["n1"], 1e-5))
        each = self.heads // self.kv_heads
        q, k = turned(heads(p["q"], self.heads)), turned(heads(p["k"], self.kv_heads))
        k, v = (t.repeat_interleave(each, 1) for t in (k, heads(p["v"], self.kv_heads)))
        weights = torch.softmax(q @ k.transpose(-1, -2) * size**-0.5 + d["mask"], -1)
        h = h + g((weights @ v).transpose(1, 2).flatten(-2) @ p["o"])
        x = f(F.rms_norm(h, (self.width,), p["n2"], 1e-5))
        return h + g((F.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"])


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


LLAMA_8B = Decoder(32, 4096, 32, 8, 14336, 128256, 4, 4096)
LLAMA_70B = Decoder(80, 8192, 64, 8, 28672, 128256, 4, 4096)
