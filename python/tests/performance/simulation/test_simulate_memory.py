# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Live memory: cases by hand, and random programs against a walk that counts every buffer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import (
    MICRO,
    SYSTEM,
    Build,
    program,
    random_program,
    round_system,
)
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.simulation.simulator import simulate

ONE = (("x",), (1,))


K = 512
"""Bytes of a block."""


def curve(result, device=0):
    """Microseconds and blocks."""
    observed = result.memory_timeline[device]
    assert all(size % K == 0 for _, size in observed)
    return [(round(t / MICRO, 6), size // K) for t, size in observed]


def test_chain():
    """x (100) and the weight (1000) stay; a lives until b is done, b until c is done, c stays."""
    fn = (
        Build().param("x", 100 * K).param("w", 1000 * K, "weight").compute("a", "x", 5, 10 * K)
        .compute("b", "a w", 5, 20 * K).compute("c", "b", 5, 40 * K).done("c")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert curve(result) == [(0, 1110), (5, 1130), (10, 1160), (15, 1140)]
    assert result.peak_memory_bytes == 1160 * K
    assert result.devices[0].param_bytes == 1000 * K


def test_sizes_are_whole_blocks():
    fn = Build().param("x", 1).compute("a", "x", 1, 513).compute("b", "a", 1, 0).done("b")
    assert curve(simulate(program(ONE, main=fn), SYSTEM)) == [(0, 3), (2, 1)]


def test_views_keep_their_memory_alive():
    fn = (
        Build().param("x").compute("a", "x", 1, 100 * K).view("v", "a").compute("b", "x", 1, 7 * K)
        .compute("c", "v", 1, 5 * K).compute("d", "c", 1, 3 * K).done("d")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert curve(result) == [(0, 100), (1, 107), (2, 105), (3, 8), (4, 3)]


def test_activations_inside_calls_are_freed_inside():
    layer = Build().param("p").compute("big", "p", 1, 1000 * K).compute("out", "big", 1, 10 * K)
    main = Build().param("x").call("a", "x", "f", 10 * K).call("b", "a", "f", 10 * K)
    result = simulate(program(ONE, main=main.done("b"), f=layer.done("out")), SYSTEM)
    # In the second call: a (10) until its big is there.
    assert curve(result) == [(0, 1000), (1, 1010), (4, 10)]
    assert result.peak_memory_bytes == 1010 * K


def test_an_argument_lives_until_its_last_use_in_the_callee():
    inner = Build().param("p", 100 * K).compute("u", "p", 1, K).compute("v", "u", 1, K).done("v")
    main = Build().param("x").compute("a", "x", 1, 100 * K).call("b", "a", "f").done("b")
    result = simulate(program(ONE, main=main, f=inner), SYSTEM)
    assert curve(result) == [(0, 100), (1, 101), (2, 2), (3, 1)]


def test_an_argument_that_is_handed_on_is_held_by_who_gets_it():
    """f returns its parameter: a lives until c has read it."""
    inner = Build().param("p", 100 * K).compute("u", "p", 1, K).done("p u")
    main = Build().param("x").compute("a", "x", 1, 100 * K).call("b u", "a", "f", 100 * K)
    main.compute("c", "b", 1, 5 * K).compute("d", "c", 1, 0).done("d")
    result = simulate(program(ONE, main=main.done("d"), f=inner), SYSTEM)
    assert curve(result) == [(0, 100), (1, 101), (2, 105), (3, 5), (4, 0)]


def test_memory_of_collectives_is_taken_and_left_in_order_of_issue():
    """The collective (10 + 6 + 6 us) is issued behind a; a is not kept for it behind its issue."""
    fn = (
        Build().param("x").compute("a", "x", 1, 100 * K)
        .collective("r", "a", "all_reduce", 4000 * K, 4).compute("c", "x", 1, 8 * K).done("r c")
    )  # fmt: skip
    result = simulate(program((("tp",), (4,)), main=fn), SYSTEM)
    assert curve(result) == [(0, 100), (1, 4100), (1, 4008)]


def test_what_a_started_collective_reads_is_there_until_its_wait():
    build = Build().param("x").compute("a", "x", 1, 100 * K)
    build.collective("s", "a", "all_reduce", 100 * K, 4).compute("c", "x", 1, 8 * K)
    build.ops[-2] = build.ops[-2]._replace(op="relax.dist.all_reduce_start")
    wait = Op("r", "wait", "relax.dist.collective_done", build.of("s"), (build.new("r", 100 * K),))
    build.ops.append(wait)
    build.compute("d", "r c", 1, K)
    result = simulate(program((("tp",), (4,)), main=build.done("d")), SYSTEM)
    # c while the collective runs: a, s and c; d: r, c and d
    assert result.peak_memory_bytes == 208 * K
    assert [size for _, size in curve(result)] == [100, 208, 109, 1]


def test_constants_are_resident_once():
    layer = Build().param("p").constant("k", 500 * K).compute("o", "p k", 1, K).done("o")
    main = Build().param("x", 3 * K).call("a", "x", "f", K).call("b", "a", "f", K).done("b")
    result = simulate(program(ONE, main=main, f=layer), SYSTEM)
    assert curve(result)[0] == (0, 504)
    assert result.devices[0].param_bytes == 500 * K


def test_dead_values_and_results_that_are_parameters():
    fn = Build().param("x", 3 * K).compute("dead", "x", 2, 50 * K).compute("b", "x", 1, 4 * K)
    result = simulate(program(ONE, main=fn.done("x")), SYSTEM)
    assert curve(result) == [(0, 53), (2, 7), (3, 3)]


def test_tensors_are_sent_in_order_of_issue_and_there_when_they_are_received():
    first = (
        Build(0).param("x").compute("a", "x", 1, 2000 * K)
        .transfer("s", "a", "send", 2000 * K, 1).compute("b", "x", 1, K).done("b")
    )  # fmt: skip
    second = Build(1).param("y").transfer("r", "", "recv", 2000 * K, 0).compute("c", "r", 1, 5 * K)
    result = simulate(program(ONE, ONE, main_mesh0=first, main_mesh1=second.done("c")), SYSTEM)
    assert curve(result, 0) == [(0, 2000), (1, 1)]
    (_, before), (_, arrived), (_, both), (_, left) = curve(result, 1)
    assert (before, arrived, both, left) == (0, 2000, 2005, 5)


def test_verdict_against_the_capacity():
    def peak(size, capacity):
        fn = Build().param("x", size).done("x")
        return simulate(program(ONE, main=fn), round_system(memory_capacity_GiB=capacity))

    assert peak(2**30, 1).fits
    assert not peak(2**30 + 1, 1).fits
    assert peak(2**30 + 1, 1).to_dict()["fits"] is False
    assert peak(5, 1).memory_capacity_bytes == 2**30


def walk(created, entry):
    """Every buffer as [size, first task, tasks that read it], by a plain recursive walk."""
    tasks, buffers = [0], []

    def walk(name, args):
        fn = created.functions[name]
        stored = dict(zip(fn.params, args))
        for index, value in enumerate(fn.values):
            if value.role == "constant":
                stored[index] = None
        for op in fn.ops:
            if op.kind == "view":
                stored[op.outputs[0]] = stored[op.inputs[0]]
            elif op.kind == "call":
                results = walk(op.callee, [stored[i] for i in op.inputs])
                for buffer in results:  # the function holds what it returns until it has
                    if buffer is not None:
                        buffer[2].append(tasks[0] - 1)
                stored.update(zip(op.outputs, results))
            else:
                task = tasks[0]
                tasks[0] += 1
                for i in op.inputs:
                    if stored[i] is not None:
                        stored[i][2].append(task)
                if op.kind == "transfer" and op.collective == "send":
                    stored[op.outputs[0]] = stored[op.inputs[0]]
                    continue
                for i in op.outputs:
                    stored[i] = [fn.values[i].bytes, task, []]
                    buffers.append(stored[i])
        return [stored[i] for i in fn.results]

    remaining = walk(entry, [None] * len(created.functions[entry].params))
    return buffers, [b for b in remaining if b is not None]


def in_blocks(size):
    return -(-size // K) * K


@pytest.mark.parametrize("seed", range(100, 130))
def test_random_programs_byte_by_byte(seed):
    """While op t runs, all lives that begins before it ends and is read by it or behind it."""
    created = random_program(np.random.default_rng(seed))
    result = simulate(created, SYSTEM)
    for lane, entry in zip(result.lanes, created.entries):
        buffers, remaining = walk(created, entry.function)
        count = sum(1 for _ in lane.events())
        lives = [
            (
                in_blocks(size),
                task,
                count if any(b is k for k in remaining) else max([task, *readers]),
            )
            for b in buffers
            for size, task, readers in [b]
        ]
        fn = created.functions[entry.function]
        resident = sum(in_blocks(fn.values[i].bytes) for i in fn.params)
        levels = [
            resident + sum(size for size, first, last in lives if first <= t <= last)
            for t in range(count + 1)
        ]
        assert lane.account.peak_bytes == max(levels)
        assert sum(lane.account.at_peak.values()) == max(levels)
        device = next(d for d in result.devices if d.id == lane.devices[0])
        assert device.peak_memory_bytes == max(levels)
        starts = [round(e.start_s * 1e12) for e in lane.events()]
        ends = [round((e.start_s + e.duration_s) * 1e12) for e in lane.events()]
        steps = [(round(time_s * 1e12), size) for time_s, size in lane.memory]
        times = [min(starts[t:]) for t in range(count)] + [max(ends)]
        for time_ps in set(times):
            here = [level for t, level in zip(times, levels) if t == time_ps]
            shown = [size for t, size in steps if t == time_ps]
            before = [size for t, size in steps if t < time_ps] or [resident]
            assert [before[-1], *shown][-1] == here[-1]
            assert max([*shown, *([] if shown else before[-1:])]) == max(here) or (
                max(here) == before[-1]
            )
