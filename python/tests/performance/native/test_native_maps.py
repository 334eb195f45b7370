# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Max-plus maps: by hand, and random functions and pipelines against their flat task graphs.

``scripts/checks/check_simulation.py`` runs 2,000 functions and 300 pipelines.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.performance.native.random_maps import Functions
from tests.performance.native.random_pipelines import Pipeline, starts_of
from tests.performance.native.simulation_proof import differing_functions, differing_pipelines
from tests.references import KERNELS, using
from tvm_distir.performance.event_loop.function_summaries import (
    AFTER,
    APART,
    COMM_PORT,
    FREE,
    HOLDS,
    LATEST,
    NEVER,
    SETTLED,
    SYNC,
    FunctionSummaries,
    FunctionTable,
)
from tvm_distir.support.errors.tree import SimulationError
from tvm_distir.support.native.loader import load_library


def one(params, values, ops, results=()):
    created = Functions()
    created.add(params, values, ops, list(results))
    return created.table


def starts(table, function=0, times=(0, 0, 0)):
    maps = FunctionSummaries(table)
    row = [*times, *([NEVER] * len(maps.ports(function)))]
    return maps.expand(function, np.array([row], np.int64))[0].tolist()


def test_compute_and_communication_run_beside_each_other(kernels):
    ops = [
        (0, 0, 5, 0, -1, [], [0]),
        (COMM_PORT, 0, 10, 0, -1, [0], [1]),
        (0, 0, 3, 0, -1, [0], []),
        (0, 0, 1, 0, -1, [1], []),
    ]
    assert starts(one(0, 2, ops)) == [0, 5, 5, 15]
    assert starts(one(0, 2, ops), times=(2, 9, 0)) == [2, 9, 7, 19]


@pytest.mark.parametrize(
    ("flags", "wanted"), [(0, [0, 0, 5]), (AFTER, [0, 5, 5]), (HOLDS, [0, 5, 15])]
)
def test_order_of_communication(kernels, flags, wanted):
    ops = [
        (0, 0, 5, 0, -1, [], []),
        (COMM_PORT, flags, 10, 0, -1, [], []),
        (0, 0, 1, 0, -1, [], []),
    ]
    assert starts(one(0, 0, ops)) == wanted


def test_a_separate_channel_neither_waits_nor_delays(kernels):
    """It starts behind the compute before it; the next collective starts as if it was not there."""
    ops = [
        (0, 0, 5, 0, -1, [], []),
        (COMM_PORT, AFTER, 10, 0, -1, [], [0]),
        (COMM_PORT, AFTER | APART, 20, 0, -1, [], [1]),
        (COMM_PORT, AFTER | APART, 1, 0, -1, [1], []),
        (COMM_PORT, AFTER, 1, 0, -1, [], []),
        (0, 0, 1, 0, -1, [0], []),
    ]
    assert starts(one(0, 2, ops)) == [0, 5, 5, 25, 15, 15]


def test_the_host_issues_one_op_after_the_other(kernels):
    """Short ops wait for their launch (4); a long one hides that of those behind it."""
    ops = [(0, 0, duration, 4, -1, [], []) for duration in (1, 1, 20, 1, 1)]
    assert starts(one(0, 0, ops)) == [4, 8, 12, 32, 33]
    ops[2] = (0, SYNC, 20, 4, -1, [], [])
    assert starts(one(0, 0, ops)) == [4, 8, 12, 36, 40]


def test_a_call_is_its_ops(kernels):
    created = Functions()
    layer = [(0, 0, 2, 0, -1, [0], [1]), (COMM_PORT, 0, 3, 0, -1, [1], [2])]
    created.add(1, 3, layer, [2])
    calls = [(0, 0, 0, 0, 0, [k], [k + 1]) for k in range(3)]
    created.add(1, 4, calls, [3])
    maps = FunctionSummaries(created.table)
    maps.open(1, [FREE])
    assert maps.tasks(1) == 6
    assert maps.ports(1) == [0]
    assert maps.expand(1, np.array([[0, 0, 0, 7]], np.int64)).tolist() == [[7, 9, 12, 14, 17, 19]]
    assert maps.matrix(1)[:, 3].tolist() == [12, 15, NEVER, 15]


def test_operands_that_compute_has_waited_for_are_no_ports():
    """A compute op waits for what the stream has waited for; a collective need not."""
    table = one(2, 2, [(0, 0, 1, 0, -1, [0], []), (COMM_PORT, 0, 1, 0, -1, [1], [])])
    for classes, ports in (
        ([SETTLED, SETTLED], [1]), ([FREE, SETTLED], [0, 1]), ([SETTLED, 0], []),
    ):  # fmt: skip
        maps = FunctionSummaries(table)
        maps.open(0, classes)
        assert maps.ports(0) == ports
    assert maps.independent_inputs(0) == [False, True]


