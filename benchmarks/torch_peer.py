# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Answers for torch DTensor, in a process of its own: a JSON line in, a JSON line out.

Runs in any environment with ``torch``; a benchmark starts it (``peers.py``). Asked
``{"do": "reshard", "shape": ..., "mesh": ..., "before": ..., "after": ...}`` (labels per mesh
axis, -1 replicated, -2 a partial sum) it gives the collectives of ``DTensor.redistribute`` on the
first rank of a fake process group. DTensor gathers and cuts where the CPU backend has no
all-to-all; here its all-to-all is counted as one.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, placement_types
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

WORLD = 8
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}

Found = list[tuple[str, int, int]]
found: Found = []


def size_bytes(x: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return x.numel() * x.element_size()


class Recorder(TorchDispatchMode):
    """Notes (kind, group size, result bytes) of every functional collective."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).split(".")
        if name[0] == "_c10d_functional" and name[1] in KINDS:
            group = _resolve_process_group(args[-1])
            found.append((KINDS[name[1]], group.size(), size_bytes(out)))
        return out


def all_to_all(
    x: torch.Tensor, gather_dim: int, shard_dim: int, mesh: DeviceMesh, mesh_dim: int
) -> torch.Tensor:
    """Stand in for DTensor's all-to-all: notes it, and gives zeros of its result's shape."""
    count = mesh.size(mesh_dim)
    shape = list(x.shape)
    shape[gather_dim] *= count
    shape[shard_dim] //= count
    out = torch.zeros(shape, dtype=x.dtype)
    found.append(("all_to_all", count, size_bytes(out)))
    return out


MESHES: dict[tuple[int, ...], DeviceMesh] = {}


def reshard(shape: list[int], mesh: list[int], before: list[int], after: list[int]) -> Found:
    """Redistribute zeros; returns the collectives."""
    key = tuple(mesh)
    if key not in MESHES:
        if math.prod(mesh) == WORLD:
            MESHES[key] = init_device_mesh("cpu", key)
        else:
            ranks = torch.arange(math.prod(mesh)).reshape(mesh)
            MESHES[key] = DeviceMesh("cpu", ranks)
    words = {-1: Replicate(), -2: Partial()}
    ends = [[words.get(x) or Shard(x) for x in labels] for labels in (before, after)]
    local = list(shape)
    for label, k in zip(before, mesh):
        if label >= 0:
            local[label] = -(-local[label] // k)
    x = DTensor.from_local(
        torch.zeros(local), MESHES[key], ends[0], run_check=False, shape=torch.Size(shape),
        stride=torch.zeros(shape).stride(),
    )  # fmt: skip
    found.clear()
    with Recorder():
        x.redistribute(MESHES[key], ends[1])
    return list(found)


def main() -> None:
    """Answer until there is no question."""
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    placement_types.shard_dim_alltoall = all_to_all
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    print(json.dumps({"torch": torch.__version__}), file=out, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        inputs = (question[k] for k in ("shape", "mesh", "before", "after"))
        print(json.dumps({"collectives": reshard(*inputs)}), file=out, flush=True)


if __name__ == "__main__":
    main()
