#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps of models exported by torch.export against torch's autograd and optimizers.

Usage: scripts/peers/compare_torch.py [--only WORD] [--steps N] [--seed N]
Needs the extra "torch". Each model is written with torch's own layers, exported, imported by TVM,
made a step by `td.train_step` and run five times with each optimizer, beside torch on the same
batches. A row gives the largest difference of a loss, relative to it, and of a weight, relative to
how far torch moved that tensor. Exits 1 where one is over its bound.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tvm
from torch import nn
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import tvm_distir as td
from tvm_distir.core.ir.attributes.readers import param_names

BOUND = 2e-3
"""Most that may differ of how far a weight moved, in float32."""

BATCH, SEQ, VOCAB, HIDDEN, HEADS = 4, 8, 50, 32, 4


class Attention(nn.Module):
    """Self-attention by torch's own kernel; with fewer heads of keys they are repeated."""

    def __init__(self, causal: bool, groups: int = 1, rotary: bool = False) -> None:
        super().__init__()
        self.causal, self.groups, self.rotary = causal, groups, rotary
        width = HIDDEN // groups
        self.q, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.k, self.v = nn.Linear(HIDDEN, width), nn.Linear(HIDDEN, width)

    def forward(self, x: Any) -> Any:
        """Run it."""
        each = HIDDEN // HEADS
        q = self.q(x).view(BATCH, -1, HEADS, each).transpose(1, 2)
        k, v = (
            f(x).view(BATCH, -1, HEADS // self.groups, each).transpose(1, 2)
            for f in (self.k, self.v)
        )
        if self.rotary:
            q, k = turned(q), turned(k)
        if self.groups > 1:
            k, v = (t.repeat_interleave(self.groups, 1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(each)
        if self.causal:
            keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            scores = scores.masked_fill(~keep, -3e4)
        mixed = F.softmax(scores, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(BATCH, -1, HIDDEN))


def turned(x: Any) -> Any:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[2]).float(), 0.1 ** torch.arange(half).float())
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RmsNorm(nn.Module):
    """As Llama has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(HIDDEN) + 0.5)

    def forward(self, x: Any) -> Any:
        """Run it."""
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Mlp(nn.Module):
    """Of GPT, BERT and ViT; ``gated``: of Llama."""

    def __init__(self, gated: bool, approximate: str) -> None:
        super().__init__()
        self.gated, self.approximate = gated, approximate
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.gate = nn.Linear(HIDDEN, 4 * HIDDEN) if gated else None

    def forward(self, x: Any) -> Any:
        """Run it."""
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Experts(nn.Module):
    """The two best of four experts, weighted; all of them are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen = 2
        self.route = nn.Linear(HIDDEN, 4)
        self.up = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN) / 6)
        self.down = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN) / 6)

    def forward(self, x: Any) -> Any:
        """Run it."""
        chance = F.softmax(self.route(x), -1)
        best, which = torch.topk(chance, self.chosen, -1)
        chosen = (which[..., None] == torch.arange(4)).to(x.dtype)
        weight = (chosen * (best / best.sum(-1, keepdim=True))[..., None]).sum(-2)
        created = torch.einsum(
            "bsef,efd->bsed", F.relu(torch.einsum("bsd,edf->bsef", x, self.up)), self.down
        )
        return (created * weight[..., None]).sum(-2)


