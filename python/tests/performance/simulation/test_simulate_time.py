# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Timelines computed by hand, and properties every timeline has."""

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
from tests.references import using
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import SimulationError

ONE = (("x",), (1,))
FOUR = (("tp",), (4,))


def spans(result, device=0):
    """{binding: (start, end)} in microseconds, rounded far below the numbers used."""
    return {
        e.args["binding"]: (
            round(e.start_s / MICRO, 6),
            round((e.start_s + e.duration_s) / MICRO, 6),
        )
        for e in result.events
        if e.device == device
    }


def in_us(seconds):
    return round(seconds / MICRO, 6)


def test_chain(kernels):
    fn = Build().param("x").compute("a", "x", 5).compute("b", "a", 7).done("b")
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert spans(result) == {"a": (0, 5), "b": (5, 12)}
    assert in_us(result.time_s) == 12
    (device,) = result.devices
    assert (in_us(device.compute_s), device.comm_s, device.idle_s) == (12, 0, 0)
    assert device.flops == 12 * 10**6


def test_collective_overlaps_independent_compute(kernels):
    """all-reduce of 4000 bytes over 4: 10 + 6 steps + 6000 wire bytes = 22 us after a."""
    fn = (
        Build().param("x")
        .compute("a", "x", 5)
        .collective("r", "a", "all_reduce", 4000, 4)
        .compute("b", "a", 8)
        .compute("c", "r", 3)
        .done("c b")
    )  # fmt: skip
    result = simulate(program(FOUR, main=fn), SYSTEM)
    assert spans(result) == {"a": (0, 5), "r": (5, 27), "b": (5, 13), "c": (27, 30)}
    assert len(result.devices) == 4
    for device in result.devices:
        assert in_us(device.compute_s) == 16
        assert in_us(device.comm_s) == 22
        assert in_us(device.exposed_comm_s) == 14  # 13 to 27
        assert device.idle_s == 0


def test_collectives_queue_on_one_stream():
    """Two all-gathers of 4000 bytes (10 + 3 + 3 us), ready at once, run one after the other."""
    fn = (
        Build().param("x")
        .collective("g", "x", "all_gather", 4000, 4)
        .collective("h", "x", "all_gather", 4000, 4)
        .done("g h")
    )  # fmt: skip
    result = simulate(program(FOUR, main=fn), SYSTEM)
    assert spans(result) == {"g": (0, 16), "h": (16, 32)}


def test_stall_holds_up_what_was_issued_later():
    """d needs nothing, but stands behind c on the compute stream, and c waits for the network."""
    fn = (
        Build().param("x")
        .collective("r", "x", "all_gather", 4000, 4)
        .compute("c", "r", 1)
        .compute("d", "x", 2)
        .done("c d")
    )  # fmt: skip
    result = simulate(program(FOUR, main=fn), SYSTEM)
    assert spans(result) == {"r": (0, 16), "c": (16, 17), "d": (17, 19)}
    assert in_us(result.devices[0].exposed_comm_s) == 16


