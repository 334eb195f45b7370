# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels that run beside a started collective, against event-driven schedules of their ops."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import Build, program
from tests.transforms.training.pipeline_models import schedule_of
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.program.numbers import numbers_of
from tvm_distir.performance.simulation.batched import Batch
from tvm_distir.planning.calibration.step_times import with_constants
from tvm_distir.planning.strategies.composition import make_plan

SYSTEM = td.System.load("h100")
SLOWDOWN = SYSTEM.constant("overlap_slowdown")


def slowed(slowdown):
    return with_constants(SYSTEM, {"overlap_slowdown": slowdown})


def started(kernel_us, size):
    """A collective, a kernel beside it, and a kernel that reads both."""
    build = Build().param("x", size)
    build.collective("moved", "x", "all_reduce", size, 8)
    build.ops[-1] = build.ops[-1]._replace(op="relax.dist.all_reduce_start")
    build.compute("beside", "x", kernel_us)
    build.values.append(build.values[build.index["moved"]]._replace(name="arrived"))
    build.index["arrived"] = len(build.values) - 1
    wait = build.ops[-2]._replace(
        name="arrived", kind="wait", op="relax.dist.wait", inputs=build.of("moved"),
        outputs=build.of("arrived"), collective="", payload_bytes=0,
    )  # fmt: skip
    build.ops.append(wait)
    build.compute("last", "beside arrived", 10)
    return program((("dp",), (8,)), main=build.done("last"))


def event_driven(tasks, slowdown):
    """Return the seconds of a step and of its exposed communication.

    Kernels run at ``1 / slowdown`` of their speed while a collective of the device runs.
    """
    left = [float(task.duration_ps) for task in tasks]
    needed = [set(task.data) | set(task.after) for task in tasks]
    waiting, running, ended = set(range(len(tasks))), set[int](), set[int]()
    now = exposed = 0.0
    while waiting or running:
        ready = {k for k in waiting if needed[k] <= ended}
        waiting, running = waiting - ready, running | ready
        kernels = {k for k in running if tasks[k].kind == "compute"}
        speed = 1 / slowdown if len(running) > len(kernels) else 1.0
        speeds = {k: speed if k in kernels else 1.0 for k in running}
        spent = min(left[k] / speeds[k] for k in running)
        now += spent
        exposed += 0.0 if kernels else spent
        for k in running:
            left[k] -= spent * speeds[k]
        done = {k for k in running if left[k] < 1e-2}
        running, ended = running - done, ended | done
    return now / 1e12, exposed / 1e12


@pytest.mark.parametrize("kernel_us", [1e6, 2.4e5, 1e5, 0])
def test_one_collective(kernel_us):
    """Kernels of 20, 5, 2 and 0 ms beside an all-reduce of 4 ms."""
    created = started(kernel_us, 10**9)
    alone = td.simulate(created, slowed(1.0))
    tasks = alone.lanes[0].traced().tasks()
    for slowdown in (1.0, SLOWDOWN, 2.0):
        result = td.simulate(created, slowed(slowdown))
        time_s, exposed_s = event_driven(tasks, slowdown)
        assert result.time_s == pytest.approx(time_s, abs=1e-10)
        assert result.devices[0].exposed_comm_s == pytest.approx(exposed_s, abs=1e-10)
        unfolded = td.simulate(created, slowed(slowdown), fold_devices=False)
        assert unfolded.time_s == result.time_s


@pytest.mark.parametrize(
    ("strategy", "tolerance"), [("data_parallel", 1e-6), ("zero:stage=1", 1e-3), ("fsdp", 7e-3)]
)
def test_steps_of_sharded_weights(strategy, tolerance):
    """A gather slows kernels from its issue on, which is early behind another gather."""
    model = td.zoo.gpt(layers=4, hidden=2048, heads=16, seq=1024, vocab=1024, batch=8)
    step = td.train_step(model, "cross_entropy", "adam", master=True)
    plan = make_plan(step, strategy, {"dp": 8})
    created = td.export(td.distribute(step, plan, system=SYSTEM))
    results = [td.simulate(created, slowed(slowdown)) for slowdown in (1.0, 1.1, SLOWDOWN, 1.5)]
    alone, _, result, _ = results
    time_s, exposed_s = event_driven(alone.lanes[0].traced().tasks(), SLOWDOWN)
    assert time_s > 1.005 * alone.time_s
    assert result.time_s == pytest.approx(time_s, rel=tolerance)
    device = result.devices[0]
    assert device.exposed_comm_s == pytest.approx(exposed_s, abs=tolerance * time_s)
    assert device.compute_s == pytest.approx(sum(op.time_s for op in result.lanes[0].ops))
    times = [each.time_s for each in results]
    assert times == sorted(times) and times[0] < times[-1]
    assert max(held for _, held in result.lanes[0].memory) == device.peak_memory_bytes


def test_steps_simulated_together():
    """Stages whose weights are gathered in each phase, as a sweep prices them."""
    model = td.zoo.gpt(layers=2, hidden=2048, heads=16, seq=256, vocab=1024, batch=8)
    step = td.train_step(model, optimizer="adam", schedule=schedule_of("1f1b", 2, 2))
    plan = make_plan(step, "pipeline:micro_batches=2+zero:stage=3", {"pp": 2, "dp": 4})
    created = grouped(td.export(td.distribute(step, plan, system=SYSTEM)), "fused")
    numbers = numbers_of(created)
    quantities = np.array(numbers.values, np.int64)[:, None]
    times = []
    for slowdown in (1.0, SLOWDOWN, 3.0):
        batch = Batch(created, slowed(slowdown), numbers, np.arange(len(quantities)), False)
        result = batch.run(quantities, [created.meshes], np.zeros(1, np.int64))
        times.append(td.simulate(created, slowed(slowdown), kernels="eager").time_s)
        assert result.time_ps[0] == round(times[-1] * 1e12)
    assert times[0] < times[1] < times[2]
