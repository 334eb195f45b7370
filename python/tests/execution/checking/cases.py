# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe programs of torch beside their references."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A program with its reference.

    ``make(bug, rank)`` is what ``td.trace_ranks`` takes of a rank; ``shapes`` are those of the
    whole parameters and data.
    """

    make: Callable[[str, int], Any]
    reference: Callable[[Tensors, Tensors], Tensors]
    mesh: dict[str, int]
    weights: dict[str, tuple[int, ...]]
    data: dict[str, Any]
    hints: dict[str, dict[str, int]] = field(default_factory=dict)
    micro_batches: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh.values())

    def of(self, bug: str = "") -> Callable[[int], Any]:
        return functools.partial(self.make, bug)

    def single(self, rank: int) -> Any:
        return self.reference, tensors(self.weights, True), tensors(self.data)


def tensors(shapes: dict[str, Any], trained: bool = False) -> Tensors:
    return {
        name: torch.ones(shape, requires_grad=trained) if isinstance(shape, tuple) else shape
        for name, shape in shapes.items()
    }


def divided(shapes: dict[str, Any], **by: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return shapes with some dims divided: ``a=(dim, n)``."""
    result = dict(shapes)
    for name, (dim, n) in by.items():
        shape = list(shapes[name])
        shape[dim] //= n
        result[name] = tuple(shape)
    return result


def grads(loss: torch.Tensor, params: Tensors) -> Tensors:
    found = torch.autograd.grad(loss, list(params.values()))
    return {"loss": loss, **{f"grad:{name}": g for name, g in zip(params, found)}}
