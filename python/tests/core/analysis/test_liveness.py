# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Last reads and live bytes, against a walk that looks at every step anew."""

from __future__ import annotations

import random

import pytest

from tvm_distir.core.analysis.liveness import last_reads, live_bytes


@pytest.mark.parametrize("seed", range(20))
def test_random_functions_agree_with_a_search_through_all_steps(seed: int) -> None:
    """A buffer is live from its step to the last that reads it, results to the end."""
    rng = random.Random(seed)
    steps = rng.randint(1, 12)
    reads = [
        [rng.randrange(n) for _ in range(rng.randint(0, 3))] if n else [] for n in range(steps)
    ]
    results = rng.sample(range(steps), rng.randint(0, steps))
    sizes = [rng.randint(0, 9) for _ in range(steps)]
    last = last_reads(((n, *read) for n, read in enumerate(reads)), results)
    expected = []
    for step in range(steps):
        later = [buffer for read in reads[step:] for buffer in read]
        alive = [n for n in range(step + 1) if n == step or n in later or n in results]
        expected.append(sum(sizes[n] for n in alive))
    result = live_bytes(range(steps), [last[n] for n in range(steps)], sizes, steps)
    assert result.tolist() == expected


def test_results_are_read_after_all_steps() -> None:
    assert last_reads([["a"], ["a", "b"]], ["a"]) == {"a": 2, "b": 1}
    assert last_reads([], ["a"]) == {"a": 0}


def test_a_size_may_be_that_of_all_buffers() -> None:
    assert live_bytes([0, 1], [1, 9], 4, 3).tolist() == [4, 8, 4]
    assert live_bytes([], [], 4, 0).tolist() == []
