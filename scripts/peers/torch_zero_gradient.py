#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of one transformer layer, torch's joint graph: torch, ours, and torch in float64.

    scripts/peers/torch_zero_gradient.py

The gradient of the keys' bias is zero: attention does not change when all keys move alike. What a
program in float32 gives for it is rounding alone, another one's differs in every digit. All others
differ by rounding too, but of what is not zero. Needs the extra `torch`. Exits with 1 where ours
is farther from float64 than four times torch's float32 is, or the distributed step differs.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tvm
from torch import nn
from torch.export.experimental import _export_forward_backward
from torch.nn.attention import SDPBackend, sdpa_kernel

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.models.frontends import load_weights

WIDTH, HEADS, WORDS, BATCH, LENGTH = 32, 4, 64, 4, 16
FACTOR = 4.0
QUICK = {"kind": "llvm", "opt-level": 0}


class Layer(nn.Module):
    """Embedding, attention with biases of their own, two linear layers, cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor]:
        """The loss."""
        x = self.embed(ids)
        a = self.norm1(x)
        q, k, v = (f(a).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return (F.cross_entropy(self.head(x).flatten(0, 1), expected.flatten()),)


def gradients(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """What autograd gives."""
    layer.zero_grad()
    layer(*args)[0].backward()
    return {name: p.grad.numpy().copy() for name, p in layer.named_parameters()}


def main() -> int:
    """Print the table."""
    torch.manual_seed(0)
    layer = Layer()
    args = tuple(torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        program = _export_forward_backward(torch.export.export(layer, args))
    mod, weights = td.from_exported_program(program), load_weights(program)
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    inputs = [a.numpy() for a in args] + [weights[name] for name in names[len(args) :]]
    narrow, wide = gradients(layer, args), gradients(layer.double(), args)
    targets = [spec.target or "loss" for spec in program.graph_signature.output_specs]

    def size(array: Any) -> float:
        return float(np.abs(array).max())

    with tvm.target.Target(QUICK):
        ours = dict(zip(targets, Reference(mod).run(inputs), strict=True))
        plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
        report = td.verify(mod, plan, inputs=inputs, locate=False)
    print("gradient | largest, float64 | torch, apart from it | ours | ours from torch")
    worst = 0.0
    for name in targets[1:]:
        apart = size(narrow[name] - wide[name]), size(ours[name] - wide[name])
        worst = max(worst, apart[1] / apart[0])
        reported = (size(wide[name]), *apart, size(ours[name] - narrow[name]))
        print(name, *(f"{number:.1e}" for number in reported), sep=" | ")
    part = report.outputs[targets.index("k.bias")].max_rel_diff
    print(f"\nover two devices: equal {report.equal}, k.bias apart by {part:.0%} of itself")
    return 0 if worst <= FACTOR and report.equal else 1


if __name__ == "__main__":
    sys.exit(main())
