# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The work list gives what the recursion gives, at any depth."""

import itertools
import random

import pytest
import tvm.testing
from tvm.relax.distributed.transform.one_result import PRODUCER_TO_CONSUMER, SIDEWAYS, AxisGraph
from tvm.relax.distributed.transform.work_list import WorkListGraph

SPECS = [("mesh", 0), ("mesh", 1)]


def random_graph(graph, seed):
    """Twelve axes, five of which are sources, with random edges."""
    rng = random.Random(seed)
    axes = [(f"v{i}", 0) for i in range(12)]
    kinds = [PRODUCER_TO_CONSUMER, PRODUCER_TO_CONSUMER, SIDEWAYS]
    pairs = [sorted(rng.sample(range(12), 2)) for _ in range(14)]
    graph.join((axes[i], axes[j], rng.choice(kinds)) for i, j in pairs)
    graph.sources = {axes[i]: rng.choice(SPECS) for i in rng.sample(range(12), 5)}
    return graph


@pytest.mark.parametrize("seed", range(64))
def test_priorities_are_those_of_the_recursion(seed):
    results = []
    for graph in (AxisGraph(is_repaired=True), WorkListGraph()):
        random_graph(graph, seed)
        try:
            choices = graph.propagate(list(graph.sources))
        except ValueError as error:
            choices = str(error)
        results.append((choices, dict(graph.priorities)))
    assert results[0] == results[1]


def test_depth_is_no_limit():
    graph, axes = WorkListGraph(), [(f"v{i}", 0) for i in range(20_000)]
    graph.join((x, y, PRODUCER_TO_CONSUMER) for x, y in itertools.pairwise(axes))
    graph.sources = {axes[0]: SPECS[0]}
    assert graph.propagate(axes[:1])[axes[-1]] == SPECS[0]


if __name__ == "__main__":
    tvm.testing.main()
