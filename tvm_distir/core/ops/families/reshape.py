# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of reshapes, which keep the row-major order and merge or split dims."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import ir, relax

from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ops.dims import Shape, product, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.padding import ZEROS_KEPT
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()


_SAME = relax_names("expand_dims flatten nn.batch_flatten")
_PINNED = "only the leading part of merged or split dims can be sharded in blocks"


Group = tuple[list[int], list[int]]


def _front(a: Shape, b: Shape, left: list[int], right: list[int]) -> Iterator[Group]:
    """Yield the smallest groups of dims with equal products from the front; empties both lists."""
    while left and right:
        lengths = None
        for total in range(2, len(left) + len(right) + 1):
            for m in range(max(1, total - len(right)), min(len(left), total - 1) + 1):
                k = total - m
                if same(product(a[d] for d in left[:m]), product(b[d] for d in right[:k])):
                    lengths = (m, k)
                    break
            if lengths:
                break
        if not lengths:
            return
        m, k = lengths
        yield left[:m], right[:k]
        del left[:m], right[:k]


def reshape_groups(a: Shape, b: Shape) -> list[Group]:
    """Pair the dims of two shapes of equal element count into groups of equal products.

    Dims of extent 1 belong to no group. Symbolic extents are matched where the products are
    provably equal, from the front and from the back; what is left is a single group (its products
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


def _lead(a: Shape, b: Shape, group: Group) -> int | ir.Expr:
    """Return how many equal blocks the leading dims of a group share; None when unknown."""
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


def reshape_on_shards(cx: LocalCall) -> ir.Call:
    """Reshape to the local shape: the leading dim of a group is sharded, so rows stay together.

    A squeeze without axes would drop a sharded dim whose shard has a single element.
    """
    return relax.op.reshape(cx.operand(0), cx.outs[0].local)


@FAMILY.rule("relax.reshape", "relax.squeeze", local=reshape_on_shards, padding=ZEROS_KEPT)
@FAMILY.rule(*_SAME, local=SAME_OP, padding=ZEROS_KEPT)
def reshape(call: CallShape) -> Draft:
    """Shard the leading dims of each group of merged or split dims; row-major order is kept."""
    draft = Draft(call)
    tie_reshape(draft)
    draft.linear((0,))
    return draft.work(0, "view")
