# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tables that one propagation leaves to the next: decisions do not depend on them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tvm_distir import transforms as transform
from tvm_distir.core.passes.propagate.placed_values import PlacedValues
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.propagation.solve import kept
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.propagation.solve.tables import CostTables
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem
from tvm_distir.models import zoo
from tvm_distir.planning.strategies.composition import make_plan

AXES = (Axis(0, 0, 2, "dp"),)
SIZES = {"hidden": 32, "heads": 4, "vocab": 64, "seq": 8}


def annotated(layers, batch, nested):
    mod = zoo.gpt(layers=layers, batch=batch, nested=nested, **SIZES)
    plan = make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    return transform.AnnotateSharding(plan)(mod)


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    monkeypatch.setattr(kept, "_kept", {})


def test_decisions_do_not_depend_on_what_was_decided_before(monkeypatch):
    mods = [annotated(1, 4, 0), annotated(2, 4, 1), annotated(2, 8, 0)]
    fresh = []
    for mod in mods:
        monkeypatch.setattr(kept, "_kept", {})
        fresh.append(transform.PropagateSharding()(mod).script())
    for mod, text in [*zip(mods, fresh), *zip(mods[::-1], fresh[::-1])]:
        assert transform.PropagateSharding()(mod).script() == text
    assert len(kept._kept) == 1


def test_nobody_shares_tables():
    mod = annotated(1, 4, 0)
    single, two = Propagator(mod, Costs()), Propagator(mod, Costs())
    tables = single.assignment.cost_tables
    assert two.assignment.cost_tables is not tables
    single.close()
    three = Propagator(mod, Costs())
    assert three.assignment.cost_tables is tables
    single.close()
    assert not kept._kept


def test_few_and_small_sets_are_kept(monkeypatch):
    for weight in range(kept.MOST_SETS + 2):
        kept.give_back(CostTables(Costs(hold=weight), AXES))
    assert len(kept._kept) == kept.MOST_SETS
    assert kept.take(Costs(hold=0), AXES).size == 0
    last = Costs(hold=kept.MOST_SETS + 1)
    prices = kept.take(last, AXES)
    prices.table([[3, 0], [0, 2]])
    monkeypatch.setattr(kept, "MOST_ENTRIES", 3)
    kept.give_back(prices)
    assert (last, AXES) not in kept._kept


def test_what_is_forgotten_cannot_be_decoded():
    tables = Tables()
    number, _ = tables.intern(np.array([[3, 5], [4, 0]], dtype=np.int64))
    assert tables.entries == 4
    problem = Problem([2, 2], {(0, 1): number})
    before = tables.eliminate(problem)
    assert tables.decode(before, [0, 0]) == [1, 1]
    tables.forget()
    with pytest.raises(IndexError, match="no elimination 0"):
        tables.decode(before, [0, 0])
    assert tables.decode(tables.eliminate(problem), [0, 0]) == [1, 1]


def test_equal_problems_are_eliminated_once():
    tables = Tables()
    number, _ = tables.intern(np.array([[3, 5], [4, 0]], dtype=np.int64))
    problem, equal = Problem([2, 2], {(0, 1): number}), Problem([2, 2], {(0, 1): number})
    first = tables.eliminate(problem)
    assert tables.eliminate(equal).number == first.number
    assert tables.eliminate_all(equal, INFINITE).number == first.number
    assert tables.eliminate(problem, keep=[1]).kept == [1]
    assert tables.eliminate(problem, limit=1).kept == [0, 1]
    assert tables.eliminate_all(equal, 1) is None
    tables.forget()
    assert tables.held == 0
    assert tables.eliminate(problem).number != first.number
    with pytest.raises(ValueError, match="domains"):
        tables.eliminate(Problem([0, 2], {(0, 1): number}))


def test_small_eliminations_stay_with_kept_tables(monkeypatch):
    prices = CostTables(Costs(), AXES)
    number, _ = prices.table([[3, 0], [0, 2]])
    prices.tables.eliminate(Problem([2, 2], {(0, 1): number}))
    kept.give_back(prices)
    assert prices.tables.held > 0
    monkeypatch.setattr(kept, "MOST_HELD", 1)
    kept.give_back(prices)
    assert prices.tables.held == 0


def test_nothing_of_a_propagation_stays():
    mod = annotated(1, 4, 1)
    transform.PropagateSharding()(mod)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is PlacedValues]
