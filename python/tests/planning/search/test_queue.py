# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the queue of a search leaves out, without any trial."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from tests.planning.search.systems import QUICK
from tvm_distir.planning.search.candidate_row import BOUND, LEFT, MEMORY, CandidateRow
from tvm_distir.planning.search.candidates import Candidate
from tvm_distir.planning.search.queue import Queue, QueuedCandidate
from tvm_distir.planning.search.search_run import SearchRun


@pytest.mark.parametrize("worst_s", [1e-3, 7.0])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99, 1 - 1e-9, 1.0, 1.1])
def test_a_bound_prunes_only_what_is_no_better(share: float, worst_s: float) -> None:
    """A candidate may be as fast as its bound, so each bound below the worst plan's is tried."""
    trials = SimpleNamespace(system=QUICK, limit=1 << 40, margin=0.1)
    candidate = Candidate((("dp", 4),))
    queued = QueuedCandidate(0.0, candidate.key, share * worst_s, candidate, None)
    row = Queue(trials, None).cut(queued, worst_s)
    assert (row is None) == (share < 1)
    assert row is None or (row.state, row.least_s) == (BOUND, queued.least_s)


class _Queued:
    """Candidates in a list, none of which is pruned."""

    def __init__(self, count: int) -> None:
        self.left = [
            QueuedCandidate(n, candidate.key, 1.0 + n, candidate, None)
            for n, candidate in enumerate(Candidate((("dp", k + 2),)) for k in range(count))
        ]
        self.fill = self.cut = self.saw = lambda *inputs, **more: None

    def __bool__(self) -> bool:
        return bool(self.left)

    def pop(self) -> QueuedCandidate:
        return self.left.pop(0)


@pytest.mark.parametrize("interrupted_at", [0, 1, 3])
def test_an_interrupted_search_lists_all_that_is_left(interrupted_at: int) -> None:
    """What was tried before has its time; the others are left, and none of them is tried."""
    tried: list[str] = []

    def trial(candidate: Candidate, least_s: float, likely_s: float | None) -> tuple[object, ...]:
        if len(tried) == interrupted_at:
            raise KeyboardInterrupt
        tried.append(candidate.key)
        return CandidateRow(candidate, MEMORY, least_s, time_s=2 * least_s), None, None

    state = SearchRun.__new__(SearchRun)
    state.trials = SimpleNamespace(of=trial)
    state.workers, state.folder = SimpleNamespace(present=False), None
    state.queue, state.enumeration = _Queued(4), SimpleNamespace(excluded={})
    state.rows, state.plans, state.top = [], [], 1
    state.complete, state.interrupted = True, False
    state.on_progress, state.ends_s = (lambda *inputs: None), math.inf
    result = state.run()
    assert result.interrupted and not result.complete
    assert len(result.rows) == 4 and len(tried) == interrupted_at
    assert [row.state for row in state.rows] == [MEMORY] * interrupted_at + [LEFT] * (
        4 - interrupted_at
    )


@pytest.mark.parametrize(("stored", "pruned"), [(4300, False), (4400, False), (4404, True)])
def test_what_a_step_stores_on_any_mesh_prunes_meshes_of_as_many_devices(
    stored: int, pruned: bool
) -> None:
    """Four devices of 1000 bytes, and a tenth more; it is known of a mesh that did not fit."""
    trials = SimpleNamespace(
        system=QUICK, limit=1000, margin=0.1, source=SimpleNamespace(train=None),
        constraints=SimpleNamespace(recompute=("none",)),
    )  # fmt: skip
    enumeration = SimpleNamespace(
        is_open=lambda candidate: False, with_more_micro_batches=lambda candidate, factor: None
    )
    queue = Queue(trials, enumeration)
    first, second = Candidate((("dp", 4),)), Candidate((("dp", 2), ("tp", 2)))
    seen = CandidateRow(first, MEMORY, 1.0, time_s=2.0, peak_bytes=1500, whole_bytes=stored)
    queue.saw(QueuedCandidate(0.0, first.key, 1.0, first, None), seen, 9.0)
    row = queue.cut(QueuedCandidate(0.0, second.key, 3.0, second, None), 9.0)
    assert (row is not None) == pruned
    if row is not None:
        assert (row.state, row.candidate, row.least_s) == (MEMORY, second, 3.0)
        assert row.needs_bytes == stored // 4 and "stores at least" in row.why
