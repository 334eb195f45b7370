# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""States of optimizers in the memory of the host: time and memory against closed forms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import MICRO, SYSTEM, Build, program
from tests.references import using
from tvm_distir.hardware import System
from tvm_distir.hardware.systems.hardware import HostLink
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.program.program import Program
from tvm_distir.planning import Study
from tvm_distir.support.errors.tree import HardwareError

LINKED = replace(SYSTEM, host_link=HostLink("link", 1.0))
"""A copy of 1000 bytes takes a microsecond."""
MODEL = "zoo:gpt?size=tiny,layers=2"


def _copy(build: Build, kind: str, out: str, ins: str, size: int) -> None:
    outputs = tuple(build.new(name, size, "host" if kind == "store" else "activation")
                    for name in out.split())  # fmt: skip
    build.ops.append(Op(out, "copy", f"tvm_distir.host.{kind}", build.of(ins), outputs,
                        collective=kind, payload_bytes=size * len(outputs)))  # fmt: skip


def _updates(copies: list[int], update_us: int) -> Program:
    """Backward work of 10 us, then updates whose two states each take so many us to copy."""
    build = Build().param("x").param("w", 512, "weight")
    for number, size_us in enumerate(copies):
        for state in "mv":
            build.param(f"{state}{number}", 500 * size_us, "host")
    build.compute("g", "x", 10)
    for n, size_us in enumerate(copies):
        _copy(build, "fetch", f"fm{n} fv{n}", f"m{n} v{n}", 500 * size_us)
        build.compute(f"nm{n} nv{n}", f"g fm{n} fv{n}", update_us, 500 * size_us)
        _copy(build, "store", f"sm{n} sv{n}", f"nm{n} nv{n}", 500 * size_us)
    results = " ".join(f"s{state}{n}" for n in range(len(copies)) for state in "mv")
    return program((["dp"], [2]), main=build.done(results))


def _finish_us(copies: list[int], update_us: int) -> int:
    """Return the end of the last copy: each direction is a queue."""
    computed, fetched, stored = 10, 0, 0
    for size_us in copies:
        fetched = max(computed, fetched) + size_us
        computed = fetched + update_us
        stored = max(computed, stored) + size_us
    return max(computed, stored)


@pytest.mark.parametrize("copies", [[5], [5, 7, 1], [1, 9, 1, 2], [3] * 6])
@pytest.mark.parametrize("update_us", [1, 4])
@pytest.mark.parametrize("blocking", [False, True])
def test_each_direction_is_a_queue(copies: list[int], update_us: int, blocking: bool) -> None:
    made = _updates(copies, update_us)
    made.check("program")
    result = td.simulate(made, LINKED, blocking=blocking)
    assert result.time_s == pytest.approx(_finish_us(copies, update_us) * MICRO, rel=1e-12)
    moved = {each.kind: each for each in result.collectives}
    for kind in ("fetch", "store"):
        assert (moved[kind].mesh_axis, moved[kind].count) == ("host", len(copies))
        assert moved[kind].bytes_per_device == 1000 * sum(copies)
    with using("reference"):
        other = td.simulate(made, LINKED, blocking=blocking)
    assert (other.time_s, other.devices) == (result.time_s, result.devices)
    assert list(other.events) == list(result.events)
    assert [event.stream for event in result.events].count("fetch") == len(copies)


def test_a_device_holds_the_states_of_an_update(tmp_path: Path) -> None:
    """Weights of a block, the gradient, and of the largest update old and new states."""
    made = _updates([4, 16, 8], 1)
    account = td.simulate(made, LINKED).lanes[0].account
    held = 2 * 500 * 16
    rounded = sum(math.ceil(500 * 16 / 512) * 512 for _ in range(4))
    assert held < rounded == account.peak_bytes - 512
    assert account.host_bytes == 1000 * (4 + 16 + 8)
    assert account.at_peak.get("states", 0) == 0
    made.save(tmp_path / "program.json")
    assert Program.load(tmp_path / "program.json") == made


