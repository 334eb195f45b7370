# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules that torch distributes: DTensor tensor and sequence parallel, FSDP2, HSDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from .cases import Tensors, divided, grads, tensors


class Net(nn.Module):
    """A block of a residual MLP."""

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(F.gelu(self.a(self.norm(x))))


NET_W = {name: tuple(p.shape) for name, p in Net().named_parameters()}
NET_D = {"x": (8, 4, 16)}


def net_reference(p: Tensors, d: Tensors) -> Tensors:
    with torch.device("meta"):
        net = Net()
    return grads((torch.func.functional_call(net, p, (d["x"],)) ** 2).mean(), p)


def dtensor(sequence: bool, bug: str, rank: int) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    net, mesh = Net(), init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    how: dict[str, Any] = {"a": ColwiseParallel(), "b": RowwiseParallel()}
    if sequence:
        how = {
            "norm": SequenceParallel(),
            "a": ColwiseParallel(input_layouts=Shard(1)),
            "b": RowwiseParallel(output_layouts=Shard(1)),
        }
    parallelize_module(net, mesh, how)
    spec = {
        n: (getattr(p, "device_mesh", None), getattr(p, "placements", None))
        for n, p in net.named_parameters()
    }
    local = {
        n: (p.to_local() if isinstance(p, DTensor) else p).detach().requires_grad_()
        for n, p in net.named_parameters()
    }

    def step(p: Tensors, d: Tensors) -> Tensors:
        q = {
            n: v if spec[n][0] is None else DTensor.from_local(v, *spec[n], run_check=False)
            for n, v in p.items()
        }
        y = torch.func.functional_call(net, q, (d["x"],))
        loss = (y**2).sum() / (8 * 4 * 16)
        out = grads(loss, p)
        if sequence and bug != "loss not reduced":
            out["loss"] = fc.all_reduce(loss, "sum", dist.group.WORLD)
        if bug == "norm twice":
            out["grad:norm.weight"] = fc.all_reduce(
                out["grad:norm.weight"], "sum", dist.group.WORLD
            )
        return out

    return step, local, tensors(divided(NET_D, x=(1, 4)) if sequence else NET_D)


def fsdp(shape: tuple[int, ...], names: tuple[str, ...], bug: str, rank: int) -> Any:
    from torch.distributed.fsdp import fully_shard

    net, mesh = Net(), init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(net.a, mesh=mesh)
    fully_shard(net, mesh=mesh)

    def step(p: Tensors, d: Tensors) -> Tensors:
        loss = (net(d["x"]) ** 2).mean()
        (loss * 4 if bug == "sum" else loss).backward()
        return {"loss": loss, **{f"grad:{n}": q.grad.to_local() for n, q in net.named_parameters()}}

    local = {n: q.to_local().detach() for n, q in net.named_parameters()}
    return step, local, tensors(divided(NET_D, x=(0, 4)))


def accumulated_fsdp(bug: str, rank: int) -> Any:
    """Gradients are reduced after the second micro-batch alone."""
    from torch.distributed.fsdp import fully_shard

    net, mesh = Net(), init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    fully_shard(net.a, mesh=mesh)
    fully_shard(net, mesh=mesh)

    def step(p: Tensors, d: Tensors) -> Tensors:
        total = torch.zeros(())
        for i, x in enumerate(d["x"].chunk(2, 1)):
            net.set_requires_gradient_sync(i == 1)
            loss = (net(x) ** 2).mean() / (1 if bug == "not divided" else 2)
            loss.backward()
            total = total + loss.detach()
        return {
            "loss": total,
            **{f"grad:{n}": q.grad.to_local() for n, q in net.named_parameters()},
        }

    local = {n: q.to_local().detach() for n, q in net.named_parameters()}
    return step, local, tensors(divided(NET_D, x=(0, 4)))


def tensor_parallel_fsdp(bug: str, rank: int) -> Any:
    """Tensor parallel modules, whose shards FSDP2 shards."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    net, mesh = Net(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])

    def step(p: Tensors, d: Tensors) -> Tensors:
        loss = (net(d["x"]) ** 2).mean()
        loss.backward()
        out = {f"grad:{n}": q.grad.to_local() for n, q in net.named_parameters()}
        if bug == "reduced twice":
            name = "grad:norm.weight"
            out[name] = fc.all_reduce(out[name], "sum", mesh["tp"].get_group())
        return {"loss": loss, **out}

    local = {n: q.to_local().detach() for n, q in net.named_parameters()}
    return step, local, tensors(divided(NET_D, x=(0, 2)))


BOTH_HINTS = {
    "x": {"dp": 0},
    **{name: {"tp": 0, "dp": 0} for name in ("a.weight", "a.bias")},
    "b.weight": {"tp": 1, "dp": 0},
    **{name: {"dp": 0} for name in ("b.bias", "norm.weight", "norm.bias")},
}
