# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Messages between stages that several devices send in parts: what they take, by closed forms."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import MICRO, SYSTEM
from tests.performance.simulation.hand_stages import Sizes, stages, without
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.numbers import numbers_of
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.batched_costs import BatchCosts
from tvm_distir.performance.simulation.op_costs import OpCosts
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.calibration.cost_terms import StepCostTerms
from tvm_distir.planning.calibration.step_times import StepSums

CASES = [(size, split) for size in (6001, 4_000_000) for split in (1, 2, 4)]


def made(size: int, split: int) -> Program:
    """Two ranks, each the four devices of a node, which hold alike what goes between them."""
    program = stages(Schedule("1f1b", 2, 1), Sizes(3, 6, moved=size))
    meshes = tuple(
        Mesh(single.name, ("tp",), (4,), tuple(range(4 * rank, 4 * rank + 4)))
        for rank, single in enumerate(program.meshes)
    )
    assert program.staged is not None
    edges = tuple(replace(edge, split=split) for edge in program.staged.edges)
    result = replace(without(program, edges=edges), meshes=meshes)
    result.check()
    return result


def expected_us(size: int, split: int) -> tuple[Fraction, Fraction]:
    """Each device's part over its own adapter of 1 GB/s, and the ring that gathers the parts.

    Setups are 110 us between nodes and 10 us inside, a step takes 1 us, and links inside a node
    send 1,000 bytes per us.
    """
    sent = 111 + Fraction(-(-size // split), 1000)
    wire = -(-size * (split - 1) // split)
    gathered = Fraction(10 + (split - 1)) + Fraction(wire, 1000) if split > 1 else Fraction(0)
    return sent, gathered


@pytest.mark.parametrize(("size", "split"), CASES)
def test_a_message_in_parts_is_sent_and_gathered(size: int, split: int) -> None:
    program = made(size, split)
    staged = program.staged
    assert staged is not None
    sent, gathered = expected_us(size, split)
    whole_us = float(sent + gathered)
    for edge in staged.edges:
        ends = edge.source[0], edge.target[0]
        there, back = OpCosts(program, SYSTEM).edge_ps(edge, *ends)
        assert there == pytest.approx(whole_us * 1e6, abs=2)
        assert back == pytest.approx(float(sent) * 1e6, abs=2)
        parts = StepCostTerms(program, staged, SYSTEM).edge(edge)
        assert StepSums([parts]).times_s(SYSTEM)[0] == pytest.approx(whole_us * MICRO)
    for contention in (False, True):
        result = simulate(program, SYSTEM, contention=contention)
        assert result.time_s == pytest.approx((2 * whole_us + 18) * MICRO)


def test_messages_of_many_programs_at_once() -> None:
    """Rows that differ in sizes and parts, and whose ends hold more than what is sent."""
    programs = [made(*case) for case in CASES]
    for number, program in enumerate(programs):
        assert program.staged is not None
        edges = tuple(
            replace(edge, bytes=(7 * edge.bytes[0], edge.bytes[1]), wire_bytes=edge.bytes)
            for edge in program.staged.edges
        )
        programs[number] = without(program, edges=edges)
    numbers = [numbers_of(program) for program in programs]
    assert len({each.skeleton for each in numbers}) == 1
    quantities = np.array([each.values for each in numbers], np.int64).T
    which = np.arange(len(quantities))
    shape = np.zeros(len(CASES), np.int64)
    prices = BatchCosts(
        programs[0], SYSTEM, numbers[0], which, quantities, [programs[0].meshes], shape
    )
    assert programs[0].staged is not None
    for edge in programs[0].staged.edges:
        result = prices.edge(edge, edge.source[0], edge.target[0])
        expected = [float(sum(expected_us(*case))) * 1e6 for case in CASES]
        np.testing.assert_allclose(result, expected, atol=2)
    assert prices.fits.all()


def test_parts_of_two_messages_fill_the_adapters_but_do_not_wait() -> None:
    """Ranks of two devices each, in turn on two nodes of two adapters, which two messages share.

    Each sends halves for as long as it gathers them, so it needs half of the adapters on average.
    """
    program = stages(Schedule("gpipe", 4, 4), Sizes(3, 6, moved=100_000))
    meshes = tuple(
        Mesh(each.name, ("tp",), (2,), (first, first + 1))
        for each, first in zip(program.meshes, (0, 4, 2, 6), strict=True)
    )
    assert program.staged is not None
    edges = tuple(replace(edge, split=2) for edge in program.staged.edges)
    program = replace(without(program, edges=edges), meshes=meshes)
    system = replace(SYSTEM, inter_node=replace(SYSTEM.inter_node, nics_per_node=2))
    alone, together = (simulate(program, system, contention=c) for c in (False, True))
    assert together.time_s == pytest.approx(alone.time_s, rel=1e-9)
