# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parts of a search against all choices that there are: cuts into stages, counts, rows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from tests.planning.search.systems import A100
from tvm_distir.core.solver.problem import INFINITE
from tvm_distir.hardware.auto_sharding.edge_builder import _undominated
from tvm_distir.planning.search.candidate_row import BOUND, SOLVED, CandidateRow
from tvm_distir.planning.search.candidates import Candidate, Enumeration
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.result import SearchResult
from tvm_distir.planning.search.stage_partition import partition_stages, shared_out


def _cuts(count: int, parts: int, least: int) -> list[list[range]]:
    """All cuts of a sequence into parts of some length at least."""
    ends = itertools.combinations_with_replacement(range(count + 1), parts - 1)
    every = [[0, *each, count] for each in ends]
    cuts = [[range(a, b) for a, b in itertools.pairwise(edges)] for edges in every]
    return [cut for cut in cuts if all(len(part) >= least for part in cut)]


@pytest.mark.parametrize("seed", range(40))
def test_a_partition_is_as_cheap_as_any_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    count, parts = rng.randint(1, 7), rng.randint(1, 4)
    times = [rng.randint(0, 20) for _ in range(count)]
    falling = [[rng.randint(1, 9) for _ in range(count)]]
    for _ in range(parts - 1):  # what is in flight is less in each later stage
        falling.append([rng.randint(0, size) for size in falling[-1]])
    for needs, room in (((), 0), (falling, rng.randint(3, 30))):
        fitting = [
            cut
            for cut in _cuts(count, parts, 0)
            if not needs or all(sum(needs[p][i] for i in r) <= room for p, r in enumerate(cut))
        ]
        found = partition_stages(times, parts, needs, room)
        if not fitting:
            assert found is None
            continue
        assert found in fitting
        dearest = [max(sum(times[i] for i in part) for part in cut) for cut in fitting]
        assert max(sum(times[i] for i in part) for part in found) == min(dearest)


