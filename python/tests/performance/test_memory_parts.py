# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parts of the account of memory by hand: names of groups, branches, remedies, steady periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import SYSTEM, Build, program
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan import RankStep, Schedule
from tvm_distir.core.plan.schedules.programs import programs
from tvm_distir.performance.memory.account import Label, LiveBuffer, MemoryAccount, holders
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.call_variants import DROPPED, OWN, CallVariant
from tvm_distir.performance.memory.remedies import verdict
from tvm_distir.performance.memory.stage_actions import _lasts
from tvm_distir.performance.memory.steady_state import cut
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.simulation.simulator import simulate

BLOCK = 512


def test_a_group_has_the_common_name_and_all_bytes() -> None:
    """Numbers that differ are ``*``, those that are the same stay, and so do single names."""
    names = [("h2.w1", 100), ("h10.w1", 100), ("h2.w2", 100), ("h3.b", 7), ("ln", 900)]
    buffers = [LiveBuffer(Label(name, "op", "f", "F0"), 0, size) for name, size in names]
    found = {(group.what, group.bytes, group.count) for group in holders(buffers)}
    assert found == {("h*.w*", 300, 3), ("h3.b", 7, 1), ("ln", 900, 1)}
    (alike,) = holders(buffers[:2])
    assert (alike.what, alike.role, alike.function, alike.unit) == ("h*.w1", "weights", "f", "F0")
    assert asdict(alike) == {**vars(alike), "bytes": 200, "count": 2}


@pytest.mark.parametrize(("then", "other"), [(4, 10), (10, 4), (7, 7)])
def test_a_branch_holds_the_most_of_either_side(then: int, other: int) -> None:
    """In blocks: x 1, z 2, the condition 1, and the temporary and the result of a branch."""
    sides = {}
    for name, blocks in (("then", then), ("other", other)):
        build = Build().param("x").param("z").compute("t", "x", 1, blocks * BLOCK)
        sides[name] = build.compute("r", "t z", 1, 3 * BLOCK).done("r")
    main = Build().param("x", BLOCK).param("z", 2 * BLOCK).compute("c", "x", 1, BLOCK)
    inputs = main.of("c x z x z")
    outputs = (main.new("y", 3 * BLOCK),)
    main.ops.append(Op("y", "branch", "If", inputs, outputs, callee="then", otherwise="other"))
    made = program((("a",), (1,)), **sides, main=main.done("y"))
    account = simulate(made, SYSTEM).lanes[0].account
    assert account.peak_bytes == (1 + 2 + 1 + max(then, other) + 3) * BLOCK
    assert sum(account.at_peak.values()) == account.peak_bytes
    assert account.most == account.at_peak  # x and z are held throughout
    assert sum(group.bytes for group in account.holders) == account.peak_bytes
    assert max(group.bytes for group in account.holders) == max(then, other) * BLOCK
    assert account.moment.startswith("main/" + ("then" if then >= other else "other"))


def test_blocks_of_one_size_leave_no_gap() -> None:
    """Best fit puts each in a place that another of its size has left."""
    sizes = Sizes(kept=BLOCK, weights=BLOCK)
    for schedule in (Schedule("1f1b", 3, 6), Schedule("gpipe", 2, 4)):
        accounts = [lane.account for lane in simulate(stages(schedule, sizes), SYSTEM).lanes]
        assert max(account.peak_bytes for account in accounts) > 3 * BLOCK
        assert all(account.fragmentation_bytes == 0 for account in accounts)


AT_PEAK = {"weights": 800, "states": 1600, "gradients": 800, "stashes": 400, "inputs": 100}


