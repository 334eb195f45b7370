# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tandem repeats against a search of all stretches and periods."""

from __future__ import annotations

import random

import numpy as np

from tvm_distir.transforms.outline.repeats import Run, occurrences, tandem_runs


def all_runs(word: list[int], least_period: int) -> set[Run]:
    """Every stretch that repeats itself and cannot be made longer, of every period."""
    result = set()
    for period in range(least_period, len(word) // 2 + 1):
        i = 0
        while i + period < len(word):
            j = i
            while j + period < len(word) and word[j] == word[j + period]:
                j += 1
            if j - i >= period:
                result.add(Run(i, j + period, period))
            i = max(j, i + 1)
    return result


def is_primitive(word: list[int], run: Run) -> bool:
    """Whether a run's period is not itself a repetition of something shorter."""
    part = word[run.start : run.start + run.period]
    shorter = (n for n in range(1, run.period) if run.period % n == 0)
    return all(part != part[:n] * (run.period // n) for n in shorter)


def random_word(draw: random.Random) -> list[int]:
    def some(most: int) -> list[int]:
        return [draw.randint(0, 3) for _ in range(draw.randint(1, most))]

    return some(9) + some(8) * draw.randint(1, 6) + some(9) + some(5) * draw.randint(1, 4)


def test_all_primitive_runs_are_found_and_no_others() -> None:
    draw = random.Random(7)
    primitive = 0
    for _ in range(400):
        word = random_word(draw)
        want = all_runs(word, 3)
        have = set(tandem_runs(np.asarray(word), 3, 2))
        assert have <= want
        missing = {run for run in want - have if is_primitive(word, run)}
        assert not missing, (word, missing)
        primitive += len(have)
    assert primitive > 200


def test_least_count() -> None:
    word = np.asarray([9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 8])
    assert tandem_runs(word, 4, 2) == [Run(1, 11, 4)]
    assert Run(1, 11, 4).count == 2
    assert tandem_runs(word, 4, 3) == []
    assert tandem_runs(word, 5, 2) == []


def test_occurrences() -> None:
    draw = random.Random(3)
    for _ in range(200):
        word, pattern = random_word(draw), random_word(draw)[: draw.randint(1, 3)]
        count = len(pattern)
        want = [i for i in range(len(word) - count + 1) if word[i : i + count] == pattern]
        assert occurrences(np.asarray(word), np.asarray(pattern)) == want
