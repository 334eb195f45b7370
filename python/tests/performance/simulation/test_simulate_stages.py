# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages: against the step written out, and against closed forms."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

import tvm_distir as td
from tests.nightly import nightly_but
from tests.performance.simulation.hand_programs import MICRO, SYSTEM
from tests.performance.simulation.hand_stages import Sizes, stages
from tests.plain_systems import PLAIN_A100
from tests.references import using
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schedules.pipeline_actions import BACKWARD, FORWARD, WEIGHT
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.performance.memory.stage_actions import make_unit
from tvm_distir.performance.program.stage_kind import Phase
from tvm_distir.performance.simulation.result import Result
from tvm_distir.planning.strategies.composition import compose, make_plan
from tvm_distir.support.errors.tree import SimulationError
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

DGX = td.System.load(PLAIN_A100)
KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v")


def _text(kind: str, ranks: int, micros: int) -> str:
    chunks = ",chunks=2" if kind == "interleaved" else ""
    return f"{kind}:stages={ranks},micro_batches={micros}{chunks}"


@functools.cache
def _local(kind: str, ranks: int, micros: int, inside: str = "data_parallel+megatron") -> Any:
    """A training step in stages at level 5, on two by two devices per rank."""
    layers = 8 if ranks * (2 if kind in ("interleaved", "zero_bubble_v") else 1) > 4 else 4
    mod = td.zoo.gpt(size="tiny", layers=layers, batch=2)
    step = td.train_step(mod, optimizer="adam", clip=1.0, schedule=_text(kind, ranks, micros))
    options = _text(kind, ranks, micros).partition(",")[2]
    spec = f"pipeline:schedule={kind},{options}+{inside}"
    return td.distribute(step, make_plan(step, spec, {"pp": ranks, "dp": 2, "tp": 2}))


def _figures(result: Result) -> tuple[Any, ...]:
    return (
        result.time_s, result.devices, result.collectives, result.unmodelled_ops, result.branches
    )  # fmt: skip


def _same(local: Any, blocking: bool) -> None:
    """Compare with the step written out: every figure is equal, to the picosecond and the byte."""
    short = td.simulate(td.export(local), DGX, blocking=blocking)
    whole = td.simulate(td.export(ExpandSchedule()(local)), DGX, blocking=blocking)
    assert short.pipeline is not None
    assert whole.pipeline is None
    assert _figures(short) == _figures(whole)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
