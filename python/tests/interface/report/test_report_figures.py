# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recommendations, links, roofline and critical path: figures that add up."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import tvm_distir as td
from tests.interface.report.report_samples import GIB, sample
from tests.performance.simulation.hand_programs import SYSTEM, Build, program, random_program
from tests.performance.simulation.hand_stages import Sizes, stages
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.hardware.systems.constants import Constant
from tvm_distir.hardware.systems.hardware import OuterTier
from tvm_distir.hardware.systems.network_reader import load_network, network_names
from tvm_distir.hardware.systems.provenance import sourced_numbers
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import system_names
from tvm_distir.interface.report.advice import advice, advice_lines
from tvm_distir.interface.report.collect import analysis_of
from tvm_distir.interface.report.document import to_dict
from tvm_distir.interface.report.html import to_html
from tvm_distir.interface.report.links import links_of
from tvm_distir.interface.report.model import TriedChange
from tvm_distir.interface.report.text import to_text
from tvm_distir.performance.simulation.critical import PathPart, critical_path
from tvm_distir.performance.simulation.result import PipelineResult
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.strategies.composition import make_plan


def test_the_largest_part_is_told_first():
    analysis = sample()
    result = advice(analysis)
    assert [round(each.saves_s, 6) for each in result] == [4e-3, 4e-3]
    assert "all_reduce over tp (4 calls" in result[0].what and "add" in result[1].what
    idle = replace(
        analysis,
        time_s=40e-3,
        devices=[replace(lane, idle_s=20e-3) for lane in analysis.devices],
        pipeline=PipelineResult("1f1b", 4, 1, 8, 0.5),
    )
    first = advice(idle)[0]
    assert "8 micro-batches, 4 ranks" in first.what and first.saves_s == 20e-3
    assert "Recommendations" in to_text(idle) and 'id="first"' in to_html(idle)
    assert to_dict(idle)["advice"][0]["saves_s"] == 20e-3


def test_changes_that_were_simulated():
    """Those that gain stand with their part, the best first; a part without any is dropped."""
    trials = (
        TriedChange("communication", "--mesh tp=4", 16e-3, 1.25, 1, 4, GIB, True),
        TriedChange("communication", "--batch 16", 20e-3, 2.0, 2, 2, GIB, True),
        TriedChange("communication", "--mesh dp=8", 2e-3, 10.0, 1, 8, 20 * GIB, False),
        TriedChange("memory", "kernels", 19.9e-3, 1.005, 1, 4, GIB, True),
        TriedChange("fit", "--recompute full", 25e-3, 0.8, 1, 4, GIB, True),
    )
    analysis = replace(sample(), trials=trials, untried=(("launch", "x"), ("compute", "--mesh y")))
    fit, over, _, last = (each for each in advice(analysis))
    assert [each.change for each in over.gains] == ["--batch 16", "--mesh tp=4"]
    assert fit.gains == trials[-1:] and last.untried == ("--mesh y",)
    lines = advice_lines(analysis)
    assert lines[1] == "  --recompute full: fits with 1.00 GiB (20.0 ms -> 25.0 ms)"
    assert lines[3] == (
        "  --batch 16: predicted speedup 2.00x (throughput 400 -> 800 samples/s; "
        "2x samples per step: 20.0 ms -> 20.0 ms, on 2 devices instead of 4)"
    )
    assert lines[-2:] == [
        "  not tried (--advice full): --mesh y",
        "Tried without gain: --mesh dp=8 (does not fit); kernels.",
    ]
    assert not any(line.startswith("memory-bound kernels") for line in lines)
    assert to_dict(analysis)["advice"][1]["gains"][0]["gain"] == 2.0


def test_only_arithmetic_is_left():
    ops = (replace(sample().ops[0], time_s=16e-3),)
    devices = [replace(each, compute_s=20e-3, exposed_comm_s=0.0) for each in sample().devices]
    (only,) = advice(replace(sample(), ops=ops, devices=devices))
    assert only.saves_s == pytest.approx(20e-3 - 1e-3)  # 10**9 FLOP of a peak of 10**12 per second


def test_traffic_by_link():
    """Axis tp lies inside of nodes of eight devices, dp crosses them."""
    single = program(
        (("dp", "tp"), (2, 8)),
        main=Build(0)
        .param("x")
        .collective("a", "x", "all_reduce", 1000, 8, (1,))
        .collective("b", "a", "all_reduce", 500, 2, (0,))
        .done("b"),
    )
    system = System.load("dgx-a100")
    result = simulate(single, system)
    inside, between = links_of(result.collectives, single, system)
    assert inside.kinds == ("all_reduce over tp",) and between.kinds == ("all_reduce over dp",)
    sizes = {row.mesh_axis: row.wire_bytes_per_device for row in result.collectives}
    # Eight groups along dp leave each node, over its eight adapters.
    assert (inside.bytes, between.bytes) == (sizes["tp"], 8 * sizes["dp"])
    assert (inside.per, between.per) == ("device", "node")
    assert between.time_s == result.collectives[0].time_s
    assert between.rate_bytes_per_s == pytest.approx(8e9 * system.inter_node.bandwidth_per_nic_GBps)


