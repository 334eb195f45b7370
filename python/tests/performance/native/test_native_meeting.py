# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Units and messages that share links: closed forms, and the native code against its reference."""

from __future__ import annotations

import numpy as np

from tests.performance.native.random_loads import loads_of
from tests.performance.native.simulation_proof import differing_meetings
from tests.references.contention import fair_speeds
from tvm_distir.performance.event_loop.activities import ENDLESS
from tvm_distir.performance.event_loop.contention import run_contended
from tvm_distir.performance.event_loop.function_summaries import FunctionSummaries, FunctionTable
from tvm_distir.performance.event_loop.rank_programs import RUN, SEND, RankPrograms


def messages(duration, links, capacity, lead=0):
    """When messages of so many picoseconds end, all sent at 0 by ranks of their own."""
    count = len(duration)
    units = RankPrograms(
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.array([[SEND, k, k, 0, 3] for k in range(count)], np.int64),
        np.arange(count + 1),
        np.arange(count + 1),
        np.array([[k, 0] for k in range(count)], np.int64),
        np.array([[0, each] for each in duration], np.int64),
        count,
        1,
    )
    before = [(float(lead), 1.0, {})] if lead else []
    classes = [[(ENDLESS, 1.0, {})]] * count
    classes += [[*before, (ENDLESS, 1.0, local)] for local in links]
    maps = FunctionSummaries(FunctionTable())
    return run_contended(maps, units, loads_of(classes, capacity)).ended[:, 0].tolist()


def test_messages_share_a_link(kernels):
    def on_one(duration, lead=0):
        return messages(duration, [{0: 5.0}] * len(duration), [5.0], lead)

    assert on_one([1000]) == [1000]
    assert on_one([1000, 1000]) == [2000, 2000]
    assert on_one([1000] * 7) == [7000] * 7
    assert on_one([1000, 3000]) == [2000, 4000]
    assert on_one([1000, 1000], lead=400) == [1600, 1600]
    assert messages([1000, 1000], [{0: 5.0}, {1: 5.0}], [5.0, 5.0]) == [1000, 1000]
    assert messages([1000, 1000], [{0: 2.0}, {0: 2.0}], [4.0]) == [1000, 1000]


def test_max_min_fair_on_a_small_network(kernels):
    """Bertsekas and Gallager: who is held by one link leaves the rest of another to others."""
    result = messages([1200] * 3, [{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.5}], [1.0, 2.0])
    assert result == [2400, 2400, 1200]
    result = messages([1000] * 4, [{0: 1.0, 1: 1.0}, {0: 1.0}, {0: 1.0}, {1: 1.0}], [1.0, 1.0])
    assert result == [3000, 3000, 3000, 1500]


def test_fair_speeds():
    assert fair_speeds([1.0, 1.0], [{0: 1.0}, {0: 1.0}], [1.0]) == [0.5, 0.5]
    assert fair_speeds([1.0, 1.0], [{0: 0.25}, {0: 1.0}], [1.0]) == [1.0, 0.75]
    assert fair_speeds([0.5, 1.0], [{0: 0.5}, {0: 1.0}], [1.0]) == [0.5, 0.75]


def work(duration):
    """A table with a function of one kernel."""
    return FunctionTable([0, 1, 1, 1], [0, 0, duration, 0, -1, 0, 1], [], [0], [0])


def test_a_message_slows_the_unit_beside_it(kernels):
    units = RankPrograms(
        np.array([0], np.int64),
        np.array([0, 0], np.int64),
        np.array([[SEND, 0, 0, 0, 3], [RUN, 0, 0, 0, 0]], np.int64),
        np.array([0, 2]),
        np.array([0, 1]),
        np.array([[0, 0]], np.int64),
        np.array([[0, 400]], np.int64),
        1,
        1,
    )
    idle = [(ENDLESS, 1.0, {})]
    loads = loads_of(
        [idle, idle, [(ENDLESS, 1.0, {0: 1.0})]], [1.0], [[-1, -1], [-1, -1], [0, -1]], 0.8
    )
    result = run_contended(FunctionSummaries(work(1000)), units, loads)
    assert result.ran.finish[0, 0] == 1080 and result.ended[0, 0] == 400
    assert result.clock.tolist() == [[0, 0], [320, 400]]
    assert result.real(0, np.array([0, 160, 320, 1000])).tolist() == [0, 200, 400, 1080]


def test_random_pipelines_meet():
    """As without meeting where there are no loads; kernel and reference agree event by event."""
    assert differing_meetings(range(30)) == (30, [])
