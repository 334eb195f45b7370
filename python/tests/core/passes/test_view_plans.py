# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans of redistributions between views of a mesh, executed on NumPy shards."""

from __future__ import annotations

import pytest

from tests.core.passes import redistribute_harness as h
from tvm_distir.core.ir.views import View, labels_on
from tvm_distir.core.redistribution.costs import RingCosts
from tvm_distir.core.redistribution.planner import Planner


@pytest.mark.parametrize(
    ("mesh", "shape", "every"),
    [((2, 2), (8, 12), 2), ((2, 3), (7, 5), 2), ((2, 2, 2), (8, 24), 80), ((2, 3, 2), (11,), 12)],
)
def test_plans_between_views_are_right_and_cost_no_more(mesh, shape, every):
    """Executed; and compared with the plan on one view where that can state both ends."""
    planner, own = Planner(), tuple(range(len(mesh)))
    for request in list(h.view_requests(shape, mesh))[::every]:
        plan = planner.plan_views(request)
        assert not h.view_difference(request, plan.steps)
        view = View(request.family, own)
        before, after = (labels_on(view, x) for x in (request.before, request.after))
        if before is not None and after is not None:
            assert plan.cost <= planner.plan(shape, before, after, mesh).cost


class Unbounded:
    """Costs in bytes without a lower bound of the rest of a path: the search is exhaustive."""

    def step(self, kind, payload_bytes, groups):
        return RingCosts().step(kind, payload_bytes, groups)

    def floor(self, received_bytes):
        return 0


@pytest.mark.parametrize(
    ("mesh", "shape", "every"),
    [((2, 3), (7, 5), 10), ((2, 2, 2), (8, 24), 240), ((2, 3, 2), (11,), 48)],
)
def test_bounds_of_the_search_leave_the_cheapest_plan(mesh, shape, every):
    """Partial sums at either end included."""
    bounded, exhaustive = Planner(), Planner(Unbounded())
    for request in list(h.view_requests(shape, mesh))[::every]:
        assert bounded.plan_views(request).cost == exhaustive.plan_views(request).cost
