# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The forty programs of ``half_precision.py``: functions of PyTorch, JAX and ONNX with operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.nn import functional as F

F16 = ("float16",)
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Operand:
    """A tensor: floats of a scale, or whole numbers below a bound."""

    shape: tuple[int, ...]
    scale: float = 1.0
    below: int = 0


@dataclass(frozen=True)
class Program:
    """A program of a framework.

    Attributes
    ----------
    name : str
        Unique.
    framework : str
        ``torch``, ``jax`` or ``onnx``; ``step`` is a training step of a PyTorch module.
    terms : int
        The most terms that an element of a sum has.
    make : callable
        The function of tensors; ONNX: the op and its attributes; a step: the class of the module.
    operands : tuple of Operand
        A step has its weights behind these, which the module draws.
    dtypes : tuple of str
        The types in which the framework has the ops.
    """

    name: str
    framework: str
    terms: int
    make: Any
    operands: tuple[Operand, ...]
    dtypes: tuple[str, ...] = HALVES


def _by(*shape: int, terms: int = 1, scale: float = 1.0) -> Operand:
    """Weights whose products with operands of a scale have a sum that float16 can hold."""
    return Operand(shape, min(1.0, 10 / scale) / math.sqrt(terms))


def _products() -> list[Program]:
    def torch_program(name: str, terms: int, make: Callable[..., Any], *operands: Operand) -> None:
        found.append(Program(name, "torch", terms, make, operands))

    found: list[Program] = []
    for terms, scale in ((64, 1e3), (1024, 1.0), (8192, 1e-3), (8192, 1e3)):
        x, w = Operand((8, terms), scale), _by(32, terms, terms=terms, scale=scale)
        torch_program(f"linear {scale:g}", terms, F.linear, x, w)
    x, w = Operand((8, 4096)), _by(32, 4096, terms=4096)
    torch_program("linear with a bias", 4096, F.linear, x, w, Operand((32,)))
    x, w = Operand((4, 16, 2048), 1e-3), _by(4, 2048, 16, terms=2048)
    torch_program("batched product", 2048, torch.matmul, x, w)
    x, w = Operand((4, 256, 8)), _by(4, 256, 16, terms=1024)
    torch_program("einsum bki,bkj->ij", 1024, lambda a, b: torch.einsum("bki,bkj->ij", a, b), x, w)
    x, up, down = Operand((8, 512)), _by(1024, 512, terms=512), _by(64, 1024, terms=1024)
    torch_program(
        "MLP, GELU", 1024, lambda a, b, c: F.linear(F.gelu(F.linear(a, b)), c), x, up, down
    )

    def gated(a: Any, gate: Any, up: Any, down: Any) -> Any:
        return F.linear(F.silu(F.linear(a, gate)) * F.linear(a, up), down)

    torch_program("MLP, gated", 1024, gated, x, up, up, down)

    def experts(a: Any, w: Any, gates: Any) -> Any:
        return torch.einsum("te,teo->to", gates.softmax(-1), torch.einsum("ti,eio->teo", a, w))

    x, w, gates = Operand((16, 1024)), _by(4, 1024, 32, terms=1024), Operand((16, 4))
    torch_program("experts", 1024, experts, x, w, gates)
    heads = tuple(Operand((1, 4, 512, 64)) for _ in range(3))
    torch_program("attention", 512, F.scaled_dot_product_attention, *heads)

    def causal(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch_program("causal attention", 512, causal, *heads)
    x, w = Operand((2, 256, 20)), _by(16, 256, 3, terms=768)
    torch_program("conv1d", 768, lambda a, b: F.conv1d(a, b, padding=1), x, w)
    x, w = Operand((1, 256, 8, 8), 1e3), _by(16, 256, 3, 3, terms=2304, scale=1e3)
    torch_program("conv2d", 2304, lambda a, b: F.conv2d(a, b, padding=1), x, w)
    x, w = Operand((1, 64, 8, 8)), _by(64, 16, 3, 3, terms=144)
    torch_program("grouped conv2d", 144, lambda a, b: F.conv2d(a, b, groups=4), x, w)
    x, w = Operand((1, 512, 5, 5)), _by(512, 16, 3, 3, terms=4608)
    torch_program("transposed conv2d", 4608, lambda a, b: F.conv_transpose2d(a, b), x, w)
    ids, table, w = Operand((4, 16), below=64), Operand((64, 512)), _by(32, 512, terms=512)
    torch_program(
        "embedding and linear", 512, lambda i, t, b: F.linear(F.embedding(i, t), b), ids, table, w
    )
    return found


def _reductions() -> list[Program]:
    def torch_program(name: str, terms: int, make: Callable[..., Any], *operands: Operand) -> None:
        found.append(Program(name, "torch", terms, make, operands))

    found: list[Program] = []
    wide, width = Operand((4, 8192)), Operand((4096,))
    torch_program("sum", 8192, lambda a: a.sum(-1), Operand((4, 8192), 1e-3))
    torch_program("mean", 8192, lambda a: a.mean(-1), Operand((4, 8192), 1e3))
    torch_program("variance", 8192, lambda a: a.var(-1), wide)
    torch_program("softmax", 8192, lambda a: a.softmax(-1), wide)
    torch_program("log-softmax", 8192, lambda a: a.log_softmax(-1), wide)
    torch_program("cumulative sum", 4096, lambda a: a.cumsum(-1), Operand((4, 4096)))

    def layer_norm(a: Any, g: Any, b: Any) -> Any:
        return F.layer_norm(a, (4096,), g, b)

    torch_program("layer norm", 4096, layer_norm, Operand((8, 4096), 1e3), width, width)

    def rms_norm(a: Any, g: Any) -> Any:
        return F.rms_norm(a, (4096,), g, eps=1e-5)

    torch_program("RMS norm", 4096, rms_norm, Operand((8, 4096)), width)
    planes, channels = Operand((2, 32, 16, 16)), Operand((32,))
    torch_program(
        "group norm", 2048, lambda a, g, b: F.group_norm(a, 4, g, b), planes, channels, channels
    )
    torch_program("average pool", 256, lambda a: F.avg_pool2d(a, 16), planes)
    targets = Operand((2048,), below=16)
    torch_program("cross-entropy", 2048, F.cross_entropy, Operand((2048, 16)), targets)
    torch_program("mean squared error", 8192, F.mse_loss, Operand((8192,)), Operand((8192,)))

    def scatter(a: Any, i: Any, u: Any) -> Any:
        return a.index_add(0, i, u)

    rows, at = Operand((2048, 8), 0.1), Operand((2048,), below=4)
    torch_program("scattered rows", 512, scatter, Operand((4, 8)), at, rows)
    return found


def _jax_programs() -> list[Program]:
    def product(a: Any, b: Any) -> Any:
        return a @ b

    def block(x: Any, w: Any, g: Any) -> Any:
        scores = jnp.einsum("btd,bsd->bts", x @ w, x) / math.sqrt(x.shape[-1])
        mixed = jax.nn.softmax(scores, -1) @ x
        return mixed * g + jnp.mean(x, -1, keepdims=True)

    x, w = Operand((8, 8192)), _by(8192, 16, terms=8192)
    found = [
        Program("product", "jax", 8192, product, (x, w)),
        Program("sum", "jax", 8192, lambda a: jnp.sum(a, -1), (Operand((4, 8192), 1e-3),)),
        Program("attention", "jax", 256, block,
                (Operand((2, 128, 256)), _by(256, 256, terms=256), Operand((256,)))),
    ]  # fmt: skip
    return found


def _onnx_programs() -> list[Program]:
    x, w = Operand((8, 4096)), _by(4096, 16, terms=4096)
    images, kernels = Operand((1, 256, 8, 8)), _by(16, 256, 3, 3, terms=2304)
    norm = (Operand((8, 2048)), Operand((2048,)), Operand((2048,)))
    return [
        Program("MatMul", "onnx", 4096, ("MatMul", {}), (x, w), F16),
        Program("Conv", "onnx", 2304, ("Conv", {}), (images, kernels), F16),
        Program("ReduceMean", "onnx", 4096, ("ReduceMean", {"axes": [1]}), (x,), F16),
        Program("LayerNormalization", "onnx", 2048, ("LayerNormalization", {}), norm, F16),
    ]


class Deep(nn.Module):
    """Two linear layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(256, 512), nn.LayerNorm(512)
        self.down = nn.Linear(512, 16)

    def forward(self, x: Any) -> Any:
        """Return scores ``(B, 16)``."""
        return self.down(F.gelu(self.norm(self.up(x))))


class Words(nn.Module):
    """Few words, which occur often, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 64), nn.Linear(64, 8)

    def forward(self, ids: Any) -> Any:
        """Return scores ``(B, 8)``."""
        return self.head(self.table(ids))


class Images(nn.Module):
    """A convolution and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        """Return scores ``(B, 8)``."""
        return self.head(F.adaptive_avg_pool2d(F.gelu(self.conv(x)), 1).flatten(1))


def _steps() -> list[Program]:
    def step(name: str, terms: int, model: Any, operand: Operand, classes: int) -> Program:
        targets = Operand((operand.shape[0],), below=classes)
        return Program(name, "step", terms, model, (operand, targets))

    return [
        step("MLP with a norm", 1024, Deep, Operand((1024, 256)), 16),
        step("embedding", 2048, Words, Operand((2048,), below=4), 8),
        step("convolution", 8192, Images, Operand((32, 16, 16, 16)), 8),
    ]


def programs() -> list[Program]:
    """Return all programs."""
    return [*_products(), *_reductions(), *_jax_programs(), *_onnx_programs(), *_steps()]
