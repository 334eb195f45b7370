# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans of redistributions: executed on NumPy shards, and compared with an exhaustive search."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import pytest

from tests.core.passes import redistribute_harness as h
from tests.core.passes.redistribute_search import FREE, Search
from tests.plain_systems import PLAIN_A100
from tvm_distir.core.ir.placement import P, R, local_shape
from tvm_distir.core.redistribution import planner
from tvm_distir.core.redistribution.planner import Planner, plan_steps
from tvm_distir.core.redistribution.transition import Transition
from tvm_distir.hardware.redistribution_times import RedistributionTimes
from tvm_distir.hardware.systems.system import System
from tvm_distir.support.errors.tree import LoweringError, UsageError


@pytest.mark.parametrize("mesh", h.MESHES, ids=str)
@pytest.mark.parametrize("sizes", [h.EVEN, h.UNEVEN, h.RAGGED], ids=["even", "uneven", "ragged"])
def test_executed_plans_give_the_placement(mesh, sizes):
    """Some of the pairs that scripts/checks/check_redistribution.py runs all of."""
    cases = list(h.all_cases([mesh], [sizes]))
    chosen = cases if len(cases) <= 150 else cases[:: len(cases) // 150]
    plans = Planner()
    for case in chosen:
        steps = plans.plan(*h.request(case)).steps
        assert not h.difference(case, steps), case.text()


def test_a_wrong_step_is_found():
    """The harness sees a step along the wrong dim, and one that takes padding for data."""
    case = h.Case((8, 8), (0,), (1,), (2,), (0, 1))
    (step,) = plan_steps((8, 8), (0,), (1,), (2,))
    assert not h.difference(case, [step])
    assert h.difference(case, [replace(step, gather_dim=1, split_dim=0)])
    # Blocks of the inner axis are not cut further by the outer one: rank 1 would get its row 3.
    case = h.Case((6,), (R, 0), (0, 0), (2, 2), (0, 1, 2, 3))
    (step,) = plan_steps((6,), (R, R), (0, 0), (2, 2))
    assert h.difference(case, [replace(step, axes=(0,))])


def by_bytes(move, _):
    """Four bytes an element on the wire, and the launch."""
    _, elements, fixed, _ = move
    return math.ceil(4 * elements) + fixed


SMALL = [
    ((2,), (7, 2)),
    ((4,), (8, 6)),
    ((2, 2), (6,)),
    ((2, 2), (8, 6)),
    ((2, 2), (5, 9)),
    ((2, 3), (8, 9)),
    ((2, 3), (40, 30)),
    ((2, 2, 2), (5,)),
]


@pytest.mark.parametrize(("mesh", "shape"), SMALL, ids=str)
@pytest.mark.parametrize("bound", [1.0, 4.0])
def test_no_sequence_of_collectives_is_cheaper(mesh, shape, bound):
    """All pairs of placements, partial ones included, within and without much memory."""
    search, plans = Search(shape, mesh), Planner(memory_bound=bound)
    for before, after in itertools.permutations(search.states, 2):
        result = plans.plan(shape, before, after, mesh)
        assert result.cost == search.cheapest(before, after, bound, by_bytes, 4), (before, after)


def test_keys_are_gathered_along_the_axis_that_cuts_them():
    """No exchange over the axis of the batch too is estimated faster than this gather."""
    for system in (PLAIN_A100, "h100", "b200"):
        keys = Planner(RedistributionTimes(System.load(system))).plan(
            (4, 4096, 8, 128), (0, 1), (0, R), (4, 2)
        )
        assert [(step.kind, step.axes) for step in keys.steps] == [("all_gather", (1,))]


@pytest.mark.quick
@pytest.mark.parametrize("mesh", [(2, 4), (4, 8), (2, 2, 4)], ids=str)
def test_no_exchange_is_cheaper_than_a_plain_collective_of_as_many_bytes(mesh):
    for name in ("a100", "h100", "b200"):
        costs = RedistributionTimes(System.load(name))
        ends, devices = ((R,) * len(mesh),) * 2, tuple(range(math.prod(mesh)))
        key = Transition((8,), "float32", *ends, mesh, devices)
        for axes, size in itertools.product([(0,), (1,), (0, 1)], [1 << 10, 1 << 17, 1 << 30]):
            groups = key.groups(axes)
            count = len(groups[0])
            exchange = costs.step("exchange", size * (count - 1) // count, groups)
            plain = [costs.step(kind, size, groups) for kind in ("all_gather", "all_to_all")]
            assert exchange > max(plain)


def test_no_sequence_is_faster_on_a_system():
    """Two nodes of two devices: the same by the times of a system, within a picosecond a step."""
    system = System.load(PLAIN_A100)
    near = replace(system.intra_node, devices_per_node=2, bandwidth_GBps=0.02)
    far = replace(system.inter_node, bandwidth_per_nic_GBps=0.005)
    system = replace(system, intra_node=near, inter_node=far)
    shape, mesh = (40, 30), (2, 2)
    search, plans = Search(shape, mesh), Planner(RedistributionTimes(system))
    ids = {(0,): [[0, 2], [1, 3]], (1,): [[0, 1], [2, 3]], (0, 1): [[0, 1, 2, 3]]}

    def cost(move, state):
        after, elements, _, kind = move
        if kind in ("local_slice", "partial"):
            return FREE
        pairs = list(zip(state, after))
        dims = {d for x, y in pairs if x != y for d in (x, y)}
        moving = kind in ("exchange", "terms")
        cut = dims if kind == "exchange" else {0, 1}
        axes = tuple(a for a, (x, y) in enumerate(pairs) if x != y or (moving and x in cut - {R}))
        k = math.prod(mesh[a] for a in axes)
        result = {
            "all_reduce": elements * k / 2 / (k - 1) if k > 1 else 0,
            "reduce_scatter": elements / (k - 1),
            "exchange": elements,
            "terms": elements,
        }.get(kind, elements * k / (k - 1))
        groups = ids[axes]
        sharing = system.layout(groups).sharing
        wire = "exchange" if moving else kind
        times = [system.collective_time_s(wire, round(4 * result), g, sharing) for g in groups]
        if moving:  # an exchange costs no less than a plain collective of as many bytes
            size = math.ceil(4 * elements * k / (k - 1))
            for plain in ("all_gather", "all_to_all"):
                times += [system.collective_time_s(plain, size, g, sharing) for g in groups]
            for axis in axes if k > max(mesh) else ():  # nor than its share of each axis
                one = ids[(axis,)]
                sharing, size = system.layout(one).sharing, round(4 * elements)
                for plain in ("all_gather", "all_to_all"):
                    times += [system.collective_time_s(plain, size, g, sharing) for g in one]
        return round(1e12 * max(times)) + 8 * moving

    for before, after in itertools.permutations(search.states, 2):
        want = search.cheapest(before, after, 1.0, cost, 4)
        got = plans.plan(shape, before, after, mesh).cost
        assert abs(got - want) <= 4, (before, after)


def kinds(*args):
    return [s.kind for s in plan_steps(*args)]


def test_plans_are_the_natural_ones():
    big = (1024, 1024)
    assert kinds(big, (R, 0), (R, 0), (2, 2)) == []
    assert kinds(big, (0,), (R,), (4,)) == ["all_gather"]
    assert kinds(big, (0,), (1,), (4,)) == ["all_to_all"]
    assert kinds(big, (P,), (R,), (4,)) == ["all_reduce"]
    assert kinds(big, (P,), (1,), (4,)) == ["reduce_scatter"]
    assert kinds(big, (R,), (1,), (4,)) == ["local_slice"]
    assert kinds(big, (P, P), (R, R), (2, 4)) == ["all_reduce"]
    assert kinds(big, (0, R), (0, 0), (2, 4)) == ["local_slice"]
    # One collective over both axes, not one after the other.
    assert kinds(big, (0, 0), (R, R), (2, 4)) == ["all_gather"]
    assert kinds(big, (P, P), (0, 0), (2, 4)) == ["reduce_scatter"]
    assert kinds(big, (0, 0), (1, 1), (2, 4)) == ["all_to_all"]
    # Cut along the other axis before gathering, so that less is gathered.
    assert kinds(big, (0, R), (R, 1), (2, 4)) == ["local_slice", "all_gather"]
    # The same shards on other devices; the major axis gathered under a minor one.
    assert kinds(big, (0, R), (R, 0), (2, 2)) == ["exchange"]
    assert kinds(big, (0, 0), (R, 0), (2, 2)) == ["exchange"]
    assert kinds(big, (0, 1), (1, 0), (2, 2)) == ["exchange"]


def test_an_uneven_dim_over_two_axes():
    """6 rows over 2 x 2 are 2 and 1 in each block of 3: blocks are cut and joined in place."""
    for before, after, kind, axes in (
        ((P, P), (0, 0), "reduce_scatter", (0, 1)),
        ((0, P), (0, 0), "reduce_scatter", (1,)),
        ((0, R), (0, 0), "local_slice", (1,)),
        ((R, R), (0, 0), "local_slice", (0, 1)),
        ((0, 0), (0, R), "all_gather", (1,)),
        ((R, 0), (0, 0), "exchange", (0, 1)),
    ):
        (step,) = plan_steps((6,), before, after, (2, 2))
        assert (step.kind, step.axes) == (kind, axes)


@pytest.mark.parametrize("mesh", [(4,), (2, 2), (2, 2, 2)], ids=str)
def test_no_shard_on_the_way_is_larger_than_the_ends(mesh):
    shape, plans = (16, 8), Planner()
    words = h.placements(2, len(mesh), True)
    pairs = list(itertools.product(words, words))
    for before, after in pairs[:: max(1, len(pairs) // 300)]:
        result = plans.plan(shape, before, after, mesh)
        ends = [math.prod(local_shape(shape, x, mesh)) for x in (before, after)]
        way = [math.prod(local_shape(shape, s.after, mesh)) for s in result.steps]
        assert max([*way, *ends]) == max(ends)
        assert result.peak_bytes == 4 * max(ends)


def test_more_memory_makes_some_plans_cheaper_and_none_dearer():
    shape, mesh = (16, 8), (2, 2)
    tight, loose = Planner(), Planner(memory_bound=None)
    words = h.placements(2, 2, True)
    costs = [
        (tight.plan(shape, a, b, mesh).cost, loose.plan(shape, a, b, mesh).cost)
        for a, b in itertools.product(words, words)
    ]
    assert all(x >= y for x, y in costs)


def test_memory_bounds_that_cannot_be_kept():
    with pytest.raises(UsageError) as bound:
        Planner(memory_bound=0.5)
    assert bound.value.code == "DIST0150"
    plans = Planner(kinds=("all_gather", "local_slice"))
    with pytest.raises(LoweringError) as caught:
        plans.plan((8, 8), (0,), (1,), (2,))
    assert caught.value.code == "DIST0509"
    assert "128 bytes" in caught.value.what
    # With room for the whole tensor there is a way.
    plans = Planner(kinds=("all_gather", "local_slice"), memory_bound=2.0)
    assert [s.kind for s in plans.plan((8, 8), (0,), (1,), (2,)).steps] == [
        "all_gather",
        "local_slice",
    ]
    plans = Planner(kinds=("all_gather", "local_slice"), memory_bound=2.0, memory_bytes=255)
    with pytest.raises(LoweringError, match="255 bytes"):
        plans.plan((8, 8), (0,), (1,), (2,))


def test_a_slow_network_between_nodes_changes_the_plan():
    """An all-gather over both axes runs at the pace of the slower one; one by one only a part."""
    system = System.load(PLAIN_A100)
    far = replace(system.inter_node, bandwidth_per_nic_GBps=0.1, nics_per_node=1)
    slow = replace(system, inter_node=far)
    shape, mesh, ends = (4096, 4096), (2, 8), ((0, 0), (R, R))
    (single,) = Planner().plan(shape, *ends, mesh).steps
    assert single.axes == (0, 1)
    steps = Planner(RedistributionTimes(slow)).plan(shape, *ends, mesh).steps
    assert len(steps) > 1 or steps[0].axes != (0, 1)


def test_each_transition_is_planned_once(monkeypatch):
    created = []

    class Counted(planner.PathSearch):
        def __init__(self, *args):
            created.append(args)
            super().__init__(*args)

    monkeypatch.setattr(planner, "PathSearch", Counted)
    plans = Planner()
    first = plans.plan((8, 8), (0,), (1,), (2,))
    assert plans.plan([8, 8], [0], [1], [2]) is first
    assert len(created) == 1
    plans.plan((8, 8), (0,), (1,), (2,), "float16")
    plans.plan((8, 8), (0,), (1,), (2,), devices=(1, 0))
    assert len(created) == 3


def test_plans_do_not_depend_on_what_was_planned_before():
    cases = [c for i, c in enumerate(h.all_cases([(2, 2, 2)], [h.UNEVEN])) if i % 97 == 0]
    first, other = Planner(), Planner()
    forward = [first.plan(*h.request(c)) for c in cases]
    backward = [other.plan(*h.request(c)) for c in reversed(cases)]
    assert forward == backward[::-1]


def test_planning_is_quick_on_many_axes():
    """Four axes and six dims: too many placements to search all, still planned in a moment."""
    start = time.process_time()
    steps = plan_steps((64,) * 6, (0, 0, 1, P), (2, R, 3, 0), (2, 2, 2, 2))
    assert steps
    assert time.process_time() - start < 20


def test_padding_alone_does_not_forbid_a_way():
    """The middle of the way has 250 x 128 elements, the source 125 x 255: as many shards."""
    steps = plan_steps((250, 509), (P, 1, 0), (0, 1, 1), (2, 2, 2))
    assert [(s.kind, s.after) for s in steps] == [
        ("all_to_all", (P, 1, 1)),
        ("reduce_scatter", (0, 1, 1)),
    ]
    # Ends of 3 x 5 elements; an eighth more where only padding makes it larger.
    key = planner.Transition((5, 5), "float32", (0, R), (R, 0), (2, 2), (0, 1, 2, 3))
    assert [Planner().means.limit_bytes(key, padded) for padded in (False, True)] == [60, 67]
