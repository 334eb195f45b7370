# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose which part of a reduced value each device sends to another mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir

from tvm_distir.core import (
    Labels,
    blocks_fault,
    bounds_of,
    call_axes,
    element_type,
    local_shape,
    mesh_key,
    parse_placement,
    size_bytes,
    wire_bytes,
)


def received_elements(
    shape: tuple[int, ...], src: tuple[Any, Labels], dst: tuple[Any, Labels]
) -> list[int]:
    """Return the elements that each device of ``dst`` receives from others in a transfer.

    Parameters
    ----------
    shape : tuple of int
        Whole shape.
    src, dst : (mesh key, labels)
    """
    (sizes, devices), labels = src
    low, high = bounds_of(shape, labels, sizes)
    has = {device: (low[i], high[i]) for i, device in enumerate(devices)}
    (sizes, devices), labels = dst
    wanted = bounds_of(shape, labels, sizes)
    counts = []
    for device, start, stop in zip(devices, *wanted):
        local = 0
        if device in has:
            first, last = has[device]
            overlap = zip(start.tolist(), stop.tolist(), first.tolist(), last.tolist())
            local = math.prod(max(0, min(b, d) - max(a, c)) for a, b, c, d in overlap)
        counts.append(math.prod((stop - start).tolist()) - local)
    return counts


def dim_to_scatter(reduction: ir.Call, send: ir.Call) -> int | None:
    """Return the dim to scatter along when a value is reduced only to be sent.

    Parameters
    ----------
    reduction : Call
        ``R.dist.all_reduce``.
    send : Call
        ``R.dist.send`` of its result.

    Returns
    -------
    dim : int or None
        None where no device of the two meshes would send or receive less.
    """
    axes, attrs = call_axes(reduction), send.attrs
    here, there = mesh_key(attrs["device_mesh"]), mesh_key(attrs["peer_mesh"])
    shape = tuple(int(n) for n in attrs["shape"])
    labels, peer = (parse_placement(str(attrs[k])) for k in ("placement", "peer_placement"))
    count = math.prod(here[0][a] for a in axes)
    dtype = element_type(reduction.ty)

    def price(kind: str, given: Labels) -> tuple[int, int]:
        """Return the most elements that one device moves, and the total."""
        part = size_bytes(tuple(local_shape(shape, given, here[0])), dtype)
        reduced = wire_bytes(kind, part, count)
        moved = [
            size_bytes((n,), dtype) for n in received_elements(shape, (here, given), (there, peer))
        ]
        return reduced + max(moved), reduced * len(here[1]) + sum(moved)

    best, chosen = price("all_reduce", labels), None
    for dim in sorted(range(len(shape)), key=lambda d: d not in peer):
        given = _scattered(shape, labels, here[0], axes, dim)
        if given is None:
            continue
        cost = price("reduce_scatter", given)
        if cost[0] < best[0] and cost[1] <= best[1]:
            best, chosen = cost, dim
    return chosen


def _scattered(
    shape: tuple[int, ...], labels: Labels, mesh: Sequence[int], axes: Sequence[int], dim: int
) -> Labels | None:
    """Return the placement after an even scatter without padding, or None."""
    if blocks_fault(labels, axes, dim):
        return None
    given = tuple(dim if a in axes else x for a, x in enumerate(labels))
    whole, part = (math.prod(local_shape(shape, x, mesh)) for x in (labels, given))
    return given if part * math.prod(mesh[a] for a in axes) == whole else None
