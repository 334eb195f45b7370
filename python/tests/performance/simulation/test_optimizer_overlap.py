# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives of a distributed optimizer beside the first and last micro-batch of a step."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

import tvm_distir as td
from tests.transforms.training.pipeline_models import schedule_of
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import GATHER, REDUCE
from tvm_distir.performance.simulation.critical import critical_path
from tvm_distir.performance.simulation.pipeline import optimizer_overlap
from tvm_distir.performance.simulation.pipeline.optimizer_overlap import with_optimizer_overlap
from tvm_distir.performance.simulation.pipeline.unit_functions import with_units
from tvm_distir.planning.strategies.composition import make_plan

SYSTEM = td.System.load("a100")


@functools.cache
def _program(kind: str, micros: int, inside: str = "zero:stage=1") -> Program:
    """A step of four layers of 200 million weights on two stages of four devices."""
    model = td.zoo.gpt(layers=4, hidden=4096, heads=32, seq=1024, vocab=1024, batch=16)
    step = td.train_step(model, optimizer="adam", schedule=schedule_of(kind, 2, micros))
    chunks = ",chunks=2" if kind == "interleaved" else ""
    spec = f"pipeline:schedule={kind},micro_batches={micros}{chunks}+data_parallel+{inside}"
    axes = {"pp": 2, "dp": 4, "tp": 2} if "megatron" in inside else {"pp": 2, "dp": 4}
    plan = make_plan(step, spec, axes)
    return td.export(td.distribute(step, plan, system=SYSTEM, overlap_optimizer=True))


def _moved_bytes(result: Any) -> Counter[tuple[str, str]]:
    """Return the bytes that a device of each mesh gets, by kind and axes."""
    sizes = Counter[tuple[str, str]]()
    for row in result.collectives:
        sizes[row.kind, row.mesh_axis] += row.bytes_per_device
    return sizes


def _kernels_s(result: Any) -> list[float]:
    """Return the time of the kernels of each lane, as if no collective slowed them."""
    return [sum(op.time_s for op in lane.ops if op.bound_by != "network") for lane in result.lanes]


@pytest.mark.parametrize(
    ("kind", "micros", "inside"),
    [
        ("zero_bubble", 2, "zero:stage=1"),
        ("interleaved", 4, "megatron"),
    ],
)
def test_overlap_hides_no_more_than_its_parts(kind: str, micros: int, inside: str) -> None:
    """The step is never slower, and saves at most what it communicates.

    It takes at least as long as each device computes, and as long as it communicates.
    """
    program = _program(kind, micros, inside)
    apart = td.simulate(program, SYSTEM)
    beside = td.simulate(program, SYSTEM, overlap_optimizer=True)
    assert beside.time_s < apart.time_s
    for device, before in zip(beside.devices, apart.devices, strict=True):
        assert device.flops == before.flops
        assert beside.time_s >= max(device.compute_s, device.comm_s)
        assert apart.time_s - beside.time_s <= before.comm_s
    assert _moved_bytes(beside) == _moved_bytes(apart)
    assert _kernels_s(beside) == pytest.approx(_kernels_s(apart))


def test_overlap_saves_at_most_the_phases_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives hide behind one forward and one backward pass.

    On the communicator of tensor parallelism they would delay its collectives.
    """
    program = _program("1f1b", 4, "megatron+zero:stage=1")
    apart = td.simulate(program, SYSTEM)
    beside = td.simulate(program, SYSTEM, overlap_optimizer=True)
    longest = {
        name: max(e.duration_s for lane in apart.lanes for e in lane.timeline if e.name == name)
        for name in ("forward", "backward")
    }
    assert 0 < apart.time_s - beside.time_s <= sum(longest.values())
    parts = critical_path(beside.lanes)
    assert sum(part.time_s for part in parts) == pytest.approx(beside.time_s)
    monkeypatch.setattr(optimizer_overlap, "CHANNEL", 0)
    shared = td.simulate(program, SYSTEM, overlap_optimizer=True)
    assert beside.time_s < shared.time_s


def _work(ops: tuple[Op, ...], functions: Any) -> Counter[Any]:
    """Return the kernels of ops and of what they call, and the bytes of collectives by kind."""
    work = Counter[Any]()
    for op in ops:
        if op.kind == "call":
            work.update(_work(functions[op.callee].ops, functions))
        elif op.kind == "collective":
            work[op.op, op.mesh_axes] += op.payload_bytes
        elif op.kind == "compute":
            work[op._replace(inputs=(), outputs=())] += 1
    return work


@pytest.mark.parametrize(
    ("kind", "micros", "inside"),
    [("1f1b", 4, "megatron+zero:stage=1"), ("zero_bubble", 2, "zero:stage=1")],
)
def test_units_do_the_work_of_their_phases_in_the_order_of_their_operands(
    kind: str, micros: int, inside: str
) -> None:
    """Each value is made once, before it is read, and every kernel of the phases runs once."""
    program = with_optimizer_overlap(grouped(_program(kind, micros, inside), SYSTEM.kernels))
    staged = program.staged
    assert staged is not None
    seen = Counter[str]()
    for number, role in enumerate(staged.stage_kinds):
        phases = {phase.name: program.functions[phase.function] for phase in role.phases}
        assert {GATHER, REDUCE} <= phases.keys()
        units_program, units = with_units(program, staged, 0, [number])
        for (_, name), unit in units.items():
            fn = units_program.functions[unit.function]
            known = {*fn.params, *(n for n, v in enumerate(fn.values) if v.role == "constant")}
            for op in fn.ops:
                assert known.issuperset(op.inputs)
                assert known.isdisjoint(op.outputs)
                known.update(op.outputs)
            assert known.issuperset(fn.results)
            seen[name] += any(op.channel for op in fn.ops)
        runs = {"F": ["gather", "rows", "forward"]}
        last = {"1f1b": "B++", "zero_bubble": "W++"}[kind]
        backward = ["backward"] if kind == "1f1b" else []
        runs[last] = [*backward, "weight", "accumulate_next", "reduce"]
        for name, parts in runs.items():
            expected = Counter[Any]()
            for part in parts:
                if part in phases:
                    expected.update(_work(phases[part].ops, program.functions))
            unit_ops = units_program.functions[units[number, name].function].ops
            assert _work(unit_ops, program.functions) == expected
            channel = [op for op in unit_ops if op.channel]
            assert len(channel) > 1
            assert all(op.inputs[-1] in before.outputs for before, op in pairwise(channel))
    assert set(+seen) == {"F", last}
