# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The work list gives what all paths give, at any depth, in linear time."""

import itertools
import random

import pytest
import tvm.testing
from tvm.relax.distributed.transform.one_result import (
    MIXED,
    PRIORITY,
    PRODUCER_TO_CONSUMER,
    SIDEWAYS,
    AxisGraph,
)
from tvm.relax.distributed.transform.work_list import WorkListGraph

SPEC = ("mesh", 0)


def chain(graph, length):
    axes = [(f"v{i}", 0) for i in range(length)]
    graph.join((x, y, PRODUCER_TO_CONSUMER) for x, y in itertools.pairwise(axes))
    return axes


def best_of_all_paths(graph):
    """By axis the greatest priority of the paths to it, found by closure over sets of kinds."""
    reached = {(axis, 0) for axis in graph.sources}
    while True:
        steps = {(y, mask | kind) for x, mask in reached for y, kind in graph.edges[x]}
        if steps <= reached:
            break
        reached |= steps
    axes = {axis for axis, _ in reached}
    return {
        axis: max(PRIORITY.get(mask, MIXED) for other, mask in reached if other == axis)
        for axis in axes
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_greatest_priority_of_all_paths(seed):
    rng = random.Random(seed)
    graph, axes = WorkListGraph(), [(f"v{i}", 0) for i in range(12)]
    kinds = [PRODUCER_TO_CONSUMER, PRODUCER_TO_CONSUMER, SIDEWAYS]
    pairs = [sorted(rng.sample(range(12), 2)) for _ in range(16)]
    graph.join((axes[i], axes[j], rng.choice(kinds)) for i, j in pairs)
    graph.sources = {axes[i]: SPEC for i in rng.sample(range(12), 3)}
    choices = graph.propagate(list(graph.sources))
    expected = best_of_all_paths(graph)
    assert choices == dict.fromkeys(expected, SPEC)
    assert {axis: specs[SPEC] for axis, specs in graph.priorities.items()} == expected


def test_the_recursive_search_gives_the_same_on_a_chain():
    results = []
    for graph in (AxisGraph(is_repaired=True), WorkListGraph()):
        axes = chain(graph, 40)
        graph.sources = {axes[0]: SPEC, axes[9]: ("mesh", 1), axes[25]: SPEC}
        results.append(graph.propagate(list(graph.sources)))
    assert results[0] == results[1]


def test_depth_is_no_limit():
    graph = WorkListGraph()
    axes = chain(graph, 20_000)
    graph.sources = {axes[0]: SPEC}
    assert graph.propagate(axes[:1])[axes[-1]] == SPEC


def test_each_axis_is_visited_a_few_times_for_all_annotations_of_a_spec():
    graph = WorkListGraph()
    axes = chain(graph, 2000)
    graph.sources = dict.fromkeys(axes, SPEC)
    graph.propagate(axes)
    assert len(graph.reached[SPEC]) <= 8 * len(axes)


if __name__ == "__main__":
    tvm.testing.main()