@pytest.mark.parametrize("seed", range(30))
def test_stages_on_meshes_of_some_kinds_take_least(seed: int) -> None:
    """``(M - 1) * dearest + sum``, over all cuts and all kinds of meshes of all devices."""
    rng = random.Random(seed)
    count, stages, kinds = rng.randint(2, 5), rng.randint(1, 3), rng.randint(1, 3)
    sizes = [rng.randint(1, 3) for _ in range(kinds)]
    devices, micro = rng.randint(stages, 6), rng.randint(1, 5)
    times = [[rng.randint(1, 20) for _ in range(count)] for _ in range(kinds)]
    needs = [[[rng.randint(1, 9) for _ in range(count)] for _ in range(kinds)]
             for _ in range(stages)]  # fmt: skip
    room = rng.randint(9, 40)
    least = None
    for cut in _cuts(count, stages, 1):
        for chosen in itertools.product(range(kinds), repeat=stages):
            parts = list(zip(cut, chosen, strict=True))
            full = any(sum(needs[s][k][i] for i in r) > room for s, (r, k) in enumerate(parts))
            if full or sum(sizes[k] for k in chosen) != devices:
                continue
            spans = [sum(times[k][i] for i in r) for r, k in parts]
            step = (micro - 1) * max(spans) + sum(spans)
            least = step if least is None else min(least, step)
    found = shared_out(times, sizes, needs, devices, micro, room)
    if least is None or found is None:
        assert found is least is None
        return
    step, shares = found
    spans = [sum(times[share.kind][i] for i in share.layers) for share in shares]
    assert step == least == (micro - 1) * max(spans) + sum(spans)
    assert [i for share in shares for i in share.layers] == list(range(count))
    assert sum(sizes[share.kind] for share in shares) == devices


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_no_other_dominates_stay(seed: int) -> None:
    """One of each group of equal rows, among them those with forbidden places."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (rng.integers(1, 9), rng.integers(1, 4))).astype(np.int64)
    rows[rng.random(rows.shape) < 0.2] = INFINITE
    found = _undominated(rows)
    assert found == sorted(set(found))
    for number, row in enumerate(rows):
        if number in found:
            others = [other for k, other in enumerate(rows) if k != number and k in found]
            assert not any((other <= row).all() for other in others)
            assert not any((o <= row).all() and (o < row).any() for o in rows)
        else:
            assert any((rows[k] <= row).all() for k in found)


@pytest.mark.parametrize("batch", [8, 12, 24])
def test_numbers_of_micro_batches_are_those_that_divide(batch: int) -> None:
    """Given ones of a step as they are; else by samples on each part of ``dp``."""
    sizes, numbers = (1, 2, 3), (2, 4, 5)
    for given in ({"counts": numbers}, {"micro_batches": sizes}):
        rules = Constraints(("pp", "dp"), fixed={"pp": 2}, **given)
        found = {
            (dict(each.axes).get("dp", 1), each.micro_batches)
            for each in Enumeration(rules, 4, A100, batch, stages=True)
        }
        assert found == {
            (2, number if "counts" in given else batch // (2 * number))
            for number in next(iter(given.values()))
            if batch % (2 * number) == 0
        }


def test_the_next_number_of_micro_batches_divides_the_samples_of_a_part() -> None:
    rules = Constraints(("dp",))
    space = Enumeration(rules, 2, A100, 24, stages=True)
    candidate = Candidate((("dp", 2),))  # 12 samples
    seen = []
    while (more := space.with_more_micro_batches(candidate, 1.0)) is not None:
        seen.append(more.micro_batches)
        candidate = more
    assert seen == [2, 3, 4, 6, 12]
    jump = space.with_more_micro_batches(replace(candidate, micro_batches=2), 2.5)
    assert jump is not None and jump.micro_batches == 6
    assert space.with_more_micro_batches(replace(candidate, stages=2), 1.0) is None


def test_constraints_bound_the_sizes_of_axes() -> None:
    """Two of ``tp`` at most, and as many of ``dp`` as are given; one that is absent has one."""
    rules = Constraints(("dp", "tp"), most={"tp": 2}, fixed={"dp": 4})
    space = Enumeration(rules, 8, A100, 24, stages=False)
    assert space.allows({"dp": 4, "tp": 2}) and space.allows({"dp": 4})
    assert not space.allows({"dp": 4, "tp": 4})
    assert not space.allows({"dp": 2, "tp": 2}) and not space.allows({"tp": 2})


def test_words_of_a_candidate_name_what_is_not_usual() -> None:
    plain = Candidate((("dp", 2),))
    assert plain.words == ("dp=2",)
    assert replace(plain, recompute="full").words == ("dp=2", "recompute=full")


def _row(name: str, state: str = SOLVED, time_s: float | None = 2.0) -> CandidateRow:
    return CandidateRow(Candidate(((name, 4),)), state, 1.0, time_s=time_s, peak_bytes=8)


def test_a_result_has_all_rows_and_what_it_was_compared_with() -> None:
    rows = (_row("dp"), _row("tp", BOUND, None))
    base = replace(_row("pp"), why="mine")
    data = SearchResult((), rows, {}, base, True, False).to_dict()
    assert data["baseline"] == base.to_dict() and data["baseline"]["why"] == "mine"
    assert [row["key"] for row in data["rows"]] == [row.candidate.key for row in rows]
    assert data["complete"] is True and "why" not in data
    assert "baseline" not in SearchResult((), rows, {}, None, False, False).to_dict()
    assert "time_s" not in data["rows"][1] and data["rows"][0]["mesh"] == {"dp": 4}


def test_a_search_without_a_plan_says_how_to_go_on() -> None:
    stopped = SearchResult((), (), complete=False)
    assert "use a longer --time-limit" in stopped.to_text()
    assert "--time-limit" not in SearchResult((), (), complete=True).to_text()
