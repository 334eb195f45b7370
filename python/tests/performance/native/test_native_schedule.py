# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The event loop: hand-computed schedules, and the native kernel against its reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.references.schedule import schedule_tasks
from tvm_distir.performance.event_loop.schedule import _schedule, find_cycle, schedule
from tvm_distir.performance.event_loop.tasks import Tasks
from tvm_distir.support.errors.tree import SimulationError
from tvm_distir.support.native.loader import ABI_VERSION, load_library


def times(tasks):
    start, end = schedule(tasks)
    return list(zip(start.tolist(), end.tolist()))


def test_stream_is_in_order(kernels):
    # Tasks 0 and 2 share stream 0; nothing depends on anything.
    tasks = Tasks.from_pairs([5, 7, 3], [0, 1, 0], [])
    assert times(tasks) == [(0, 5), (0, 7), (5, 8)]


def test_dependency_stalls_what_follows_on_its_stream(kernels):
    # compute a (4), comm c (10) after a, compute b (4) after c stalls, compute d is behind b.
    tasks = Tasks.from_pairs([4, 10, 4, 2], [0, 1, 0, 0], [(1, 0), (2, 1)])
    assert times(tasks) == [(0, 4), (4, 14), (14, 18), (18, 20)]


def test_group_starts_and_ends_together(kernels):
    # Devices with compute of 3 and 8, then one collective (durations 5 and 6), then compute.
    tasks = Tasks.from_pairs(
        [3, 8, 5, 6, 1, 1],
        [0, 1, 2, 3, 0, 1],
        [(2, 0), (3, 1), (4, 2), (5, 3)],
        [-1, -1, 0, 0, -1, -1],
    )
    assert times(tasks) == [(0, 3), (0, 8), (8, 14), (8, 14), (14, 15), (14, 15)]


def test_tasks_on_no_stream_overlap(kernels):
    tasks = Tasks.from_pairs([5, 5, 5], [-1, -1, -1], [(2, 0)])
    assert times(tasks) == [(0, 5), (0, 5), (5, 10)]


def test_nothing(kernels):
    start, end = schedule(Tasks.from_pairs([], [], []))
    assert start.size == end.size == 0


def test_a_dependency_may_have_a_larger_number(kernels):
    tasks = Tasks.from_pairs([5, 7], [0, 1], [(0, 1)])
    assert times(tasks) == [(7, 12), (0, 7)]


def test_cycle_names_the_tasks(kernels):
    tasks = Tasks.from_pairs([1, 1, 1, 1], [0, 1, 2, 3], [(1, 2), (2, 3), (3, 1)])
    with pytest.raises(SimulationError) as caught:
        schedule(tasks, ["fine", "b", "c", "d"])
    assert caught.value.code == "DIST0720"
    assert "3 of 4 tasks" in str(caught.value)
    assert "b <- c <- d" in str(caught.value)
    assert "fine" not in str(caught.value)


def test_collectives_in_different_order_deadlock(kernels):
    # Device 0 issues X then Y, device 1 issues Y then X.
    tasks = Tasks.from_pairs([1] * 4, [0, 0, 1, 1], [], [0, 1, 1, 0])
    with pytest.raises(SimulationError, match="DIST0720") as caught:
        schedule(tasks, ["X on 0", "Y on 0", "Y on 1", "X on 1"])
    assert "on 0" in str(caught.value)
    assert "on 1" in str(caught.value)


@pytest.mark.parametrize(
    "tasks",
    [
        Tasks.from_pairs([1], [0], [(0, 0)]),
        Tasks.from_pairs([1, 1], [0, 0], [], [0, 0]),  # one group twice on a stream
        Tasks.from_pairs([1, 1], [0, 1], [(1, 0)], [0, 0]),  # a member waits for another
        Tasks.from_pairs([1, 1], [0, 0], [(0, 1)]),  # against the order of issue
    ],
)
def test_small_deadlocks(kernels, tasks):
    with pytest.raises(SimulationError, match="DIST0720"):
        schedule(tasks)