def _changed(system: System, name: str) -> System:
    """Return a system with another value of a constant, or of the form of kernels."""
    kind, _, rest = name.partition(".")
    device = system.device
    if kind == "kernels":
        kernel_class, _, dtype = rest.partition(".")
        form = device.kernel_times[kernel_class][dtype]
        slower = replace(form, t0_us=form.t0_us + 5e4, traffic=form.traffic / 9)
        times = {
            name: {dtype: slower if each is form else each for dtype, each in forms.items()}
            for name, forms in device.kernel_times.items()
        }
        return replace(system, device=replace(device, kernel_times=times))
    constants = device.constants if rest in device.constants else system.constants
    constant = constants[rest]
    changed = {**constants, rest: replace(constant, value=constant.value * 0.7)}
    if constants is device.constants:
        return replace(system, device=replace(device, constants=changed))
    return replace(system, constants=changed)


@pytest.mark.parametrize("name", ["h100", "dgx-a100-megatron", "h100-serving"])
@pytest.mark.parametrize("mesh", [{"dp": 1, "tp": 2}, {"dp": 16, "tp": 1}])
def test_the_basis_names_the_numbers_that_the_step_uses(name: str, mesh: dict[str, int]) -> None:
    """No other number changes the time; each form of kernels that is named does."""
    system = System.load(name)
    mod = td.zoo.gpt(size="tiny", batch=16, dtype="bfloat16")
    step = td.train_step(mod, optimizer="adam")
    plan = make_plan(step, "data_parallel+megatron", mesh)
    single = td.export(td.distribute(step, plan))
    result = simulate(single, system)
    used = analysis_of(result, single, system, model="", command="").hardware.numbers
    every = sourced_numbers(system)
    names = {number.name for number in used}
    assert names < {number.name for number in every}
    tried = [n.name for n in every if n.name.startswith(("kernels.", "constants."))]
    same = {
        each for each in tried if simulate(single, _changed(system, each)).time_s == result.time_s
    }
    assert names.intersection(tried) >= set(tried) - same
    assert not {each for each in same & names if each.startswith("kernels.")}
    assert ("inter_node.nics_per_node" in names) == (mesh["dp"] == 16)


def test_links_of_outer_tiers():
    """Half of a ring between two pods of two nodes is each of its two devices' there."""
    spine = OuterTier("spine", 16, 20.0, latency_us=1.0, oversubscription=2.0)
    system = replace(System.load("a100"), outer_tiers=(spine,))
    body = Build(0).param("x").collective("a", "x", "all_reduce", 1 << 30, 4, (0,)).done("a")
    single = program((("dp", "tp"), (4, 8)), main=body)
    uses = {use.name: use for use in links_of(simulate(single, system).collectives, single, system)}
    outer = uses.pop("outer tier (spine)")
    assert list(uses) == [f"inter-node ({system.inter_node.name})"]
    assert (outer.bytes, outer.per) == ((1 << 30) * 2 * (2 - 1) // 2 // 2, "device")
    assert outer.rate_bytes_per_s == 20e9 / 2 and outer.kinds == ("all_reduce over dp",)
    assert outer.bytes / outer.time_s <= outer.rate_bytes_per_s
    body = Build(0).param("x").collective("a", "x", "all_reduce", 1 << 30, 2, (0,)).done("a")
    pod = program((("dp", "tp"), (2, 8)), main=body)
    uses = links_of(simulate(pod, system).collectives, pod, system)
    assert not any(use.name.startswith("outer") for use in uses)


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
         "exchange")  # fmt: skip


def _one_collective(kind: str, axes: tuple[int, ...], members: int):
    """A large collective on two nodes of so many devices, inside of nodes or across them."""
    size = math.prod((2, members)[axis] for axis in axes)
    body = Build(0).param("x").collective("a", "x", kind, 1 << 32, size, axes).done("a")
    return program((("dp", "tp"), (2, members)), main=body)


def _message(members: int):
    """A large message from each device of a node to one of the next node."""
    sender = Build(0).param("x").transfer("s", "x", "send", 1 << 32, 1).done("s")
    receiver = Build(1).param("y").transfer("r", "", "recv", 1 << 32, 0).done("r")
    meshes = [(("tp",), (members,))] * 2
    return program(*meshes, main_mesh0=sender, main_mesh1=receiver)


@pytest.fixture(scope="module")
def pipeline():
    """A large training step in two stages with tensor parallelism, whose messages go in parts."""
    mod = td.load_model(
        "zoo:gpt?size=tiny,hidden=4096,heads=8,seq=2048,positions=2048,batch=64"
    ).mod
    step = td.train_step(mod, schedule={"kind": "1f1b", "stages": 2, "micro_batches": 2})
    plan = td.planning.make_plan(step, "pipeline:micro_batches=2+megatron", {"pp": 2, "tp": 4})
    return td.export(td.distribute(step, plan))


