# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Costs of changes of form, and the route of a value to all forms it is wanted in."""

from __future__ import annotations

import itertools

import pytest

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.solve.conversions import ReshardPath
from tvm_distir.core.propagation.solve.cost import Conversions, Costs
from tvm_distir.core.solver.problem import INFINITE
from tvm_distir.hardware.cost_weights import costs_of_axes, costs_of_system
from tvm_distir.hardware.systems.system import System

BYTES, RANKS = 1 << 20, 4
FREE = Costs(launch=0, slice=0, partial=0)


def test_ring_formulae():
    """Wire bytes of each conversion, from the ring formulae."""
    c = Conversions(Costs(wire=1, launch=0, slice=0, partial=0))
    share = BYTES * (RANKS - 1) // RANKS
    assert c.cost(P, R, BYTES, RANKS) == 2 * share
    assert c.cost(P, 0, BYTES, RANKS) == share
    assert c.cost(0, R, BYTES, RANKS) == share
    assert c.cost(0, 1, BYTES, RANKS) == share // RANKS
    assert c.cost(R, 0, BYTES, RANKS) == 0


def all_trees(have, needs):
    """Every way to reach all needs by conversions from forms already held."""
    forms = sorted({have, R, *needs})
    others = [f for f in forms if f != have]
    for extra in itertools.chain.from_iterable(
        itertools.combinations(others, k) for k in range(len(others) + 1)
    ):
        if not set(needs) <= {have, *extra}:
            continue
        for order in itertools.permutations(extra):
            stored, steps = [have], []
            choices = []
            for form in order:
                choices.append((tuple(stored), form))
                stored.append(form)
            for sources in itertools.product(*[h for h, _ in choices]):
                steps = [(s, f) for s, (_, f) in zip(sources, choices)]
                yield steps


@pytest.mark.parametrize("have", [P, R, 0, 1])
@pytest.mark.parametrize("needs", [(R,), (0,), (1,), (0, R), (0, 1), (P, R), (P, 0, R)])
def test_supply_is_the_cheapest_tree(have, needs):
    """Against all trees of conversions over the forms involved."""
    c = Conversions(Costs())
    result, steps = c.supply(have, frozenset(needs), BYTES, RANKS)
    best = min(sum(c.cost(s, f, BYTES, RANKS) for s, f in tree) for tree in all_trees(have, needs))
    assert result == best
    assert result == sum(c.cost(s, f, BYTES, RANKS) for s, f in steps)


def test_a_held_value_is_not_communicated():
    """A stationary value may be sliced, never gathered."""
    c = Conversions(Costs())
    assert c.cost(0, R, BYTES, RANKS, stationary=True) == INFINITE
    assert c.cost(R, 0, BYTES, RANKS, stationary=True) < INFINITE


def test_a_reduction_wanted_whole_is_complete_at_once():
    """P wanted as R and as a shard: the sum is finished first, the shard cut from it."""
    route = ReshardPath([Conversions(Costs())], (P,), [(R,), (0,)], [0], [BYTES], [RANKS])
    assert route.root == (R,)
    assert route.source((0,)) == (R,)


def test_a_reduction_wanted_sharded_stays_partial():
    """P wanted as a shard only is reduce-scattered."""
    route = ReshardPath([Conversions(Costs())], (P,), [(0,)], [0], [BYTES], [RANKS])
    assert route.root == (P,)
    assert route.source((0,)) == (P,)


def test_a_reduction_wanted_both_ways_stays_partial():
    """One consumer carries the partial sum on, another wants it whole: it is kept partial."""
    route = ReshardPath([Conversions(Costs())], (P,), [(R,), (P,)], [0], [BYTES], [RANKS])
    assert route.root == (P,)
    assert route.source((R,)) == (P,)


def test_a_carried_partial_sum_is_not_complete_by_itself():
    """Without a reduction of its own the value stays partial until redistributed."""
    route = ReshardPath([Conversions(Costs())], (P,), [(R,)], [], [BYTES], [RANKS])
    assert route.root == (P,)
    assert route.source((R,)) == (P,)