def test_times_that_do_not_fit(kernels):
    created = Functions()
    created.add(0, 0, [(0, 0, LATEST // 2, 0, -1, [], [])], [])
    created.add(0, 0, [(0, 0, 0, 0, 0, [], [])] * 3, [])
    with pytest.raises(SimulationError, match="DIST0721"):
        FunctionSummaries(created.table).busy(
            np.array([1]), np.zeros(3, np.int64), *[np.zeros(0, np.int64)] * 2
        )


def test_wrong_tables_are_refused():
    good = [0, 0, 3, 0, -1, 0, 0]
    for at, value, label in ((0, 2, "a stream"), (2, -1, "a duration"), (4, 0, "a callee")):
        row = [*good]
        row[at] = value
        with pytest.raises(ValueError, match=label):
            FunctionSummaries(FunctionTable([0, 0, 1, 0], row))
    with pytest.raises(ValueError, match="more are needed"):
        FunctionSummaries(FunctionTable([0, 0, 2, 0], good))
    with pytest.raises(ValueError, match="an operand"):
        FunctionSummaries(FunctionTable([0, 0, 1, 0], [*good[:5], 1, 0], [0]))
    with pytest.raises(ValueError, match="results"):
        load_library()["simulation"](*[np.array(x, np.int64) for x in ([0, 0, 0, 1], *[[]] * 4)])


def test_random_functions():
    assert differing_functions(range(60)) == (60, [])


def test_random_pipelines():
    assert differing_pipelines(range(20)) == (20, [])


@pytest.mark.parametrize("seed", range(8))
def test_many_runs_of_other_durations(seed):
    """Each ends when it ends by itself; one that does not fit leaves the others alone."""
    rng = random.Random(seed)
    pipeline = Pipeline(rng, seed % 2 == 1)
    draws, result = np.random.default_rng(seed), []
    table = pipeline.functions.table
    ops = np.array(table.ops, np.int64).reshape(-1, 7)
    columns = np.where(ops[:, 4] < 0, draws.integers(-1, 9, len(ops)), -1)
    duration = draws.integers(0, 50, (9, 11))
    duration[int(columns.max(initial=0)), 4] = LATEST
    for kernels in KERNELS:
        with using(kernels):
            maps = FunctionSummaries(table)
            units = pipeline.units(maps)
            sent = np.random.default_rng(seed).integers(0, 60, (len(units.edges), 11))
            result.append(maps.sweep(columns, duration, sent, units).tolist())
    assert result[0] == result[1]
    assert min(result[0][:4] + result[0][5:]) >= 0
    assert len(set(result[0])) > 3


@pytest.mark.parametrize("seed", range(5))
def test_time_in_which_ranks_are_busy(seed):
    pipeline = Pipeline(random.Random(seed), seed % 2 == 1)
    matches = []
    for kernels in KERNELS:
        with using(kernels):
            maps = FunctionSummaries(pipeline.functions.table)
            units = pipeline.units(maps)
            ran = maps.run(units)
            _, steps, begin = units.runs()
            functions = units.kind_function[units.steps[steps, 1]]
            ports = np.array([3 + len(maps.ports(f)) for f in functions.tolist()])
            at = np.concatenate(([0], np.cumsum(ports)))[begin]
            rng = np.random.default_rng(seed)
            first = rng.integers(0, int(ran.finish.max()), 40)
            sent = np.stack((first, first + rng.integers(0, 60, 40)), axis=1).ravel()
            matches.append(
                [
                    maps.busy(functions[a:b], ran.times[c:d], np.zeros(0, np.int64), sent)
                    for a, b, c, d in zip(begin, begin[1:], at, at[1:])
                ]
            )
            assert starts_of(maps, units)
    assert matches[0] == matches[1]
    assert all(both <= min(compute, comm) for compute, comm, both in matches[0])


def test_ranks_that_wait_for_each_other():
    pipeline = Pipeline(random.Random(3), False)
    for kernels in KERNELS:
        with using(kernels):
            maps = FunctionSummaries(pipeline.functions.table)
            units = pipeline.units(maps)
            first = units.programs[: units.program_begin[1]]
            first[:] = first[::-1].copy()
            assert maps.run(units).position[0] < units.program_begin[1]
