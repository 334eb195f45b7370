# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepares operands of windows that slide over sharded dims, with the rows that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_distir.core.ops.windows.halo import Exchange, Window, exchange, windows

from .call import LocalCall
from .halo import with_halo
from .masking import neutral_element

if TYPE_CHECKING:
    from tvm import ir


def halo_dims(cx: LocalCall) -> list[tuple[int, int]]:
    """Return the dims of operand and result that follow a halo factor over several devices."""
    result = []
    for factor in cx.sharding.factors:
        if factor is None or factor.kind != "halo":
            continue
        dim, result_dim = factor.ins[0], factor.outs[0]
        if dim is None or result_dim is None or cx.ins[0].shard.counts[dim] == 1:
            continue
        if (dim, result_dim) not in result:
            cx.check_order(cx.ins[0].shard, dim)
            cx.check_order(cx.outs[0], result_dim)
            result.append((dim, result_dim))
    return result


def planned(cx: LocalCall, dim: int, result_dim: int, window: Window) -> Exchange:
    """Plan the exchange of the first operand for windows that give the first result."""
    shard = cx.ins[0].shard
    return exchange(
        window, shard.global_shape[dim], cx.outs[0].global_shape[result_dim], shard.counts[dim]
    )


def slid(cx: LocalCall, layout: str, kernel: tuple[int, ...], value: Any) -> tuple[Any, list[int]]:
    """Return the first operand with all neighbour rows, and the padding that is left to the op."""
    names = spatial(layout)
    sliding = windows(cx.call.attrs, kernel)
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    x = cx.operand(0)
    for dim, result_dim in halo_dims(cx):
        k = names.index(layout[dim])
        x = with_halo(cx, 0, x, dim, planned(cx, dim, result_dim, sliding[k]), value)
        pads[k] = pads[k + len(names)] = 0
    return x, pads


def spatial(layout: str) -> list[str]:
    """Return the names of the spatial dims of a layout, in order."""
    return [c for c in layout if c not in "NC"]


def lowest(dtype: str) -> Any:
    """Return the value with which a max pool pads: the lowest finite number."""
    if dtype == "bfloat16":
        return np.float32(-3.3895313892515355e38)
    if np.dtype(dtype).kind == "f":
        return np.finfo(dtype).min
    return neutral_element("max", dtype)


def pool_kernel(attrs: ir.Attrs) -> tuple[int, ...]:
    """Return the window of a pool, an extent per spatial dim."""
    kernel = tuple(int(n) for n in attrs.pool_size)
    return kernel * ((len(str(attrs.layout)) - 2) // len(kernel))