@pytest.mark.parametrize(
    ("strategy", "mesh", "shards", "micros"),
    [
        ("data_parallel", {"dp": 2}, 1, None),
        ("fsdp", {"dp": 2}, 2, None),
        ("megatron", {"tp": 2}, None, 2),
    ],
)
def test_the_peak_falls_by_the_states(
    strategy: str, mesh: dict[str, int], shards: int | None, micros: int | None
) -> None:
    """The peak is in the backward pass, and the host has two moments of each parameter."""
    studies = [
        Study(MODEL, strategy=strategy, mesh=mesh, batch=8, system="a100", micro_batches=micros,
              train={"optimizer": "adamw"}, offload_optimizer=offloads)
        for offloads in (None, True)
    ]  # fmt: skip
    before, after = (study.result.lanes[0].account for study in studies)
    entry = list(studies[1].program.as_stages.inputs(0))
    states = [value for _, _, value in entry if value.is_on_host]
    rounded = sum(math.ceil(value.bytes / 512) * 512 for value in states)
    assert before.peak_bytes - after.peak_bytes == rounded
    assert after.host_bytes == sum(value.bytes for value in states)
    if shards is not None:
        weights = sum(math.prod(value.full_shape) for _, _, value in entry if value.is_weight)
        assert after.host_bytes == pytest.approx(2 * 4 * weights / shards, rel=0.01)


@pytest.mark.parametrize("strategy", ["data_parallel", "pipeline:micro_batches=4"])
def test_the_time_grows_with_the_bytes_of_the_host_link(strategy: str) -> None:
    """A link that is slow beside kernels is busy from the first fetch to the last store."""
    mesh = {"dp": 2} if strategy == "data_parallel" else {"pp": 2}
    study = Study(MODEL, strategy=strategy, mesh=mesh, batch=8, system="a100",
                  train={"optimizer": "adamw"}, offload_optimizer=True)  # fmt: skip
    system, made = System.resolve("a100"), study.result
    assert system is not None and made.time_s > 0
    times = [
        td.simulate(study.program, replace(system, host_link=HostLink("link", rate))).time_s
        for rate in (1.0, 0.5)
    ]
    inputs = [
        list(study.program.as_stages.inputs(rank)) for rank in range(2 if "pp" in mesh else 1)
    ]
    most = max(sum(v.bytes for _, _, v in rank if v.role == "host") for rank in inputs)
    assert most <= (times[1] - times[0]) * 1e9 <= 2 * most


def test_memory_of_the_host_does_not_depend_on_the_allocator() -> None:
    """TVM's storage plan and PyTorch's segments have the same states and stashes beside them."""
    options: Any = {
        "strategy": "pipeline:micro_batches=4,schedule=gpipe,offload=all", "mesh": {"pp": 2},
        "batch": 8, "system": "a100", "train": {"optimizer": "adamw"}, "advice": "bounds",
    }  # fmt: skip
    analyses = [
        td.analyze(MODEL, allocator=allocator, offload_optimizer=True, **options)
        for allocator in ("framework", "tvm", "pytorch")
    ]
    sizes = {each.study.result.lanes[0].account.host_bytes for each in analyses}
    inputs = analyses[0].program.as_stages.inputs(0)
    states = sum(value.bytes for _, _, value in inputs if value.is_on_host)
    assert len(sizes) == 1 and sizes.pop() > states > 0
    assert all("Host memory: at most" in str(each) for each in analyses)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(HardwareError, match="DIST0704") as refused:
        td.simulate(_updates([1], 1), SYSTEM)
    assert "--offload-optimizer" in str(refused.value)


def test_reports_and_traces_have_the_copies(tmp_path: Path) -> None:
    analysis = td.analyze(
        MODEL, strategy="data_parallel", mesh={"dp": 2}, batch=8, system="a100",
        train={"optimizer": "adamw"}, offload_optimizer=True,
    )  # fmt: skip
    text = str(analysis)
    assert "Host memory: at most" in text
    analysis.study.result.to_chakra(tmp_path)
    analysis.study.result.to_perfetto(tmp_path / "trace.json")
    trace: Any = json.loads((tmp_path / "trace.json").read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert any("host.fetch" in name for name in names)
