# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The order of a block in which collectives run ahead: each binding once, behind what it needs."""

from __future__ import annotations

import random

import pytest

from tvm_distir.transforms.optimize import collective_schedule
from tvm_distir.transforms.optimize.dependence import BlockNode
from tvm_distir.transforms.optimize.list_schedule import ListSchedule, due_ranks


def _block(rng: random.Random) -> tuple[list[BlockNode], list[int]]:
    """Some bindings, a third of them starts of collectives with their ends; and their times."""
    nodes: list[BlockNode] = []
    spent_ps: list[int] = []

    def add(deps: set[int], time_ps: int, **inputs: object) -> None:
        reads = sorted(deps)
        nodes.append(BlockNode(deps=reads, reads=reads, size_bytes=rng.randint(0, 64), **inputs))
        spent_ps.append(time_ps)
        for dep in reads:
            nodes[dep].readers.append(len(nodes) - 1)

    while len(nodes) < 40:
        deps = {rng.randrange(max(0, len(nodes) - 6), len(nodes)) for _ in range(2) if nodes}
        deps = {d for d in deps if not nodes[d].starts}
        if rng.random() < 0.3:
            add(deps, rng.randint(1, 400), starts=True)
            add({len(nodes) - 1}, 0, done_of=len(nodes) - 1)
        else:
            add(deps, rng.randint(0, 30), leaves=rng.random() < 0.2)
    return nodes, spent_ps


@pytest.mark.parametrize("window", collective_schedule.WINDOWS)
def test_orders_are_orders(window) -> None:
    rng = random.Random(str(window))
    for _ in range(300):
        nodes, spent_ps = _block(rng)
        due = due_ranks(nodes, spent_ps)
        order = ListSchedule(nodes, spent_ps, due, window, {}).run()
        assert sorted(order) == list(range(len(nodes)))
        place = {node: number for number, node in enumerate(order)}
        assert all(place[d] < place[i] for i, node in enumerate(nodes) for d in node.deps)