def remedies(**placements: str) -> dict[str, int]:
    """Return what remedies leave of 3700 bytes on a mesh of 4 parts of the data, and 2 others."""
    build = Build()
    for name, role in (("x", "input"), ("w", "weight"), ("v", "weight"), ("m", "state")):
        build.param(name, 100, role)
    build.values = [
        value._replace(placement=placements.get(value.name, "R, R")) for value in build.values
    ]
    made = program((("dp", "tp"), (4, 2)), main=build.compute("y", "x", 1, 4).done("y"))
    account = MemoryAccount("caching", 3700, 0, "main", AT_PEAK, AT_PEAK, ())
    for capacity in (3700, 4000):
        assert verdict(made, 0, account, capacity) is None
    result = verdict(made, 0, account, 3600)
    assert result is not None and result.missing_bytes == 100
    fits = [remedy.name for remedy in result.remedies if remedy.peak_bytes <= 3600]
    assert result.chosen == fits[0]
    data = result.to_dict()
    assert data["chosen"] == fits[0] and data["missing_bytes"] == 100
    assert data["remedies"] == [{"name": r.name, "peak_bytes": r.peak_bytes}
                                for r in result.remedies]  # fmt: skip
    return {remedy.name: remedy.peak_bytes for remedy in result.remedies}


def test_remedies_divide_what_is_replicated() -> None:
    """By 4 along the data: states 1600 -> 400, then gradients 800 -> 200, then weights."""
    found = remedies(x="S[0], R")
    assert found["ZeRO stage 1"] == 3700 - 1200
    assert found["ZeRO stage 2"] == 3700 - 1200 - 600
    assert found["ZeRO stage 3"] == 3700 - 1200 - 600 - 600
    assert found["micro-batch / 2"] == 3700 - 200 - 50
    assert found["tp x 2"] == 3700 - (800 + 1600 + 800 + 400) // 2
    assert next(iter(found)) == "ZeRO stage 1" and list(found)[-1] == "tp x 2"


def test_what_is_divided_already_is_not_divided_again() -> None:
    """The states are along the data; of the weights one half is. All others are replicated."""
    found = remedies(x="S[0], R", m="S[0], R", w="S[0], R")
    assert "ZeRO stage 1" not in found
    assert found["ZeRO stage 2"] == 3700 - 600
    assert found["ZeRO stage 3"] == 3700 - 600 - 300
    assert not any(name.startswith("ZeRO") for name in remedies())  # nothing is along the data


def test_more_tensor_parallelism_halves_what_it_divides() -> None:
    """A third of the bytes of weights and states is cut along ``tp``."""
    found = remedies(x="S[0], R", w="R, S[1]")
    most = 800 + 1600 + 800 + 400
    assert found["tp x 2"] == pytest.approx(3700 - most / 6, abs=1)


def _in_pairs(micros: int) -> Schedule:
    """1F1B in which the second micro-batch of each pair comes first: periods are of two."""
    orders = Schedule("1f1b", 2, micros).orders
    units = tuple(tuple(u._replace(micro=u.micro ^ 1) for u in units) for units in orders)
    return Schedule("custom", 2, micros, units=units)


SCHEDULES = [
    _in_pairs(24),
    _in_pairs(26),
    Schedule("1f1b", 4, 24),
    Schedule("gpipe", 3, 24),
    Schedule("interleaved", 3, 96, 2),
    Schedule("interleaved", 2, 24, 3),
    Schedule("zero_bubble", 4, 48),
]


def _later(steps: Sequence[RankStep], by: int) -> list[RankStep]:
    return [step._replace(unit=step.unit._replace(micro=step.unit.micro + by)) for step in steps]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}{s.stages}")
def test_periods_that_are_cut_are_those_that_come_again(schedule: Schedule) -> None:
    """Steps with the periods put back, each of later micro-batches, are those of the schedule."""
    for steps in programs(schedule):
        shorter = cut(steps, schedule)
        if schedule.kind == "gpipe":  # all are in flight at once
            assert shorter is None
            continue
        assert shorter is not None and shorter.times > 0
        at, stride = shorter.at, shorter.stride
        period = shorter.steps[at - shorter.period : at]
        again = [step for n in range(shorter.times) for step in _later(period, (n + 1) * stride)]
        behind = _later(shorter.steps[at:], shorter.times * stride)
        assert [*shorter.steps[:at], *again, *behind] == list(steps)
        before = list(range(len(steps) + 1))
        repeated = shorter.repeated(before, np.arange(len(shorter.steps)))
        assert [shorter.steps[k].kind for k in repeated] == [step.kind for step in steps]
        offsets = [shorter.later(before, k) for k in range(len(steps))]
        found = [shorter.steps[k].unit.micro for k in repeated]
        extra = [step.unit.micro - micro for step, micro in zip(steps, found, strict=True)]
        inside = range(at, at + shorter.times * shorter.period)
        assert [offsets[k] for k in inside] == [extra[k] for k in inside]


