# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the queue of a search leaves out, without any trial."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.planning.search.systems import QUICK
from tvm_distir.planning.search.candidates import Candidate
from tvm_distir.planning.search.queue import Queue, QueuedCandidate
from tvm_distir.planning.search.result import BOUND


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