def test_two_axes_share_the_first_step():
    """Forms that differ along one axis come from the nearest form on their way."""
    route = ReshardPath(
        [Conversions(Costs())] * 2, (0, 1), [(R, 1), (R, R)], [], [BYTES, BYTES], [RANKS, RANKS]
    )
    assert route.source((R, R)) == (R, 1)
    assert route.source((R, 1)) == (0, 1)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "laptop-cpu"])
def test_costs_of_a_system_are_in_proportion_to_its_times(name):
    """A matmul, a copy and a gather cost as they last, up to the rounding of the weights."""
    system, dtype = System.load(name), "float32" if name == "laptop-cpu" else "float16"
    costs = costs_of_system(system, dtype)
    size, flops = 1 << 32, 1 << 46
    gather_s = system.collective_time_s("all_gather", size, [0, 1])
    copy_s = system.roofline(0, size, "memory", dtype).time_s
    product_s = system.roofline(flops, 0, "matmul", dtype).time_s
    gather = Conversions(costs).cost(0, R, size, 2)
    assert costs.memory * size / gather == pytest.approx(copy_s / gather_s, rel=0.02)
    assert costs.flop * flops / gather == pytest.approx(product_s / gather_s, rel=0.15)
    empty_s = system.collective_time_s("all_gather", 0, [0, 1])
    assert costs.launch / gather == pytest.approx(empty_s / gather_s, rel=0.02)


@pytest.mark.parametrize(("have", "want"), [*itertools.permutations((P, R, 0, 1), 2)])
def test_memory_has_its_price_in_every_conversion(have, want):
    """A copy in another form costs what the device keeps of it: a shard, or the whole value."""
    price = 3
    with_memory, without = (Conversions(Costs(keep=keep)) for keep in (price, 0))
    kept_bytes = BYTES // RANKS if want >= 0 else BYTES
    more = with_memory.cost(have, want, BYTES, RANKS) - without.cost(have, want, BYTES, RANKS)
    assert more == price * kept_bytes


def test_of_two_ways_memory_takes_the_one_that_keeps_less():
    """A sum wanted as two shards: through the whole value, or scattered and then exchanged."""
    plain, tight = (Conversions(Costs(keep=keep, launch=0)) for keep in (0, 1 << 20))
    needs = frozenset((0, 1))
    _, steps = tight.supply(P, needs, BYTES, RANKS)
    assert all(want != R for _, want in steps)
    assert tight.supply(P, needs, BYTES, RANKS)[0] > plain.supply(P, needs, BYTES, RANKS)[0]


def test_a_single_device_has_weights_too():
    """It sends nothing: what a wire byte would weigh is measured between two."""
    system = System.load("dgx-a100")
    assert costs_of_system(system, ranks=1) == costs_of_system(system, ranks=2)
    alone = costs_of_axes(system, "float16", [[[0]], [[0]]])
    assert alone == costs_of_system(system)


def test_axes_are_weighed_by_their_own_links():
    """Eight devices of a node, and eight of as many nodes that share the adapters."""
    system, size = System.load("dgx-a100"), 1 << 30
    near = [[8 * i + j for j in range(8)] for i in range(8)]
    far = [[8 * i + j for i in range(8)] for j in range(8)]
    costs = costs_of_axes(system, "float16", [far, near])
    sharing = system.layout(far).sharing
    spent_s = [
        system.collective_time_s("all_gather", size, far[0], sharing),
        system.collective_time_s("all_gather", size, near[0]),
    ]
    weighed = [Conversions(costs).along(a).cost(0, R, size, 8) for a in (0, 1)]
    assert weighed[1] / weighed[0] == pytest.approx(spent_s[1] / spent_s[0], rel=0.02)
    assert costs.wire == costs.along(0).wire > 2 * costs.along(1).wire
    same = costs_of_axes(system, "float16", [near, near])
    assert same.links == () and same.along(1) is same