def test_running_statistics_go_from_micro_batch_to_micro_batch(kind: str, blocking: bool) -> None:
    model = td.zoo.resnet(size="tiny", batch=4)
    step = td.train_step(model, schedule=_text(kind, 2, 3))
    words = f"pipeline:schedule={kind},micro_batches=3+data_parallel"
    local = td.distribute(step, make_plan(step, words, {"pp": 2, "dp": 2}))
    program = td.export(local)
    short = td.simulate(program, DGX, blocking=blocking)
    whole = td.simulate(td.export(ExpandSchedule()(local)), DGX, blocking=blocking)
    assert (short.time_s, short.collectives) == (whole.time_s, whole.collectives)
    assert program.staged is not None
    for left, other in zip(short.lanes, whole.lanes, strict=True):
        role = program.staged.stage_kind_of(short.lanes.index(left))
        carried = sum(-(-role.slots[read].bytes // 512) * 512 for read, _ in role.carried)
        # Written out, only the last statistics are known to replace those given.
        more = other.account.peak_bytes - left.account.peak_bytes
        assert 0 <= more <= carried


@pytest.mark.parametrize(
    ("ranks", "micros", "blocking"),
    nightly_but(
        [(2, 4, False), (2, 4, True), (3, 8, False), (3, 8, True), (4, 1, False), (4, 1, True)],
        {2, 5},
    ),
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_stages_is_the_step_written_out(
    kind: str, ranks: int, micros: int, blocking: bool
) -> None:
    """Also where one micro-batch leaves the updates to hold the most, those of tied weights too."""
    _same(_local(kind, ranks, micros), blocking)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("inside", ["deepspeed_zero3", "data_parallel+megatron+sequence"])
def test_values_of_collectives_that_other_phases_read(inside: str, blocking: bool) -> None:
    _same(_local("1f1b", 2, 4, inside), blocking)


@pytest.mark.parametrize("blocking", [False, True])
def test_started_collectives(blocking: bool) -> None:
    _same(ScheduleCollectives()(SplitCollectives()(_local("1f1b", 2, 4))), blocking)


def _tower(kind: str = "1f1b", rate: float = 0.0, **more: Any) -> Any:
    schedule = {"kind": kind, "stages": 2, "micro_batches": 4, **more}
    model = tower(8, 8, tied=False, rate=rate)
    return td.train_step(model, "mse", "adam", schedule=schedule)


@pytest.mark.parametrize("spare", [(), (MeshSpec("spare", {"x": 2}, start=20),)])
def test_ranks_on_meshes_of_their_own(spare: tuple[MeshSpec, ...]) -> None:
    """A stage on four devices of two axes, the next one on two of one axis, on another node.

    Meshes of the plan that no stage is on do not count.
    """
    step = _tower(meshes=["wide", "narrow"])
    wide, narrow = MeshSpec("wide", {"dp": 2, "tp": 2}), MeshSpec("narrow", {"dp": 2}, start=10)
    rules = [
        rule
        for mesh, function, text in (
            (wide, "stage0", "data_parallel+tensor_parallel"),
            (narrow, "stage1", "zero:stage=1"),
        )
        for rule in compose(step, mesh, text).rules
        if rule.function == function
    ]
    inputs = {"kind": "1f1b", "stages": 2, "micro_batches": 4, "meshes": ["wide", "narrow"]}
    plan = Plan((*spare, wide, narrow), tuple(rules), schedule=Schedule.resolve(inputs))
    local = td.distribute(step, plan)
    program = td.export(local)
    assert [mesh.device_ids for mesh in program.meshes] == [(0, 1, 2, 3), (10, 11)]
    stages = [(name, fn.mesh) for name, fn in program.functions.items() if name[:5] == "stage"]
    assert all(mesh == int(name[5]) for name, mesh in stages)
    for blocking in (False, True):
        _same(local, blocking)


def test_numbers_of_a_micro_batch_are_counted_once() -> None:
    """Written out, the first stream of random numbers stands there for every micro-batch."""
    step = _tower(rate=0.25)
    local = td.distribute(step, make_plan(step, "data_parallel", {"dp": 2}))
    short = td.simulate(td.export(local), DGX)
    whole = td.simulate(td.export(ExpandSchedule()(local)), DGX)
    assert (short.time_s, short.collectives) == (whole.time_s, whole.collectives)
    for left, other in zip(short.devices, whole.devices, strict=True):
        numbers, rest = divmod(other.param_bytes - left.param_bytes, 8)  # int64
        assert (0 <= numbers < 4, rest) == (True, 0)  # of four micro-batches
        assert other.peak_memory_bytes - left.peak_memory_bytes == 512 * numbers


@pytest.mark.parametrize("inside", ["data_parallel", "deepspeed_zero3"])
@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble", "interleaved"])
def test_weights_stashed_for_every_micro_batch(kind: str, inside: str) -> None:
    chunks = {"chunks": 2} if kind == "interleaved" else {}
    step = _tower(kind, stash=True, **chunks)
    local = td.distribute(step, make_plan(step, inside, {"dp": 2}))
    for blocking in (False, True):
        _same(local, blocking)


def test_the_plain_event_loop_gives_the_same() -> None:
    program = td.export(_local("1f1b", 2, 4))
    single = td.simulate(program, DGX)
    with using("reference"):
        other = td.simulate(program, DGX)
    assert _figures(single) == _figures(other)


@pytest.mark.parametrize("micros", [1, 4, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_bubble_of_equal_stages(kind: str, ranks: int, micros: int) -> None:
    schedule = Schedule(kind, ranks, micros)
    result = td.simulate(stages(schedule, Sizes(3, 6)), SYSTEM)
    assert result.time_s == pytest.approx((micros + ranks - 1) * 9 * MICRO, rel=1e-12)
    assert result.pipeline is not None
    assert result.pipeline.bubble == pytest.approx((ranks - 1) / (micros + ranks - 1))


@pytest.mark.parametrize(("ranks", "micros", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 3)])
def test_bubble_of_interleaved_stages(ranks: int, micros: int, chunks: int) -> None:
    schedule = Schedule("interleaved", ranks, micros, chunks)
    result = td.simulate(stages(schedule, Sizes(3, 6)), SYSTEM)
    expected = (micros * chunks + ranks - 1) * 9  # 3 and 6 are those of a chunk
    assert result.time_s == pytest.approx(expected * MICRO, rel=1e-12)


@pytest.mark.parametrize(("ranks", "micros"), [(2, 4), (4, 8), (4, 12)])
def test_zero_bubble_leaves_the_ramp_alone(ranks: int, micros: int) -> None:
    schedule = Schedule("zero_bubble", ranks, micros)
    result = td.simulate(stages(schedule, Sizes(1, 1, 1)), SYSTEM)
    assert result.time_s == pytest.approx((3 * micros + ranks - 1) * MICRO, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "wanted"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8]), ("zero_bubble", [])]
)
def test_activations_in_flight(kind: str, wanted: list[int]) -> None:
    """What forward keeps is there until the last phase of its micro-batch has read it."""
    schedule = Schedule(kind, 4, 8)
    result = td.simulate(stages(schedule, Sizes(3, 6, 3, kept=1024, weights=512)), SYSTEM)
    most = [max(size for _, size in memory) for memory in result.memory_timeline.values()]
    changes = {FORWARD: 1, BACKWARD: 0 if schedule.splits_backward else -1, WEIGHT: -1}
    counted = [
        max(itertools.accumulate(changes[unit.phase] for unit in units))
        for units in schedule.orders
    ]
    assert not wanted or counted == wanted
    assert most == [512 + 1024 * count for count in counted]
    assert [d.peak_memory_bytes for d in result.devices] == most
    assert [d.param_bytes for d in result.devices] == [512] * 4


def test_messages_wait_for_what_they_carry_and_for_each_other() -> None:
    """Two ranks, one micro-batch; between nodes 1000 bytes take 100 + 1 + 1 us."""
    result = td.simulate(stages(Schedule("1f1b", 2, 1), Sizes(3, 6, moved=1000)), SYSTEM)
    events = {(e.stream, e.args["binding"]): e for e in result.events if e.stream != "compute"}
    forward = events["send", "forward 0"]
    assert forward.start_s == pytest.approx(3 * MICRO)
    wire_s = forward.duration_s
    assert wire_s > 100 * MICRO
    assert result.time_s == pytest.approx(2 * wire_s + 18 * MICRO)
    assert [c.kind for c in result.collectives] == ["send", "send"]
    assert [c.mesh_axis for c in result.collectives] == ["rank1->rank0", "rank0->rank1"]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_no_schedule_waits_for_itself(kind: str, ranks: int, blocking: bool) -> None:
    schedule = Schedule.parse(_text(kind, ranks, 8))
    program = stages(schedule, Sizes(3, 6, 3, moved=1000), summed=True)
    result = td.simulate(program, SYSTEM, blocking=blocking)
    units = sum(e.name in ("forward", "backward") for e in result.events)
    assert units == 2 * 8 * schedule.stage_count


def test_sums_over_stages_are_told_to_all() -> None:
    """The last stage's term and sum follow the first one's; then all end."""
    result = td.simulate(stages(Schedule("1f1b", 2, 1), Sizes(3, 6), summed=True), SYSTEM)
    matches = {(e.stream, e.args["binding"], e.device): e for e in result.events}
    reported = matches["send", "total", 8]
    added = matches["compute", "add", 8]
    assert reported.start_s == pytest.approx(added.start_s + added.duration_s)
    assert matches["send", "sum", 0].start_s == pytest.approx(
        result.time_s - 2 * reported.duration_s - MICRO
    )


def test_every_device_by_itself_is_refused() -> None:
    with pytest.raises(SimulationError, match="DIST0723"):
        td.simulate(stages(Schedule("1f1b", 2, 2), Sizes()), SYSTEM, fold_devices=False)


def test_times_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SimulationError, match="DIST0721"):
        td.simulate(stages(Schedule("1f1b", 2, 512), Sizes(4e9, 4e9)), SYSTEM)


def test_a_phase_that_reads_a_slot_twice() -> None:
    """As the end of the step, where a weight of several stages is read for its norm and updated."""
    lives = SimpleNamespace(results=(), params=3)
    framework: Any = SimpleNamespace(lives={"end": lives})
    unit = make_unit("end", [Phase("end", "end", (7, 4, 7), ())], framework, {}, (), ())
    assert unit.inputs == (7, 4)
    assert unit.parts[0].reads == (0, 1, 0)
    assert unit.last == (0, 0)
