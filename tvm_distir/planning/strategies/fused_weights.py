# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the segments of fused weights, such as query, key and value in one, by their consumers.

The result of a fused projection is taken apart by a split, or by attention that takes all three at
once. Along the way it is reshaped to heads, and its bias is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import static_shape, tensor_type

from .consumers import Consumers
from .readers import SAME, is_bias_add
from .transformer_weights import KnownWeight

ATTENTION = "attention_with_fused_qkv"
"""End of the names of packed functions that take query, key and value in one."""
_MOST_STEPS = 32


@dataclass(frozen=True)
class FusedSegments:
    """Segments of the results of a fused projection.

    Attributes
    ----------
    sizes : tuple of int
        The extents of the segments, in columns of the result. A single one: each head, say, has its
        query, key and value together, so that contiguous shards are right.
    unit : int
        How many columns belong together, those of a head; 1 where that is not known.
    """

    sizes: tuple[int, ...]
    unit: int

    def divided_by(self, count: int) -> bool:
        """Return whether devices can have equal parts of every segment, of whole units."""
        return all(size % (count * self.unit) == 0 for size in self.sizes)


def fused_segments(weight: KnownWeight, consumers: Consumers) -> FusedSegments | None:
    """Return the segments of a fused weight, or of its bias; None where they are not known."""
    shape = weight.parameter.shape or ()
    collected: set[FusedSegments] = set()
    for use in weight.uses:
        dim = len(shape) - 1 if weight.is_bias else use.kept
        if dim is None or tensor_type(use.result.ty) is None:
            return None
        width = (static_shape(use.result.ty) or (0,))[-1]
        if not isinstance(width, int) or not isinstance(shape[dim], int) or width < 1:
            return None
        segments = _taken_apart(use.function, use.result, width, consumers)
        if segments is None:
            return None
        collected.add(segments)
    return collected.pop() if len(collected) == 1 else None


def _taken_apart(
    function: str, result: Any, width: int, consumers: Consumers
) -> FusedSegments | None:
    """Follow a result of ``width`` columns to where it is taken apart."""
    pending = [(result, len(static_shape(result.ty) or ()) - 1, 1)]
    for _ in range(_MOST_STEPS):
        if not pending:
            return None
        var, axis, unit = pending.pop(0)
        for bound, value, position in consumers.readers(function, var):
            sizes = _split_sizes(value, bound, var, axis, unit)
            if sizes:
                return FusedSegments(sizes, unit)
            if _is_split(value) and int(value.attrs.axis) % len(static_shape(var.ty) or ()) > axis:
                return FusedSegments((width,), unit)
            pending += _next(var, bound, value, position, axis, unit, width)
    return None


def _is_split(value: Any) -> bool:
    return isinstance(value, ir.Call) and getattr(value.op, "name", "") == "relax.split"


def _split_sizes(value: Any, bound: Any, var: Any, axis: int, unit: int) -> tuple[int, ...]:
    """Return the extents of what an expression takes apart along the axis; empty: it does not."""
    shape = static_shape(var.ty) or ()
    if _is_split(value) and int(value.attrs.axis) % len(shape) == axis:
        extents = [(static_shape(ty) or ())[axis] for ty in bound.ty.fields[:]]
        return tuple(n * unit for n in extents) if all(isinstance(n, int) for n in extents) else ()
    if isinstance(value, ir.Call) and axis == len(shape) - 2 and _attends(value):
        queries, heads = (static_shape(bound.ty) or (0, 0))[-2], shape[axis]
        if isinstance(queries, int) and isinstance(heads, int) and (heads - queries) % 2 == 0:
            keys = (heads - queries) // 2
            return (queries * unit, keys * unit, keys * unit)
    return ()


def _attends(call: ir.Call) -> bool:
    """Return whether a call is attention that takes query, key and value in one."""
    name = call.args[0].global_symbol if isinstance(call.args[0], relax.ExternFunc) else ""
    return str(name).endswith(ATTENTION)


def _next(
    var: Any, bound: Any, value: Any, position: int, axis: int, unit: int, width: int
) -> Iterator[tuple[Any, int, int]]:
    """Yield the images of a value, with the axis and unit of its columns."""
    if isinstance(value, relax.Var):
        yield bound, axis, unit
        return
    name = getattr(value.op, "name", "") if isinstance(value, ir.Call) else ""
    if position != 0 and not (name == "relax.add" and position >= 0):
        return
    if name in SAME or (name == "relax.add" and is_bias_add(value, position)):
        yield bound, axis, unit
    elif name == "relax.reshape":
        before, after = static_shape(var.ty) or (), static_shape(bound.ty) or ()
        if all(isinstance(n, int) for n in before[axis:]):
            for dim in range(len(after)):
                known = all(isinstance(n, int) for n in after[dim:])
                if known and math.prod(after[dim:]) == math.prod(before[axis:]) and after[dim] > 1:
                    yield bound, dim, width // int(after[dim])
                    return