def _peak(depth: int, returns: bool) -> int:
    """The peak of functions within each other, which also return a value that nobody reads.

    The innermost one makes ``b`` of five blocks, which its next op reads, and then works on six.
    """
    inner = Build().param("x").compute("b", "x", 1, 5 * BLOCK).compute("a", "b", 1, BLOCK)
    inner = inner.compute("big", "a", 1, 6 * BLOCK).compute("r", "big", 1, BLOCK)
    results, functions = "r b" if returns else "r", {}
    functions["f0"] = inner.done(results)
    for level in range(1, depth):
        outer = Build().param("x")
        call_several(outer, "x", f"f{level - 1}", results)
        functions[f"f{level}"] = outer.done(results)
    main = Build().param("x", BLOCK)
    call_several(main, "x", f"f{depth - 1}", results)
    main.compute("y", "r", 1, BLOCK)
    made = program((("a",), (1,)), **functions, main=main.done("y"))
    account = simulate(made, SYSTEM).lanes[0].account
    assert sum(account.at_peak.values()) == account.peak_bytes
    assert sum(group.bytes for group in account.holders) == account.peak_bytes
    return account.peak_bytes


def call_several(build: Build, ins: str, callee: str, outs: str) -> None:
    sizes = {"r": BLOCK, "b": 5 * BLOCK}
    inputs = build.of(ins)
    outputs = tuple(build.new(name, sizes[name]) for name in outs.split())
    build.ops.append(Op(outs, "call", callee, inputs, outputs, callee=callee))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_result_lives_until_its_function_returns(depth: int) -> None:
    """x, the temporary of six blocks, and a or r; the result of five, although nobody reads it."""
    assert _peak(depth, False) == (1 + 6 + 1) * BLOCK
    assert _peak(depth, True) == (1 + 6 + 1 + 5) * BLOCK


def test_an_instance_lasts_until_its_last_slot_is_read() -> None:
    unit = SimpleNamespace(last=[3, 1, 2, 0, 5])
    assert _lasts(unit, SimpleNamespace(same=[0, 0, 2, 2, 4])) == {0: 3, 2: 2, 4: 5}
    assert _lasts(unit, SimpleNamespace(same=[0, 0, 0, 0, 0])) == {0: 5}


def test_results_that_no_caller_needs_are_freed_at_their_last_use() -> None:
    """In blocks above the entry: the most, and what is left. ``f0`` makes b of nine, which its next
    op reads, then works on six and returns one; ``f1`` passes both on, ``f2`` reads b once more.
    """
    inner = Build().param("x").compute("b", "x", 1, 9 * BLOCK).compute("a", "b", 1, BLOCK)
    inner = inner.compute("big", "a", 1, 6 * BLOCK).compute("r", "big", 1, BLOCK)
    functions = {"f0": inner.done("r b")}
    for name in ("f1", "f2"):
        build = Build().param("x")
        outputs = build.new("r", BLOCK), build.new("b", 9 * BLOCK)
        build.ops.append(Op("r b", "call", "f0", build.of("x"), outputs, callee="f0"))
        if name == "f2":
            build.compute("c", "b", 1, 2 * BLOCK)
        functions[name] = build.done("c b" if name == "f2" else "r b")
    main = Build().param("x", BLOCK).compute("y", "x", 1, BLOCK).done("y")
    allocator = CachingAllocator(program((("a",), (1,)), main=main, **functions))

    def blocks(function: str, second: int) -> tuple[int, int]:
        level = allocator.level(CallVariant(function, given=(OWN, second)))
        return level.peak // BLOCK, level.live // BLOCK

    for name in ("f0", "f1"):
        assert blocks(name, OWN) == (9 + 1 + 6, 1 + 9)
        assert blocks(name, DROPPED) == (9 + 1, 1)
    assert blocks("f2", OWN) == (9 + 1 + 6, 2 + 9)
    assert blocks("f2", DROPPED) == (9 + 1 + 6, 2)
