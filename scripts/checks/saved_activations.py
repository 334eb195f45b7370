#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the activations of a layer with those that PyTorch saves, as a table.

``python scripts/checks/saved_activations.py`` (with torch): a layer of a Llama in bfloat16. Hooks
count the tensors that PyTorch saves for its backward pass, in eager mode and as the partitioner of
``torch.compile`` divides both passes, which requires no GPU. Predicted are the activations of
``analyze`` under the profiles ``torch-eager`` and ``torch-compile``. The eager RMSNorm of CPUs
consists of several ops that save float32 values, unlike the kernel of GPUs, which the profile has.
"""

from __future__ import annotations

from typing import Any

import tvm_distir as td

HIDDEN, FFN, HEADS, KV_HEADS, TOKENS = 512, 1792, 4, 1, 256
UNIT_BYTES = 2 * TOKENS * HIDDEN
"""The input of a layer in bfloat16."""
FEW, MORE = 4, 6
"""Layers: the difference is what a layer saves."""


def predicted_bytes(profile: str) -> int:
    """Return the bytes of activations of a layer."""
    text = f"zoo:llama?size=tiny,hidden={HIDDEN},ffn={FFN},heads={HEADS},kv_heads={KV_HEADS}"
    text += f",seq={TOKENS},batch=1,dtype=bfloat16"
    stashes = []
    for layers in (FEW, MORE):
        analysis = td.analyze(
            f"{text},layers={layers}", strategy="data_parallel", mesh={"dp": 1}, system="h100",
            kernels=profile, train={"optimizer": "sgd"},
        )  # fmt: skip
        stashes.append(analysis.simulation.lanes[0].account.most["stashes"])
    return (stashes[1] - stashes[0]) // (MORE - FEW)


def torch_layer() -> Any:
    """Return a layer as torchtitan writes it: RMSNorm of torch, causal attention, gated MLP."""
    import torch
    from torch import nn
    from torch.nn import functional

    width = HIDDEN // HEADS

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
            sizes = [HIDDEN, KV_HEADS * width, KV_HEADS * width, HIDDEN]
            self.attention = nn.ModuleList(nn.Linear(HIDDEN, size, bias=False) for size in sizes)
            self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
            self.down = nn.Linear(FFN, HIDDEN, bias=False)
            angles = torch.outer(torch.arange(TOKENS), 10000.0 ** -torch.arange(0, 1, 2 / width))
            self.rotation = torch.polar(torch.ones_like(angles), angles)

        def rotate(self, x: Any) -> Any:
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.rotation).flatten(-2).to(x.dtype)

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            q, k, v = (
                product(y).unflatten(-1, (-1, width)).transpose(1, 2)
                for product in self.attention[:3]
            )
            mixed = functional.scaled_dot_product_attention(
                self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True
            )
            x = x + self.attention[3](mixed.transpose(1, 2).flatten(-2))
            y = self.norms[1](x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    return Layer().to(torch.bfloat16)


def saved_bytes(layer: Any, mode: str) -> int:
    """Return the bytes of tensors, without weights, that a layer saves for its backward pass."""
    import torch

    constant = {t.data_ptr() for t in (*layer.parameters(), layer.rotation)}
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    run = layer
    if mode == "compiled":
        run = torch.compile(layer, backend="aot_eager_decomp_partition")
    storages: dict[int, Any] = {}

    def save(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constant:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        run(x)
    return sum(storage.nbytes() for storage in storages.values())


def main() -> None:
    """Print the table."""
    print("| mode | profile | saved by PyTorch, s b h bytes | predicted | error, % |")
    print("|--|--|--:|--:|--:|")
    for mode, profile in (("eager", "torch-eager"), ("compiled", "torch-compile")):
        saved = 2 * saved_bytes(torch_layer(), mode) / UNIT_BYTES
        predicted = 2 * predicted_bytes(profile) / UNIT_BYTES
        error = 100 * (predicted / saved - 1)
        print(f"| {mode} | `{profile}` | {saved:.1f} | {predicted:.1f} | {error:+.1f} |")


if __name__ == "__main__":
    main()
