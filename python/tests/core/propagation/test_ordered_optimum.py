# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placements first and orders of axes second, against the best of both together.

``joint_optimum.py --orders`` runs hundreds of modules.
"""

from __future__ import annotations

import pytest

from tests.core.propagation.joint_solver import gaps as gaps_of
from tests.core.propagation.joint_solver import module_of
from tests.core.propagation.ordered_joint import (
    PlacedJoint,
    added_bytes,
    choice_of,
    ordered_gap_of,
)
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.solve.cost import Costs

BYTE = Costs().wire


@pytest.fixture(scope="module")
def gaps():
    return list(gaps_of(ordered_gap_of, 0, 24))


def test_orders_after_placements_cost_less_than_a_byte_more(gaps):
    """Of 24 modules, of which no state was left out; in 13 equal placements differ in orders."""
    assert all(gap.proven for gap in gaps)
    assert {gap.seed for gap in gaps if gap.decided - gap.best >= BYTE} <= {13}


def test_the_sample_has_orders_that_matter(gaps):
    """Also modules in which the cheapest placements allow no orders that cost nothing."""
    assert sum(gap.choices > 0 for gap in gaps) >= 5
    assert any(gap.mesh > gap.added for gap in gaps)
    assert any(gap.added and gap.tried for gap in gaps)


@pytest.mark.parametrize("seed", [13, 172])
def test_an_assignment_is_the_decision_that_it_is_made_of(seed):
    """With private calls (13), and where the mesh's order would cost more (172)."""
    mod = module_of(seed)
    solver = Propagator(mod, Costs())
    decision = solver.run()
    joint = PlacedJoint(solver, decision)
    same = joint.decision(joint.decided())
    assert solver.cost(same).total == solver.cost(decision).total
    ours, again = choice_of(mod, decision), choice_of(mod, same)
    assert added_bytes(again, {}) == added_bytes(ours, {})
