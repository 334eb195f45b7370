# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pipelines whose stages run on different types of devices: laws, hand counts and refusals."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import MICRO, round_system
from tests.performance.simulation.hand_stages import Sizes, stages
from tests.plain_systems import PLAIN_A100, PLAIN_H100
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.plan import Schedule
from tvm_distir.performance import Program, Result
from tvm_distir.performance.program.parts import reached
from tvm_distir.planning import make_plan
from tvm_distir.support import HardwareError, SimulationError
from tvm_distir.transforms import ExpandSchedule

GIB = 2**30
FAST, SLOW = 200.0, 80.0
SCHEDULES = ["gpipe", "1f1b", "interleaved:chunks=2", "zero_bubble"]
GPIPE_4 = Schedule("gpipe", 2, 4)


def _device(name: str, tflops: float, memory_gib: float = 64.0, **more: float) -> dict[str, Any]:
    return {
        "name": name, "memory_capacity_GiB": memory_gib, "memory_bandwidth_GBps": 8 * tflops,
        "matmul_TFLOPs": {"default": tflops}, **more,
    }  # fmt: skip


def _system(*devices: Mapping[str, Any], per_node: int = 4, **more: Any) -> td.System:
    network = {
        "intra_node": {"name": "link", "devices_per_node": per_node, "bandwidth_GBps": 150},
        "inter_node": {"name": "fabric", "nics_per_node": 4, "bandwidth_per_nic_GBps": 25},
    }
    device = list(devices) if len(devices) > 1 else devices[0]
    data = {"schema_version": 2, "name": "mixed", "device": device, "network": network, **more}
    return td.System.from_dict(data)


@functools.cache
def _program(kind: str = "1f1b", ranks: int = 2, tp: int = 2, expanded: bool = False) -> Program:
    schedule, _, options = kind.partition(":")
    text = f"{schedule}:stages={ranks},micro_batches=4" + (f",{options}" if options else "")
    step = td.train_step(td.zoo.gpt(size="tiny", layers=4, batch=2), schedule=text)
    words = f"pipeline:schedule={schedule},{text.partition(':')[2]}+megatron"
    local = td.distribute(step, make_plan(step, words, {"pp": ranks, "tp": tp}))
    return td.export(ExpandSchedule()(local) if expanded else local)


def _figures(result: Result) -> tuple[Any, ...]:
    return result.time_s, list(result.devices), result.collectives, result.fits


@pytest.mark.parametrize("kind", SCHEDULES)
def test_devices_with_equal_numbers_are_one_type(kind: str) -> None:
    """Devices that differ in their names alone, on one network and on two."""
    one, two = _device("one", FAST), _device("two", FAST)
    for per_node in (4, 2):
        plain = td.simulate(_program(kind), _system(one, per_node=per_node))
        mixed = _system(one, two, per_node=per_node)
        assert len(mixed.stages) == 2 and mixed.has_one_network
        assert _figures(td.simulate(_program(kind), mixed)) == _figures(plain)
    # Ranks of a node each: the message between systems crosses nodes, as in one system.
    first, other = _system(one, per_node=2), td.System.from_dict(_data(two))
    apart = td.System.required([first, other])
    assert not apart.has_one_network
    assert _figures(td.simulate(_program(kind), apart)) == _figures(
        td.simulate(_program(kind), first)
    )


def _data(device: Mapping[str, Any]) -> dict[str, Any]:
    """A system like the others, with another name of its network."""
    network = {
        "intra_node": {"name": "link", "devices_per_node": 2, "bandwidth_GBps": 150},
        "inter_node": {"name": "other", "nics_per_node": 4, "bandwidth_per_nic_GBps": 25},
    }
    return {"schema_version": 2, "name": "b", "device": device, "network": network}


def test_equal_systems_alone_are_one_system() -> None:
    assert td.System.load("h100,h100") == td.System.load("h100")
    assert td.System.required(["h100", "a100"]) == td.System.load("h100,a100")


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slower_stage_takes_a_step_between_all_fast_and_all_slow(kind: str, ranks: int) -> None:
    if kind.startswith("interleaved") and ranks == 4:
        pytest.skip("four layers are no eight stages")
    fast, slow = _device("fast", FAST), _device("slow", SLOW)
    program = _program(kind, ranks)
    least, most = (td.simulate(program, _system(one)).time_s for one in (fast, slow))
    for order in ((fast, slow), (slow, fast)):
        assert least < td.simulate(program, _system(*order)).time_s < most


