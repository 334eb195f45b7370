# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Functions with gradients by which programs communicate."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc


class CopyTo(torch.autograd.Function):
    """The identity, whose gradients are summed over a group."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class ReduceFrom(torch.autograd.Function):
    """The sum over a group, whose gradient is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


class GatherRows(torch.autograd.Function):
    """The rows of all ranks, whose gradients are reduced and scattered."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any, kind: str) -> Any:
        ctx.group, ctx.kind = group, kind
        return fc.all_gather_tensor(x, 0, group)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return fc.reduce_scatter_tensor(g, ctx.kind, 0, ctx.group), None, None


class ScatterRows(torch.autograd.Function):
    """The sum over a group, scattered by rows; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return fc.reduce_scatter_tensor(x, "sum", 0, group)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return fc.all_gather_tensor(g, 0, ctx.group), None


def turned(x: torch.Tensor, by: int) -> torch.Tensor:
    """Return the value of the rank that is some ranks before this one in a ring."""
    rank, n = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (rank + by) % n),
        dist.P2POp(dist.irecv, got, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


class Turn(torch.autograd.Function):
    """The value of another rank of a ring, whose gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Any, by: int) -> Any:
        ctx.by = by
        return turned(x, by)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return turned(g, -ctx.by), None