def _on_nodes(created, members: int):
    """The second rank's devices on the second node."""
    first, second = created.meshes
    ids = tuple(range(members, members + len(second.device_ids)))
    return replace(created, meshes=(first, replace(second, device_ids=ids)))


def _system(name: str) -> System:
    """A system by its name, or one of H100 on the network of that name."""
    if name in system_names():
        return System.load(name)
    base, network = System.load("dgx-h100-megatron"), load_network(name)
    reached = network.constants["nic_efficiency"].value
    constants = {**base.constants, "nic_efficiency": Constant(reached, "test")}
    del constants["nic_efficiency_gradients"]
    links = vars(network.links)
    return replace(base, **links, host_link=network.host_link, constants=constants)


@pytest.mark.parametrize("name", [*system_names(), *network_names()])
def test_no_rate_is_above_what_the_links_carry(name, pipeline):
    """Over large values rates come near the capacity, and never exceed it."""
    system = _system(name)
    members = system.intra_node.devices_per_node
    programs = [_message(members), _on_nodes(pipeline, members)]
    for kind in KINDS:
        programs += [_one_collective(kind, axes, members) for axes in ((0,), (1,), (0, 1))]
        programs.append(_one_collective(kind, (1,), 2 * members))
    largest = dict.fromkeys(("device", "node"), 0.0)
    for each in programs:
        uses = links_of(simulate(each, system).collectives, each, system)
        assert uses
        for use in uses:
            share = use.bytes / use.time_s / use.rate_bytes_per_s
            assert share <= 1 + 1e-6, (use, each.functions)
            largest[use.per] = max(largest[use.per], share)
    line = system.inter_node.nics_per_node * system.inter_node.bandwidth_per_nic_GBps * 1e9
    assert all(use.rate_bytes_per_s <= line for use in uses if use.per == "node")
    reached = 0.3 if system.intra_node.curves else 0.9  # of the line rate, or of what is reached
    assert largest["device"] > reached and largest["node"] > 0.6


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_program(np.random.default_rng(3)),
        lambda: random_program(np.random.default_rng(4)),
        lambda: stages(Schedule("1f1b", 4, 6), Sizes(moved=5000)),
        lambda: stages(Schedule("gpipe", 3, 5), Sizes(moved=5000)),
    ],
)
def test_the_critical_path_adds_up_to_the_step(make):
    result = simulate(make(), SYSTEM)
    parts = critical_path(result.lanes)
    assert sum(round(each.time_s * 1e12) for each in parts) == round(result.time_s * 1e12)


def test_the_critical_path_of_a_pipeline():
    """The first micro-batch goes forward through all ranks, then the last rank is always busy."""
    result = simulate(stages(Schedule("1f1b", 3, 4), Sizes(moved=0)), SYSTEM)
    parts = [part for part in critical_path(result.lanes) if part.time_s]
    assert {(part.name, part.module) for part in parts} == {("op", ""), ("op", "w")}
    times_s = {part.phase: part.time_s for part in parts}
    assert times_s == pytest.approx({"forward": 6 * 3e-6, "backward": 6 * 6e-6})


def test_ops_are_named_by_their_modules_everywhere(tmp_path):
    """The critical path, the timeline and the trace say so, as the table of times by op."""
    options = {"strategy": "megatron", "mesh": {"tp": 2}, "system": "h100", "train": True}
    result = td.analyze("zoo:gpt?size=tiny", **options)
    ops = {(op.op, op.module, op.phase) for op in result.report.ops}
    path = {(part.name, part.module, part.phase) for part in result.report.path()}
    assert len(path & ops) > 20 and {phase for *_, phase in path} >= {"forward", "backward"}
    titles = {op.title for op in result.report.ops if op.module and op.module != "(host)"}
    assert titles <= {event.title for event in result.report.timelines[0].events}
    result.simulation.to_perfetto(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert titles <= {event["name"] for event in events}


def test_figures_of_the_page():
    analysis = replace(
        sample(),
        path=lambda: (PathPart("matmul", "compute", 4, 12e-3), PathPart("waiting", "", 1, 8e-3)),
    )
    page = to_html(analysis)
    assert 'id="path"' in page and "waiting" in page
    (drawn,) = re.findall(r'<svg class="plot".*?</svg>', page, re.DOTALL)
    tree = ElementTree.fromstring(drawn)
    points = tree.findall("circle")
    assert len(points) == 1 and points[0].find("title").text.startswith(
        "matmul of layers.*.mlp, forward: 12.0 ms"
    )
    line = tree.find("polyline").attrib["points"].split()
    heights = [float(point.split(",")[1]) for point in line]
    assert heights[0] > heights[1] == heights[2]
