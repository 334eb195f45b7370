# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cuts of a model into stages of even work, against all cuts that there are."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.pipeline import cutting

Numbers = list[int]


def _even(
    monkeypatch: pytest.MonkeyPatch, work: Numbers, sent: Numbers, stages: int, good: list[bool]
) -> Numbers:
    """Cut values with known work, behind which known bytes are sent."""
    monkeypatch.setattr(cutting, "_Work", lambda functions: SimpleNamespace(of=lambda n: work[n]))
    monkeypatch.setattr(cutting, "kept_bytes", lambda live: sent[live])
    bindings = tuple(SimpleNamespace(value=n) for n in range(len(work)))
    flat = SimpleNamespace(bindings=bindings, live=list(range(len(work))))
    return cutting._even(flat, None, stages, good)


def _stage_work(work: Numbers, ends: Numbers) -> Numbers:
    edges = [0, *(end + 1 for end in ends), len(work)]
    return [sum(work[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("seed", range(30))
def test_no_other_cut_is_more_even(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The slowest stage is within a twentieth of the best; of these cuts none is better by the sum
    of the squares of work and of what is sent, relative to the least that can be.
    """
    rng = random.Random(seed)
    count, stages = rng.randint(6, 9), rng.randint(2, 4)
    work = [rng.randint(1, 100) for _ in range(count)]
    sent = [rng.choice((0, 4, 8, 100)) for _ in range(count)]
    good = [rng.random() < 0.8 or n < stages for n in range(count)]
    ends = _even(monkeypatch, work, sent, stages, good)
    places = [n for n in range(count - 1) if good[n]]
    every = list(itertools.combinations(places, stages - 1))
    assert tuple(ends) in every
    bound = min(max(_stage_work(work, list(other))) for other in every)
    assert max(_stage_work(work, ends)) <= cutting.SLACK * bound
    least = min((sent[n] for n in places if sent[n]), default=1)

    def cost(cut: Numbers) -> float:
        parts = np.array(_stage_work(work, cut)) / bound
        return float((parts**2).sum()) + sum(sent[end] for end in cut) / least

    allowed = [
        list(cut) for cut in every if max(_stage_work(work, list(cut))) <= cutting.SLACK * bound
    ]
    assert cost(ends) == pytest.approx(min(map(cost, allowed)))


def test_equal_stages_are_cut_where_least_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values without work may stand on either side of a cut."""
    work, sent = [5, 0, 0, 5, 0, 5], [9, 2, 9, 9, 3, 9]
    assert _even(monkeypatch, work, sent, 3, [True] * 6) == [1, 4]
    assert _even(monkeypatch, work, [0] * 6, 1, [True] * 6) == []


def test_places_that_cannot_be_cut_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [False, True, False, False, True]
    assert _even(monkeypatch, [1] * 5, [1] * 5, 2, good) == [1]
    with pytest.raises(ModelError, match=r"DIST0354 .* at 1 places, 3 stages require 2"):
        _even(monkeypatch, [1] * 5, [1] * 5, 3, good)