def test_views_and_constants_take_no_time():
    fn = (
        Build().param("x").constant("k", 8)
        .view("v", "x").compute("a", "v k", 4).view("w", "a").compute("b", "w", 1).done("b")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert spans(result) == {"a": (0, 4), "b": (4, 5)}


def test_calls_are_spliced_with_their_scope():
    layer = Build().param("x").param("w").compute("y", "x w", 2).compute("z", "y", 3).done("z")
    block = (
        Build().param("x").param("w").call("p", "x w", "layer").call("q", "p w", "layer").done("q")
    )
    main = (
        Build().param("x").param("w", role="weight")
        .call("l0", "x w", "block").call("l1", "l0 w", "block").compute("out", "l1", 1).done("out")
    )  # fmt: skip
    result = simulate(program(ONE, main=main, block=block, layer=layer), SYSTEM)
    assert in_us(result.time_s) == 4 * 5 + 1
    matches = [
        (e.args["scope"], e.args["binding"], round(e.start_s / MICRO)) for e in result.events
    ]
    assert matches == [
        ("main/l0/p", "y", 0), ("main/l0/p", "z", 2),
        ("main/l0/q", "y", 5), ("main/l0/q", "z", 7),
        ("main/l1/p", "y", 10), ("main/l1/p", "z", 12),
        ("main/l1/q", "y", 15), ("main/l1/q", "z", 17),
        ("main", "out", 20),
    ]  # fmt: skip
    (time,) = result.lanes[0].modules
    assert (time.module, time.phase, time.flops) == ("w", "forward", 21 * 10**6)
    assert in_us(time.compute_s) == 21


def test_callee_that_returns_its_parameter_and_a_constant():
    swap = Build().param("a").param("b").constant("k", 4).view("v", "b").done("v k a")
    main = (
        Build().param("x").compute("s", "x", 5).compute("t", "x", 7)
        .call("p k q", "s t", "swap").compute("u", "p k", 1).compute("w", "q k", 1).done("u w")
    )  # fmt: skip
    result = simulate(program(ONE, main=main, swap=swap), SYSTEM)
    assert spans(result) == {"s": (0, 5), "t": (5, 12), "u": (12, 13), "w": (13, 14)}


def test_roofline_and_launch_floor():
    def one(flops, read, output, floor_us):
        fn = Build().param("x").compute("a", "x", 0).done("a")
        data = program(ONE, main=fn).to_dict()
        data["functions"]["main"]["ops"][0].update(
            flops=flops, bytes_read=read, bytes_written=output
        )
        system = round_system(launch_floor_us=floor_us)
        result = simulate(Program.from_dict(data), system)
        return in_us(result.time_s), result.lanes[0].ops[0].bound_by

    assert one(3 * 10**6, 10**6, 10**6, 1) == (3, "compute")  # memory: 2 us
    assert one(3 * 10**6, 10**6, 4 * 10**6, 1) == (5, "memory")
    assert one(10, 10, 10, 1) == (1, "launch")


def two_stages(order=(0, 1)):
    """Stage 0 computes a (5), sends it (10 + 1 + 2 us), computes b; stage 1 uses both."""
    first = (
        Build(0).param("x").compute("a", "x", 5).transfer("sa", "a", "send", 2000, 1, tag=7)
        .compute("b", "x", 4).transfer("sb", "b", "send", 2000, 1, tag=8).done("sb")
    )  # fmt: skip
    second = Build(1).param("y")
    for name in order:
        second.transfer(f"r{name}", "", "recv", 2000, 0, tag=7 + name)
    second.compute("c", "r0 y", 3).compute("d", "r1", 6)
    return program((("x",), (1,)), (("x",), (1,)), main_mesh0=first, main_mesh1=second.done("c d"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_transfers(kernels, order):
    """Sends queue behind each other; receives in another order do not block."""
    result = simulate(two_stages(order), SYSTEM)
    assert spans(result, 0) == {"a": (0, 5), "sa": (5, 18), "b": (5, 9), "sb": (18, 31)}
    assert spans(result, 1) == {"r0": (5, 18), "r1": (18, 31), "c": (18, 21), "d": (31, 37)}
    by_id = {d.id: d for d in result.devices}
    assert [in_us(by_id[0].exposed_comm_s), in_us(by_id[0].idle_s)] == [22, 6]
    assert [in_us(by_id[1].comm_s), in_us(by_id[1].exposed_comm_s)] == [26, 23]
    (row,) = result.collectives
    assert (row.kind, row.mesh_axis, row.count) == ("send", "mesh0->mesh1", 2)
    assert (row.bytes_per_device, row.wire_bytes_per_device) == (4000, 4000)


def test_meshes_that_wait_for_each_other():
    def stage(mesh):
        return (
            Build(mesh).param("x")
            .transfer("r", "", "recv", 8, 1 - mesh, tag=mesh)
            .compute("a", "r", 1)
            .transfer("s", "a", "send", 8, 1 - mesh, tag=1 - mesh)
            .done("s")
        )  # fmt: skip

    with pytest.raises(SimulationError, match="DIST0720") as caught:
        simulate(program(ONE, ONE, main_mesh0=stage(0), main_mesh1=stage(1)), SYSTEM)
    assert "mesh0 device 0 main_mesh0/" in str(caught.value)
    assert "mesh1 device 1 main_mesh1/" in str(caught.value)


def test_transfer_with_one_end():
    first = Build(0).param("x").transfer("s", "x", "send", 8, 1, tag=3).done("s")
    second = Build(1).param("y").done("y")
    with pytest.raises(SimulationError, match=r"DIST0722.*1 sends and 0 receives.*tag 3"):
        simulate(program(ONE, ONE, main_mesh0=first, main_mesh1=second), SYSTEM)


def test_collective_of_another_mesh():
    first = Build(1).param("x").collective("r", "x", "all_reduce", 8, 4).done("r")
    second = Build(1).param("y").done("y")
    with pytest.raises(SimulationError, match=r"DIST0712.*mesh1.*mesh0"):
        simulate(program(FOUR, FOUR, main_mesh0=first, main_mesh1=second), SYSTEM)


def test_nothing_to_do():
    result = simulate(program(FOUR, main=Build().param("x", 3).done("x")), SYSTEM)
    assert result.time_s == 0
    assert list(result.events) == []
    assert result.peak_memory_bytes == 512  # a block


def test_times_that_do_not_fit():
    fn = Build().param("x").compute("a", "x", 10**12).done("a")
    slow = round_system(matmul_TFLOPs={"default": 1e-3})
    with pytest.raises(SimulationError, match="DIST0721"):
        simulate(program(ONE, main=fn), slow)


def test_collectives_table():
    """A layer called 3 times: an all-reduce over tp and an all-gather over dp, tp."""
    layer = (
        Build().param("x")
        .collective("r", "x", "all_reduce", 1000, 4, axes=(1,))
        .collective("g", "r", "all_gather", 800, 8, axes=(0, 1)).done("g")
    )  # fmt: skip
    main = Build().param("x").call("a", "x", "f").call("b", "a", "f").call("c", "b", "f").done("c")
    mesh = (("dp", "tp"), (2, 4))
    result = simulate(program(mesh, main=main, f=layer), SYSTEM)
    rows = [each.to_dict() for each in result.collectives]
    assert rows == [
        {
            "kind": "all_gather", "mesh": "mesh0", "mesh_axis": "dp,tp", "group_size": 8,
            "count": 3, "bytes_per_device": 2400, "wire_bytes_per_device": 3 * 700,
        },
        {
            "kind": "all_reduce", "mesh": "mesh0", "mesh_axis": "tp", "group_size": 4,
            "count": 3, "bytes_per_device": 3000, "wire_bytes_per_device": 3 * 1500,
        },
    ]  # fmt: skip
    # all-gather over two nodes: 10 + 100 + 7 steps + 700 bytes at 1000 per us
    assert in_us(result.collectives[0].time_s) == pytest.approx(3 * (110 + 7 + 0.7))
    assert in_us(result.collectives[1].time_s) == pytest.approx(3 * (10 + 6 + 1.5))


def test_unmodelled_ops_are_named():
    fn = (
        Build().param("x").compute("a", "x", 1, op="relax.zebra", modelled=False, reason="no rule")
        .compute("b", "a", 1).compute("c", "b", 1, op="relax.ape", modelled=False, reason="?")
        .done("c")
    )  # fmt: skip
    result = simulate(program(ONE, main=fn), SYSTEM)
    assert result.unmodelled_ops == ("relax.ape", "relax.zebra")
    assert result.to_dict()["unmodelled_ops"] == ["relax.ape", "relax.zebra"]


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    """Folded, unfolded and reference agree; busy and idle make up the time; streams are serial."""
    created = random_program(np.random.default_rng(seed))
    folded = simulate(created, SYSTEM)
    unfolded = simulate(created, SYSTEM, fold_devices=False)
    with using("reference"):
        reference = simulate(created, SYSTEM)
    assert len(folded.lanes) == 2
    assert len(unfolded.lanes) == 8
    assert folded.time_s == unfolded.time_s == reference.time_s
    assert folded.devices == unfolded.devices == reference.devices
    assert folded.collectives == unfolded.collectives
    for lane in unfolded.lanes:
        twin = next(one for one in folded.lanes if lane.devices[0] in one.devices)
        assert lane.memory == twin.memory
        assert [(e.start_s, e.duration_s) for e in lane.events()] == [
            (e.start_s, e.duration_s) for e in twin.events()
        ]
    for device in folded.devices:
        total = device.compute_s + device.exposed_comm_s + device.idle_s
        assert total == pytest.approx(folded.time_s, rel=1e-12)
        assert device.exposed_comm_s <= device.comm_s
        assert device.idle_s >= -1e-15
    for lane in folded.lanes:
        last = {}
        for event in lane.events():
            if event.stream != "recv":
                assert event.start_s >= last.get(event.stream, 0.0) - 1e-15
                last[event.stream] = event.start_s + event.duration_s
        compute = sum(e.duration_s for e in lane.events() if e.stream == "compute")
        device = next(d for d in folded.devices if d.id == lane.devices[0])
        assert device.compute_s == pytest.approx(compute, rel=1e-9)
        assert sum(op.time_s for op in lane.ops) == pytest.approx(compute, rel=1e-9)
        modules = sum(module.compute_s for module in lane.modules)
        assert modules == pytest.approx(compute, rel=1e-9)


def test_folding_takes_the_slowest_group():
    """Devices 2..5 on nodes of 4: group (2, 3) inside a node, (4, 5) too, but axis 0 crosses."""
    fn = Build().param("x").collective("r", "x", "all_reduce", 1000, 2, axes=(0,)).done("r")
    created = program((("a", "b"), (2, 2)), main=fn).to_dict()
    created["meshes"][0]["device_ids"] = [0, 2, 1, 5]  # groups (0, 1): one node; (2, 5): two
    created = Program.from_dict(created)
    folded, unfolded = simulate(created, SYSTEM), simulate(created, SYSTEM, fold_devices=False)
    near, far = 10 + 2 + 1, 110 + 2 + 1
    assert [in_us(d.comm_s) for d in folded.devices] == [far] * 4
    assert {d.id: in_us(d.comm_s) for d in unfolded.devices} == {0: near, 1: near, 2: far, 5: far}
    assert folded.time_s == unfolded.time_s


def test_cost_does_not_grow_with_devices():
    layer = (
        Build().param("x").compute("a", "x", 5)
        .collective("r", "a", "all_reduce", 1000, 4, axes=(1,)).done("r")
    )  # fmt: skip
    main = Build().param("x")
    previous = "x"
    for i in range(100):
        main.call(f"l{i}", previous, "f")
        previous = f"l{i}"
    functions = {"main": main.done(previous), "f": layer}
    small = simulate(program((("dp", "tp"), (1, 4)), **functions), SYSTEM)
    large = simulate(program((("dp", "tp"), (256, 4)), **functions), SYSTEM)
    assert small.time_s == large.time_s
    assert small.lanes[0].events_total == large.lanes[0].events_total == 200
    assert len(large.devices) == 1024