@pytest.mark.parametrize("order", [("fast", "slow"), ("slow", "fast")])
def test_each_rank_computes_as_long_as_on_its_own_device(order: tuple[str, str]) -> None:
    devices = {"fast": _device("fast", FAST), "slow": _device("slow", SLOW)}
    mixed = td.simulate(_program(), _system(*map(devices.__getitem__, order)))
    for rank, name in enumerate(order):
        alone = td.simulate(_program(), _system(devices[name]))
        assert mixed.lanes[rank].kernels == alone.lanes[rank].kernels


def _with_own_functions(program: Program) -> Program:
    """The program with a copy of each function per entry that reaches it."""
    functions, entries = {}, []
    for entry in program.entries:
        for name in reached(program.functions, [entry.function]):
            fn = program.functions[name].on(entry.mesh)
            ops = [op._replace(callee=op.callee and f"{op.callee}@{entry.mesh}") for op in fn.ops]
            functions[f"{name}@{entry.mesh}"] = replace(fn, ops=tuple(ops))
        entries.append(replace(entry, function=f"{entry.function}@{entry.mesh}"))
    return replace(program, functions=functions, entries=tuple(entries))


@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
def test_the_step_written_out_takes_as_long(kind: str) -> None:
    mixed = td.System.required([PLAIN_A100, PLAIN_H100])
    whole = _program(kind, expanded=True)
    with pytest.raises(SimulationError, match=r"DIST0723.*devices of several types run"):
        td.simulate(whole, mixed)
    written, short = (
        td.simulate(each, mixed) for each in (_with_own_functions(whole), _program(kind))
    )
    assert _figures(short) == _figures(written)


@pytest.mark.parametrize("speeds", [(1.0, 0.5), (0.5, 1.0), (0.25, 0.5)])
def test_a_gpipe_of_two_stages_by_hand(speeds: tuple[float, float]) -> None:
    """``f0 + f1 + (m - 1) max(f0, f1)``, and the same of the backward passes."""
    devices = [round_system(matmul_TFLOPs={"default": speed}) for speed in speeds]
    result = td.simulate(stages(GPIPE_4, Sizes(3, 6)), td.System.required(devices))
    forward, backward = ([us / speed for speed in speeds] for us in (3, 6))
    expected_us = sum(sum(each) + 3 * max(each) for each in (forward, backward))
    assert result.time_s == pytest.approx(expected_us * MICRO, rel=1e-9)


def test_fewer_layers_on_the_slower_device_make_a_shorter_step() -> None:
    """Of eight layers, six on a device that is three times as fast as that of the others."""
    fast, slow = (round_system(matmul_TFLOPs={"default": peak}) for peak in (3e-4, 1e-4))
    times = []
    for cut in ("h3", "h5"):
        schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 8, "cuts": [cut]}
        step = td.train_step(tower(8, 8, tied=False), "mse", schedule=schedule)
        local = td.distribute(step, make_plan(step, "pipeline:micro_batches=8", {"pp": 2}))
        times.append([td.simulate(local, each).time_s for each in (fast, [fast, slow])])
    assert times[0][0] < times[1][0] and times[0][1] > times[1][1]


def test_stages_of_a_forward_pass_run_on_their_devices() -> None:
    devices = _device("fast", FAST), _device("slow", SLOW)
    mod = td.zoo.gpt(size="tiny", layers=4, batch=2)
    local = td.distribute(mod, make_plan(mod, "pipeline:layers=3/1", {"pp": 2}))
    mixed = td.simulate(local, _system(*devices))
    for rank, device in enumerate(devices):
        assert mixed.lanes[rank].kernels == td.simulate(local, _system(device)).lanes[rank].kernels


def test_a_message_takes_as_long_as_on_the_slower_network() -> None:
    """A stage of one device per rank: 1,000 bytes at 1 and at 0.25 GB/s between nodes."""
    sizes = Sizes(3, 6, moved=1000)
    wires = [round_system(1), round_system(0.25)]
    alone = [td.simulate(stages(GPIPE_4, sizes), one).time_s for one in wires]
    for order in (wires, wires[::-1]):
        joined = td.simulate(stages(GPIPE_4, sizes), td.System.required(order))
        assert joined.time_s == alone[1] > alone[0]


