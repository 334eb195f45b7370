# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What an op costs when every axis has chosen: local work, and what each axis sends inside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.solve.cost import Costs


def split_axes(combination: Sequence[Any]) -> list[int]:
    """Axes along which the op walks a factor."""
    return [a for a, (_, _, factor) in enumerate(combination) if factor is not None]


def talking_axes(rule: Rule, combination: Sequence[Any]) -> list[int]:
    """Axes whose factor sends something inside the op."""
    walking = split_axes(combination)
    return [a for a in walking if rule.factors[combination[a][2]].kind not in ("map", "sum")]


def work(costs: Costs, rule: Rule, combination: Sequence[Any], ranks: Sequence[int]) -> int:
    """Cost of one op.

    FLOPs are shared by all axes that walk a factor; bytes by the axes that shard the tensor. Of a
    table a look-up reads in proportion to its result, at most all that is there.
    Along one axis a halo sends its own bytes once, a statistic (two all-reduces of it) four
    times (n - 1) / n, another reduction (one all-reduce of the results) twice (n - 1) / n.
    """
    walking, flops = split_axes(combination), rule.flops
    for a in walking:
        flops //= ranks[a]
    sizes = list(rule.in_bytes + rule.out_bytes)
    for (needs, gives, _), n in zip(combination, ranks):
        sizes = [b // n if label >= 0 else b for b, label in zip(sizes, (*needs, *gives))]
    sent, launches = 0, 0
    for a in talking_axes(rule, combination):
        factor, n = rule.factors[combination[a][2]], ranks[a]
        rest = math.prod(ranks[b] for b in walking if b != a)
        if factor.kind == "halo":
            sent, launches = sent + factor.comm_bytes // rest, launches + 1
        elif factor.kind == "stat":
            sent, launches = sent + 4 * factor.comm_bytes // rest * (n - 1) // n, launches + 2
        else:
            results = sum(sizes[len(rule.in_bytes) :])
            sent, launches = sent + 2 * results * (n - 1) // n, launches + 1
    moved = sizes[len(rule.in_bytes) :]
    for size, full, read in zip(sizes, rule.in_bytes, rule.work.in_bytes):
        looked_up = rule.work.kernel_class == "gather" and read < full
        moved.append(
            min(size, read * sum(moved[: len(rule.out_bytes)]) // sum(rule.out_bytes))
            if looked_up
            else size
        )
    local = costs.flop * flops + costs.memory * sum(moved)
    return costs.scaled(local + costs.wire * sent + costs.launch * launches)