class Layer(nn.Module):
    """Norm before each half."""

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(), attention, norm(), mlp

    def forward(self, x: Any) -> Any:
        """Run it."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def layer_norm() -> nn.Module:
    """Of GPT, BERT and ViT."""
    return nn.LayerNorm(HIDDEN)


class Tokens(nn.Module):
    """Embedding, layers, norm, head: the table itself where it is tied."""

    def __init__(
        self, layer: Callable[[], Layer], norm: Callable[[], nn.Module], tied: bool
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)
        self.positions = nn.Parameter(torch.randn(SEQ, HIDDEN) / 10)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        self.norm = norm()
        self.head = None if tied else nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        """Run it."""
        x = self.table(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x @ self.table.weight.T if self.head is None else self.head(x)


class Vit(nn.Module):
    """Patches, a class token, layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.layers = nn.ModuleList(
            Layer(layer_norm, Attention(False), Mlp(False, "none")) for _ in range(2)
        )
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, images: Any) -> Any:
        """Run it."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(BATCH, 1, HIDDEN), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Residual(nn.Module):
    """Two convolutions with batch norms around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        """Run it."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    """A stem with a max pool, two blocks, a mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 3, 1, 1), nn.MaxPool2d(2)
        self.blocks = nn.Sequential(Residual(8, 16, 1), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Any) -> Any:
        """Run it."""
        return self.head(self.blocks(self.pool(self.stem(images))).mean((2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and across; group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(16, 16, 3, 1, 1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.leave = nn.Conv2d(16, 3, 3, 1, 1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 8), nn.GroupNorm(4, 16)

    def forward(self, images: Any) -> Any:
        """Run it."""
        x = F.silu(self.norm1(self.enter(images)))
        y = F.silu(self.norm2(self.middle(self.down(x))))
        return self.leave(torch.cat([x, self.up(y)], 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gpt": (
        lambda: Tokens(
            lambda: Layer(layer_norm, Attention(True), Mlp(False, "tanh")), layer_norm, True
        ),
        "ids",
    ),
    "llama": (
        lambda: Tokens(
            lambda: Layer(RmsNorm, Attention(True, 2, True), Mlp(True, "")), RmsNorm, False
        ),
        "ids",
    ),
    "bert": (
        lambda: Tokens(
            lambda: Layer(layer_norm, Attention(False), Mlp(False, "none")), layer_norm, False
        ),
        "ids",
    ),
    "moe": (
        lambda: Tokens(lambda: Layer(layer_norm, Attention(True), Experts()), layer_norm, False),
        "ids",
    ),
    "vit": (Vit, "images"),
    "resnet": (ResNet, "images"),
    "unet": (UNet, "pixels"),
}

OPTIMIZERS: dict[str, tuple[dict[str, float], Callable[[Any], Any]]] = {
    "sgd": (
        {"rate": 0.1, "momentum": 0.9, "decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (
        {"rate": 0.01, "decay": 0.01, "epsilon": 1e-3},
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, eps=1e-3),
    ),
    "adamw": (
        {"rate": 0.01, "decay": 0.1, "epsilon": 1e-3},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-3),
    ),
}
"""An epsilon that is not small: a gradient that is zero but for rounding moves a weight little."""


@dataclass
class Case:
    """A model, an optimizer, and the bound of the norm (0: none)."""

    model: str
    optimizer: str
    clip: float

    def batches(self, steps: int) -> Iterator[tuple[Any, Any]]:
        """Inputs and targets."""
        kind = MODELS[self.model][1]
        for _ in range(steps):
            if kind == "ids":
                yield torch.randint(0, VOCAB, (BATCH, SEQ)), torch.randint(0, VOCAB, (BATCH, SEQ))
            else:
                images = torch.randn(BATCH, 3, 16, 16)
                last = (
                    torch.randint(0, 10, (BATCH,)) if kind == "images" else torch.randn_like(images)
                )
                yield images, last


def loss_of(out: Any, targets: Any) -> Any:
    """Cross entropy, or the mean of squares where targets are no classes."""
    if targets.is_floating_point():
        return F.mse_loss(out, targets)
    return F.cross_entropy(out.flatten(0, -2), targets.flatten())


def by_torch(case: Case, model: nn.Module, batches: list[Any]) -> list[float]:
    """Train a model in place; return its losses."""
    optimizer = OPTIMIZERS[case.optimizer][1](model.parameters())
    losses = []
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        if case.clip:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def by_tvm(case: Case, model: nn.Module, batches: list[Any]) -> tuple[list[float], dict[str, Any]]:
    """Train what torch exports; return the losses and the last weights by torch's names."""
    program = torch.export.export(model.eval(), (batches[0][0],))
    mod = from_exported_program(program, keep_params_as_input=True)
    mod, stored = relax.frontend.detach_params(mod)
    names = list(program.graph_signature.parameters)  # buffers become constants
    values = [v.numpy() for v in stored["main"]]
    main = mod["main"]
    order = [str(p.name) for p in main.params][1:]
    loss = "mse" if batches[0][1].is_floating_point() else "cross_entropy"
    step = td.train_step(mod, loss, case.optimizer, clip=case.clip, **OPTIMIZERS[case.optimizer][0])
    fn = step["main"]
    all_names = param_names(fn)
    passed = dict(zip(order, values, strict=True))
    state: dict[str, Any] = {}
    for name, param in zip(all_names[2:], fn.params[2:], strict=True):
        shape = [int(n) for n in param.ty.shape]
        state[name] = passed.get(name, np.zeros(shape, str(param.ty.dtype)))
    vm = relax.VirtualMachine(tvm.compile(step, "llvm"), tvm.cpu())
    updated = [n for n in all_names if n in fn.attrs["dist.training"]["updated"]]
    losses = []
    for x, targets in batches:
        targets = targets if targets.is_floating_point() else targets.int()
        inputs = [x.numpy(), targets.numpy(), *(state[n] for n in all_names[2:])]
        result = list(vm["main"](*(tvm.runtime.tensor(v) for v in inputs)))
        losses.append(float(result[0].numpy()))
        state.update({n: v.numpy() for n, v in zip(updated, result[1:], strict=True)})
    return losses, {n: state[o] for n, o in zip(names, order, strict=True)}


def compared(case: Case, steps: int, seed: int) -> tuple[float, float]:
    """Largest differences: of a loss, relative; of a weight, relative to how far it moved."""
    torch.manual_seed(seed)
    model = MODELS[case.model][0]()
    batches = list(case.batches(steps))
    before = {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
    ours, weights = by_tvm(case, copy.deepcopy(model), batches)
    theirs = by_torch(case, model, batches)
    after = {n: v.detach().numpy() for n, v in model.state_dict().items()}
    apart = 0.0
    for name, value in weights.items():
        moved = np.abs(after[name] - before[name]).max()
        apart = max(apart, float(np.abs(value - after[name]).max() / max(moved, 1e-6)))
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)), apart


def main() -> int:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="with some (0) a rectifier falls on the other side of zero in one of them",
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | optimizer | clip | losses apart | weights apart, of the way they went |")
    print("|--|--|--:|--:|--:|")
    wrong = 0
    for model in MODELS:
        if options.only not in model:
            continue
        for optimizer, clip in (("sgd", 0.0), ("adam", 0.0), ("adamw", 0.0), ("adamw", 0.5)):
            loss, weight = compared(Case(model, optimizer, clip), options.steps, options.seed)
            print(
                f"| {model} | {optimizer} | {clip or '-'} | {loss:.1e} | {weight:.1e} |", flush=True
            )
            wrong += not (loss < BOUND and weight < BOUND)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