def test_unequal_systems_share_no_node() -> None:
    """Two ranks of a device each, which are neighbours in a node of one system."""
    near, far = _system(_device("one", FAST)), td.System.from_dict(_data(_device("b", FAST)))
    program = _program(tp=1)
    inside = td.simulate(program, near)
    crossing = td.simulate(program, td.System.required([near, far]))
    sent = [sum(c.time_s for c in r.collectives if c.kind == "send") for r in (inside, crossing)]
    assert sent[1] > sent[0]


def test_the_memory_of_the_smaller_device_decides() -> None:
    peaks = [d.peak_memory_bytes for d in td.simulate(_program(tp=1), "h100").devices]
    assert peaks[0] != peaks[1]
    small, large = ((min(peaks) + max(peaks)) / 2 / GIB, 2 * max(peaks) / GIB)
    fits = [large, small] if peaks[0] > peaks[1] else [small, large]
    for sizes, expected in ((fits, True), (fits[::-1], False)):
        devices = (_device(str(n), FAST, size) for n, size in enumerate(sizes))
        result = td.simulate(_program(tp=1), _system(*devices))
        assert result.fits is expected
        assert [d.memory_capacity_bytes for d in result.devices] == [int(n * GIB) for n in sizes]
        full = max(range(2), key=lambda n: peaks[n] / sizes[n])
        assert result.peak_memory_bytes == peaks[full]
        assert result.memory_capacity_bytes == int(sizes[full] * GIB)


def test_utilization_cost_and_energy_are_those_of_all_devices() -> None:
    fast, slow = _device("fast", FAST, watts=700), _device("slow", SLOW, watts=300)
    system = _system({**fast, "price_per_hour": 4.0}, {**slow, "price_per_hour": 1.0})
    analysis = td.analyze(
        "zoo:gpt?size=tiny", batch=8, train=True, system=system, strategy="pipeline",
        mesh={"pp": 2}, micro_batches=4,
    )  # fmt: skip
    data = json.loads(analysis.to_json())
    figures, time_s, flops = data["throughput"], data["time_s"], data["flops"]["model"]
    assert figures["mfu"] == pytest.approx(flops / (time_s * (FAST + SLOW) * 1e12))
    assert figures["cost_per_hour_usd"] == pytest.approx(5.0)
    assert figures["energy_per_step_kWh"] == pytest.approx(time_s * 1000 / 3.6e6)


def test_ranks_that_are_no_multiple_are_refused_with_a_remedy() -> None:
    mixed = _system(_device("fast", FAST), _device("slow", SLOW))
    plain = td.zoo.gpt(size="tiny", layers=1, batch=2)
    whole = td.export(td.distribute(plain, make_plan(plain, "data_parallel", {"dp": 2})))
    with pytest.raises(HardwareError, match=r"DIST0706.*2 types.*has 1 of 2 dev.*--mesh pp=2"):
        td.simulate(whole, mixed)
    with pytest.raises(HardwareError, match=r"DIST0706.*2 types.*has 3 of"):
        td.simulate(stages(Schedule("1f1b", 3, 4), Sizes()), mixed)


def test_what_is_for_equal_devices_refuses_others_by_name(tmp_path: Path) -> None:
    for call in (
        lambda: td.search("zoo:gpt?size=tiny", 2, "h100,a100"),
        lambda: td.sweep("zoo:gpt?size=tiny", {"dp": [2]}, "h100,a100"),
        lambda: td.calibrate("h100,a100", tmp_path / "rows.csv"),
    ):
        with pytest.raises(
            HardwareError, match=r"DIST0706.*is for equal devices, unlike h100,a100"
        ):
            call()


def test_systems_that_are_not_to_be_joined() -> None:
    several: list[tuple[Any, str]] = [
        ("h100,h100-serving", "kernel profiles fused and serving"),
        (["h100", td.System.load("h100,a100")], "of a stage has several types"),
    ]
    for names, problem in several:
        with pytest.raises(HardwareError, match=f"DIST0706.*{problem}"):
            td.System.required(names)
    with pytest.raises(HardwareError, match=r"DIST0703.*kernel_tables.*of one device"):
        _system(_device("a", FAST), _device("b", SLOW), kernel_tables="h100-vllm")
