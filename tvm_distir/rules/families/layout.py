# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that move elements: permute, reshape, broadcast, slice, repeat, pad."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..dims import Shape, product, same
from ..draft import CallShape, Draft
from ..halo import Window, tie_halo
from ..registry import register_sharding_rule

_PINNED = "only the leading part of merged or split dims can be cut in blocks"


@register_sharding_rule("relax.permute_dims")
def permute_dims(call: CallShape) -> Draft:
    """Result dim d is operand dim axes[d]."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    axes = call.integers("axes")
    order = range(ndim)[::-1] if axes is None else [a % ndim for a in axes]
    for d, source in enumerate(order):
        draft.tie({0: source}, {0: d})
    draft.linear((0,))
    return draft


Group = tuple[list[int], list[int]]


def _front(a: Shape, b: Shape, left: list[int], right: list[int]) -> Iterator[Group]:
    """Smallest groups of dims with equal products, from the front; consumes left and right."""
    while left and right:
        found = None
        for total in range(2, len(left) + len(right) + 1):
            for m in range(max(1, total - len(right)), min(len(left), total - 1) + 1):
                k = total - m
                if same(product(a[d] for d in left[:m]), product(b[d] for d in right[:k])):
                    found = (m, k)
                    break
            if found:
                break
        if not found:
            return
        m, k = found
        yield left[:m], right[:k]
        del left[:m], right[:k]


def reshape_groups(a: Shape, b: Shape) -> list[Group]:
    """Pair the dims of two shapes of equal element count into groups of equal products.

    Dims of extent 1 belong to no group. Symbolic extents are matched where the products are
    provably equal, from the front and from the back; what is left is one group (its products
    agree because the element counts do).
    """
    left = [d for d, n in enumerate(a) if not (isinstance(n, int) and n == 1)]
    right = [d for d, n in enumerate(b) if not (isinstance(n, int) and n == 1)]
    groups = list(_front(a, b, left, right))
    back_left, back_right = left[::-1], right[::-1]
    tail = [(x[::-1], y[::-1]) for x, y in _front(a, b, back_left, back_right)]
    if back_left and back_right:
        groups.append((back_left[::-1], back_right[::-1]))
    return groups + tail[::-1]


def _lead(a: Shape, b: Shape, group: Group) -> Any:
    """How many equal blocks the leading dims of a group have in common; None when unknown."""
    left, right = group
    first, second = a[left[0]], b[right[0]]
    if len(left) == len(right) == 1:
        return first if isinstance(first, int) or not isinstance(second, int) else second
    if len(right) == 1:
        return first
    if len(left) == 1:
        return second
    if isinstance(first, int) and isinstance(second, int):
        return math.gcd(first, second)
    return None


def tie_reshape(draft: Draft) -> None:
    """Tie operand 0 to result 0 of any op that keeps the elements in row-major order."""
    a, b = draft.call.ins[0], draft.call.outs[0]
    if any(isinstance(n, int) and n == 0 for n in (*a, *b)):
        draft.default_why = "the tensor is empty"
        return
    draft.default_why = _PINNED
    for group in reshape_groups(a, b):
        size = _lead(a, b, group)
        if size is None:
            continue
        one_to_one = len(group[0]) == len(group[1]) == 1
        draft.tie({0: group[0][0]}, {0: group[1][0]}, size=size, uneven=one_to_one)


@register_sharding_rule(
    "relax.reshape",
    "relax.expand_dims",
    "relax.squeeze",
    "relax.flatten",
    "relax.nn.batch_flatten",
)
def reshape(call: CallShape) -> Draft:
    """Row-major order is kept: the leading dims of each group of merged or split dims are cut."""
    draft = Draft(call)
    tie_reshape(draft)
    draft.linear((0,))
    draft.work(0, "view")
    return draft


@register_sharding_rule("relax.broadcast_to")
def broadcast_to(call: CallShape) -> Draft:
    """Dims of the operand are kept; new dims can be cut without any operand."""
    from .elementwise import tie_broadcast

    draft = Draft(call)
    tie_broadcast(draft, (0,))
    draft.linear((0,))
    return draft


@register_sharding_rule("relax.strided_slice")
def strided_slice(call: CallShape) -> Draft:
    """Dims that are taken whole are kept."""
    draft = Draft(call)
    shape = call.ins[0]
    strides = call.args[4] if len(call.args) > 4 else (1,) * len(call.args[1])
    cut = {}
    for axis, begin, end, stride in zip(*call.args[1:4], strides):
        full = begin == 0 and stride == 1 and isinstance(end, int)
        d = axis % len(shape)
        cut[d] = not (full and isinstance(shape[d], int) and end >= shape[d])
    for d, extent in enumerate(shape):
        if not cut.get(d, False) and same(extent, call.outs[0][d]):
            draft.tie({0: d}, {0: d})
    draft.default_why = "a slice of it is taken"
    draft.linear((0,))
    draft.work(0, in_bytes={0: draft.rule().out_bytes[0]})
    return draft


@register_sharding_rule("relax.repeat")
def repeat(call: CallShape) -> Draft:
    """Repetitions of an element are neighbours: the repeated dim is cut in whole elements."""
    draft = Draft(call)
    axis = call.integers("axis")
    if axis is None:
        if call.ins[0]:
            draft.tie({0: 0}, {0: 0}, size=call.ins[0][0], uneven=False)
        draft.default_why = "the operand is flattened first"
    else:
        for d, extent in enumerate(call.ins[0]):
            changed = d == axis[0] % len(call.ins[0]) and int(call.attrs.repeats) != 1
            if changed and isinstance(extent, int) and extent == 1:
                draft.tie({}, {0: d})
            else:
                draft.tie({0: d}, {0: d}, size=extent, uneven=not changed)
    draft.linear((0,))
    return draft


@register_sharding_rule("relax.tile")
def tile(call: CallShape) -> Draft:
    """Dims that are laid once are kept; a dim of extent 1 is a broadcast."""
    draft = Draft(call)
    shape, out = call.ins[0], call.outs[0]
    repeats = call.integers("repeats") or ()
    for d, extent in enumerate(out):
        own, times = d - len(out) + len(shape), d - len(out) + len(repeats)
        count = repeats[times] if times >= 0 else 1
        if own < 0 or (isinstance(shape[own], int) and shape[own] == 1):
            draft.tie({}, {0: d})
        elif count == 1:
            draft.tie({0: own}, {0: d})
        else:
            why = "its copies follow one another: a block holds parts of several"
            draft.whole("in", 0, own, why)
            draft.whole("out", 0, d, why)
    draft.linear((0,))
    return draft


@register_sharding_rule("relax.flip")
def flip(call: CallShape) -> Draft:
    """The other dims are kept."""
    draft = Draft(call)
    axis = int(call.attrs.axis) % len(call.ins[0])
    for d in range(len(call.ins[0])):
        if d != axis:
            draft.tie({0: d}, {0: d})
    draft.default_why = "it is reversed: blocks change places"
    draft.linear((0,))
    return draft


@register_sharding_rule("relax.nn.pad")
def pad(call: CallShape) -> Draft:
    """Dims without padding are kept, others shift rows. Linear when zeros (copies) are padded."""
    draft = Draft(call)
    widths = call.integers("pad_width") or ()
    constant = str(call.attrs.pad_mode) == "constant"
    for d, (extent, result) in enumerate(zip(call.ins[0], call.outs[0])):
        before, after = widths[2 * d], widths[2 * d + 1]
        if before == after == 0:
            draft.tie({0: d}, {0: d})
            continue
        known = isinstance(extent, int) and isinstance(result, int)
        if constant and known and min(extent, result) > 1:
            tie_halo(draft, d, d, Window(1, 1, 1, before, after), extent, result)
    draft.default_why = "it is padded, not by a constant or not on known rows"
    if not constant or float(call.attrs.pad_value) == 0:
        draft.linear((0,))
    return draft


@register_sharding_rule("relax.tril", "relax.triu")
def triangle(call: CallShape) -> Draft:
    """Batch dims are kept."""
    draft = Draft(call)
    for d in range(len(call.ins[0]) - 2):
        draft.tie({0: d}, {0: d})
    draft.default_why = "what is kept depends on the position"
    draft.linear((0,))
    draft.per_element()
    return draft


@register_sharding_rule("relax.nn.pixel_shuffle")
def pixel_shuffle(call: CallShape) -> Draft:
    """``(N, C r r, H, W) -> (N, C, H r, W r)``: cut in whole result channels, whole pixels."""
    draft = Draft(call)
    source, out = call.ins[0], call.outs[0]
    for d in range(len(source)):
        channel = d == len(source) - 3
        draft.tie({0: d}, {0: d}, size=out[d] if channel else source[d], uneven=d < len(source) - 3)
    draft.linear((0,))
    return draft