def test_overflow(kernels):
    tasks = Tasks.from_pairs([2**62, 2**62], [0, 0], [])
    with pytest.raises(SimulationError, match="DIST0721"):
        schedule(tasks)
    assert times(Tasks.from_pairs([2**62, 2**62 - 1], [0, 0], []))[1][1] == 2**63 - 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"duration": np.array([-1, 1])}, "duration"),
        ({"stream": np.array([0, 2])}, "stream"),
        ({"group": np.array([0, 0])}, "group"),
        ({"dep": np.array([2])}, "dep"),
        ({"dep_begin": np.array([0, 1])}, "dep_begin"),
        ({"dep_begin": np.array([0, 1, 0])}, "dep_begin"),
        ({"dep_begin": np.array([0, 0, 0])}, "dep_begin"),
        ({"stream": np.array([0])}, "stream"),
        ({"duration": np.array([1.0, 2.0])}, "int64"),
        ({"duration": np.array([1, 2], np.int32)}, "int64"),
        ({"duration": np.array([[1, 2]])}, "dim"),
        ({"duration": np.array([1, 0, 2, 0])[::2]}, "contiguous"),
        ({"stream_count": -1}, "stream_count"),
    ],
)
def test_the_kernel_refuses_what_it_cannot_read(change, what):
    good = Tasks.from_pairs([1, 2], [0, 1], [(1, 0)])
    bad = Tasks(**{**good.__dict__, **change})
    with pytest.raises((ValueError, TypeError), match=what):
        _schedule(bad)


def random_tasks(rng):
    """A graph that is sometimes blocked: mostly forward dependencies, now and then a back edge."""
    count = int(rng.integers(1, 13))
    streams = int(rng.integers(1, 5))
    groups = int(rng.integers(0, 4))
    waits = [
        (int(max(a, b)), int(min(a, b))) if rng.random() < 0.97 else (int(a), int(b))
        for a, b in rng.integers(0, count, (int(rng.integers(0, 2 * count)), 2))
        if a != b
    ]
    group = rng.integers(-1, groups, count) if groups else np.full(count, -1)
    group[rng.random(count) < 0.6] = -1
    return Tasks.from_pairs(
        rng.integers(0, 20, count), rng.integers(-1, streams, count), waits, group
    )


def test_native_equals_reference_on_random_graphs():
    rng = np.random.default_rng(7)
    blocked = 0
    for _ in range(3000):
        tasks = random_tasks(rng)
        start, end, done = _schedule(tasks)
        expected_start, expected_end, expected_done = schedule_tasks(tasks)
        assert done == expected_done
        np.testing.assert_array_equal(start, expected_start)
        np.testing.assert_array_equal(end, expected_end)
        if done < tasks.size:
            blocked += 1
            cycle = find_cycle(tasks, start)
            assert cycle
            assert all(start[t] < 0 for t in cycle)
    assert 300 < blocked < 2700  # both cases are really met


def test_native_equals_reference_on_a_larger_graph():
    rng = np.random.default_rng(11)
    count = 1500
    waits = [(t, int(rng.integers(max(0, t - 40), t))) for t in range(1, count) for _ in range(2)]
    tasks = Tasks.from_pairs(
        rng.integers(0, 10**6, count), rng.integers(-1, 6, count), np.array(waits)
    )
    native, reference = schedule(tasks), schedule_tasks(tasks)
    np.testing.assert_array_equal(native[0], reference[0])
    np.testing.assert_array_equal(native[1], reference[1])
    assert int(native[1].max()) > 10**7


def test_inputs_are_not_changed():
    tasks = Tasks.from_pairs([1, 2], [0, 0], [(1, 0)])
    before = {k: np.copy(v) for k, v in tasks.__dict__.items()}
    schedule(tasks)
    for key, value in before.items():
        np.testing.assert_array_equal(value, getattr(tasks, key))


def test_the_library_is_really_called():
    assert load_library()["abi_version"]() == ABI_VERSION
