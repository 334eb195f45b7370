# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Live memory: cases by hand, and random programs against a walk that counts every buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hand_programs import MICRO, SYSTEM, Build, program, random_program, round_system

from tvm_distir.simulation import simulate
from tvm_distir.simulation.intervals import measure, overlap, union

ONE = (("x",), (1,))


def curve(result, device=0):
    return [(round(t / MICRO, 6), size) for t, size in result.memory_timeline[device]]


def test_chain():
    """x (100) and the weight (1000) stay; a lives until b is done, b until c is done, c stays."""
    fn = (
        Build().param("x", 100).param("w", 1000, "weight")
        .compute("a", "x", 5, 10).compute("b", "a w", 5, 20).compute("c", "b", 5, 40).done("c")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert curve(result) == [(0, 1110), (5, 1130), (10, 1160), (15, 1140)]
    assert result.peak_memory_bytes == 1160
    assert result.devices[0].param_bytes == 1000


def test_views_keep_their_memory_alive():
    fn = (
        Build().param("x").compute("a", "x", 1, 100).view("v", "a").compute("b", "x", 1, 7)
        .compute("c", "v", 1, 5).compute("d", "c", 1, 3).done("d")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert curve(result) == [(0, 100), (1, 107), (2, 105), (3, 8), (4, 3)]


def test_activations_inside_calls_are_freed_inside():
    layer = Build().param("p").compute("big", "p", 1, 1000).compute("out", "big", 1, 10).done("out")
    main = Build().param("x").call("a", "x", "f", 10).call("b", "a", "f", 10).done("b")
    result = simulate(program(ONE, main=main, f=layer), SYSTEM)
    # In the second call: a (10) until its big is there.
    assert curve(result) == [(0, 1000), (1, 1010), (4, 10)]
    assert result.peak_memory_bytes == 1010


def test_an_argument_lives_until_its_last_use_in_the_callee():
    inner = Build().param("p").compute("u", "p", 1, 1).compute("v", "u", 1, 1).done("v")
    main = Build().param("x").compute("a", "x", 1, 100).call("b", "a", "f").done("b")
    result = simulate(program(ONE, main=main, f=inner), SYSTEM)
    assert curve(result) == [(0, 100), (1, 101), (2, 2), (3, 1)]


def test_communication_holds_its_operand():
    """c does not need a, but the collective (10 + 6 + 6 us) reads it until it ends."""
    fn = (
        Build().param("x").compute("a", "x", 1, 100)
        .collective("r", "a", "all_reduce", 4000, 4).compute("c", "x", 1, 8).done("r c")
    )  # fmt: skip
    result = simulate(program((("tp",), (4,)), main=fn), SYSTEM)
    assert curve(result) == [(0, 100), (1, 4108), (23, 4008)]


def test_constants_are_resident_once():
    layer = Build().param("p").constant("k", 500).compute("o", "p k", 1, 1).done("o")
    main = Build().param("x", 3).call("a", "x", "f", 1).call("b", "a", "f", 1).done("b")
    result = simulate(program(ONE, main=main, f=layer), SYSTEM)
    assert curve(result)[0] == (0, 504)
    assert result.devices[0].param_bytes == 500


def test_dead_values_and_results_that_are_parameters():
    fn = Build().param("x", 3).compute("dead", "x", 2, 50).compute("b", "x", 1, 4).done("x")
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert curve(result) == [(0, 53), (2, 7), (3, 3)]


def test_sent_tensors_are_held_until_they_are_gone():
    first = (
        Build(0).param("x").compute("a", "x", 1, 2000)
        .transfer("s", "a", "send", 2000, 1).compute("b", "x", 1, 1).done("b")
    )  # fmt: skip
    second = (
        Build(1).param("y").transfer("r", "", "recv", 2000, 0).compute("c", "r", 1, 5).done("c")
    )
    result = simulate(program(ONE, ONE, main_mesh0=first, main_mesh1=second), SYSTEM)
    # The send takes 10 + 1 + 2 us.
    assert curve(result, 0) == [(0, 2000), (1, 2001), (14, 1)]
    assert curve(result, 1) == [(0, 0), (1, 2000), (14, 2005), (15, 5)]


def test_verdict_against_the_capacity():
    def peak(size, capacity):
        fn = Build().param("x", size).done("x")
        return simulate(program(ONE, main=fn), round_system(memory_capacity_GiB=capacity))

    assert peak(2**30, 1).fits
    assert not peak(2**30 + 1, 1).fits
    assert peak(2**30 + 1, 1).to_dict()["fits"] is False
    assert peak(5, 1).memory_capacity_bytes == 2**30


def walk(made, entry):
    """Every buffer as [size, first task, tasks that read it], by a plain recursive walk."""
    tasks, buffers = [0], []

    def run(name, args):
        fn = made.functions[name]
        held = dict(zip(fn.params, args))
        for index, value in enumerate(fn.values):
            if value.role == "constant":
                held[index] = None
        for op in fn.ops:
            if op.kind == "view":
                held[op.outputs[0]] = held[op.inputs[0]]
            elif op.kind == "call":
                results = run(op.callee, [held[i] for i in op.inputs])
                held.update(zip(op.outputs, results))
            else:
                task = tasks[0]
                tasks[0] += 1
                for i in op.inputs:
                    if held[i] is not None:
                        held[i][2].append(task)
                if op.kind == "transfer" and op.collective == "send":
                    held[op.outputs[0]] = held[op.inputs[0]]
                    continue
                for i in op.outputs:
                    held[i] = [fn.values[i].bytes, task, []]
                    buffers.append(held[i])
        return [held[i] for i in fn.results]

    kept = run(entry, [None] * len(made.functions[entry].params))
    return buffers, [b for b in kept if b is not None]


@pytest.mark.parametrize("seed", range(100, 130))
def test_random_programs_byte_by_byte(seed):
    made = random_program(np.random.default_rng(seed))
    result = simulate(made, SYSTEM)
    for lane, entry in zip(result.lanes, made.entries):
        buffers, kept = walk(made, entry.function)
        spans = [
            (round(e.start_s * 1e12), round((e.start_s + e.duration_s) * 1e12))
            for e in lane.events()
        ]
        lives = []
        for buffer in buffers:
            size, task, readers = buffer
            last = max([spans[task][1], *(spans[t][1] for t in readers)])
            lives.append((size, spans[task][0], 2**62 if any(buffer is k for k in kept) else last))
        fn = made.functions[entry.function]
        resident = sum(fn.values[i].bytes for i in fn.params)
        times = sorted({0, *(t for _, a, b in lives for t in (a, b))} - {2**62})
        steps = [(round(t * 1e12), size) for t, size in lane.memory]
        for t in times:
            expected = resident + sum(size for size, a, b in lives if a <= t < b)
            found = [size for when, size in steps if when <= t][-1]
            assert found == expected
        peak = max(resident + sum(s for s, a, b in lives if a <= t < b) for t in times)
        device = next(d for d in result.devices if d.id == lane.devices[0])
        assert device.peak_memory_bytes == peak


def test_intervals_against_points():
    rng = np.random.default_rng(3)
    for _ in range(300):
        sets = []
        for _ in range(2):
            start = rng.integers(0, 40, int(rng.integers(0, 8)))
            sets.append((start, start + rng.integers(0, 9, start.size)))
        points = [{p for a, b in zip(s.tolist(), e.tolist()) for p in range(a, b)} for s, e in sets]
        unions = [union(*one) for one in sets]
        assert [measure(*one) for one in unions] == [len(p) for p in points]
        assert overlap(*unions) == overlap(*unions[::-1]) == len(points[0] & points[1])
        for start, end in unions:
            assert (end > start).all()
            assert (start[1:] > end[:-1]).all()
