# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A host that issues ops: by hand, and entries as maps against entries op by op."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import MICRO, SYSTEM, Build, program, random_program
from tests.performance.simulation.hand_stages import Sizes, stages
from tests.references import KERNELS, using
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.fusion.host_launches import without_wrappers
from tvm_distir.performance.simulation.op_costs import OpCosts
from tvm_distir.performance.simulation.simulator import simulate


@pytest.fixture
def host(monkeypatch):
    """Let each op take the host so many microseconds; collectives make it wait."""

    def set_up(issue_us, host_waits=False):
        plain = OpCosts.row

        def row(self, function, number):
            result = plain(self, function, number)
            waits = host_waits and result.op.kind == "collective"
            return replace(result, issue_ps=issue_us * 10**6, host_waits=waits)

        monkeypatch.setattr(OpCosts, "row", row)

    return set_up


def starts_us(result):
    return [round(event.start_s / MICRO, 6) for event in result.events]


def test_launches_bound_short_ops(host, kernels):
    """4 us per launch: ops of 1 us wait for theirs; behind one of 20 us the host is ahead."""
    host(4)
    build = Build().param("x")
    for name, before, time_us in (("a", "x", 1), ("b", "a", 1), ("c", "b", 20), ("d", "c", 1)):
        build.compute(name, before, time_us)
    result = simulate(program((("x",), (1,)), main=build.done("d")), SYSTEM)
    assert starts_us(result) == [4, 8, 12, 32]


def test_a_function_that_only_calls_has_the_ops_of_its_callees():
    """Each in its place, reading and making the values of the caller; others stay calls."""
    inner = Build().param("p").compute("q", "p", 3).compute("r", "q", 5)
    wrapper = Build().param("a").view("b", "a").call("c", "b", "inner").view("d", "c")
    wrapper = wrapper.call("e", "d", "inner")
    mixed = Build().param("a").compute("b", "a", 1).call("c", "b", "inner")
    main = Build().param("x").call("y", "x", "wrapper").call("z", "y", "mixed")
    functions = {"inner": inner, "wrapper": wrapper, "mixed": mixed, "main": main}
    results = {"inner": "r", "wrapper": "e", "mixed": "c", "main": "z"}
    made = {name: build.done(results[name]) for name, build in functions.items()}
    before = program((("x",), (1,)), **made)
    after = without_wrappers(before)
    ops = after.functions["wrapper"].ops
    assert [op.kind for op in ops] == ["view", "compute", "compute"] * 2
    assert [op.flops for op in ops if op.kind == "compute"] == [
        op.flops for op in before.functions["inner"].ops * 2
    ]
    for op, later in itertools.pairwise(ops):
        assert op.outputs == later.inputs
    assert after.functions["wrapper"].results == ops[-1].outputs
    for name in ("inner", "mixed", "main"):
        assert after.functions[name] == before.functions[name]


@pytest.mark.parametrize("fold", [True, False])
def test_the_host_waits_for_collectives(host, fold):
    """All-reduce of 4000 bytes by 4 takes 22 us; what follows is issued behind it."""
    host(4, host_waits=True)
    build = Build().param("x").collective("r", "x", "all_reduce", 4000, 4).compute("a", "x", 1)
    created = program((("tp",), (4,)), main=build.done("r a"))
    result = simulate(created, SYSTEM, fold_devices=fold)
    assert starts_us(result)[:2] == [4, 30]


@pytest.mark.parametrize("host_waits", [False, True])
@pytest.mark.parametrize("seed", range(200, 212))
def test_random_programs(host, seed, host_waits):
    """Folded, functions are maps; unfolded, all that communicates is looked at op by op."""
    host(7, host_waits)
    created = random_program(np.random.default_rng(seed))
    results = [simulate(created, SYSTEM), simulate(created, SYSTEM, fold_devices=False)]
    with using("reference"):
        results.append(simulate(created, SYSTEM))
    shown = []
    for result in results:
        lanes = {lane.devices[0]: lane for lane in result.lanes}
        shown.append([(e.start_s, e.duration_s) for d in (0, 4) for e in lanes[d].events()])
    assert shown[0] == shown[1] == shown[2]
    assert results[0].devices == results[1].devices == results[2].devices


def test_units_of_a_schedule_are_issued_too(host):
    """Each unit of 3 and 6 us has an empty op beside its kernel: 5 us are longer than 3."""
    created = stages(Schedule("1f1b", 1, 4), Sizes(3, 6))
    before = simulate(created, SYSTEM)
    host(5)
    matches = []
    for kernels in KERNELS:
        with using(kernels):
            matches.append(simulate(created, SYSTEM))
    assert matches[0].time_s == matches[1].time_s > before.time_s
    assert matches[0].devices == matches[1].devices
