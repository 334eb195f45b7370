# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Entries that share a mesh, by hand: all its devices meet in its collectives and transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.performance.simulation.hand_programs import SYSTEM, Build
from tests.performance.simulation.test_simulate_time import in_us, spans
from tvm_distir.execution.verification.collective_counts import claimed_collectives
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation import synchronization
from tvm_distir.performance.simulation.op_costs import COMM, OpRow
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.performance.simulation.synchronization import DeviceTasks
from tvm_distir.support.errors.tree import SimulationError

ALL = Mesh("all", ("tp",), (4,), (0, 1, 2, 3))
PAIR = Mesh("pair", ("x",), (2,), (2, 3))
BOTH = "all+pair"


def on(mesh, build):
    """Write what follows for another mesh."""
    build.mesh = mesh
    return build


def alone():
    return (
        Build().param("x", 8)
        .compute("p", "x", 5)
        .collective("r", "p", "all_reduce", 4000, 4)
        .compute("q", "r", 3)
    )  # fmt: skip


def busy():
    """20 us for the pair first; then an all-gather of the pair behind the all-reduce of all."""
    build = Build().param("x", 8).param("y", 16).compute("s", "y", 20, 16).compute("p", "x", 5)
    build.collective("r", "p", "all_reduce", 4000, 4)
    on(1, build).collective("g", "s", "all_gather", 2000, 2)
    return on(0, build).compute("q", "r", 3)


def shared(first=None, second=None, devices=((0, 1), (2, 3)), ends=("q", "q g")):
    functions = {"main_mesh0": (first or alone()).done(ends[0])}
    functions["main_mesh0_1"] = (second or busy()).done(ends[1])
    entries = [Entry(0, name, local) for name, local in zip(functions, devices)]
    return Program((ALL, PAIR), functions, tuple(entries))


def read(program):
    return Program.from_json(program.to_json())


@pytest.mark.parametrize("fold", [True, False])
def test_a_collective_waits_for_the_busiest_entry(kernels, fold):
    """all-reduce of 4000 bytes over 4: 22 us; all-gather of 2000 over 2: 10 + 1 + 1."""
    result = simulate(read(shared()), SYSTEM, fold_devices=fold)
    assert spans(result) == {"p": (0, 5), "r": (25, 47), "q": (47, 50)}
    assert spans(result, 2) == {
        "s": (0, 20), "p": (20, 25), "r": (25, 47), "g": (47, 59), "q": (47, 50),
    }  # fmt: skip
    assert [(d.id, d.mesh, in_us(d.comm_s), in_us(d.idle_s)) for d in result.devices] == [
        (0, "all", 22, 29), (1, "all", 22, 29), (2, BOTH, 34, 0), (3, BOTH, 34, 0),
    ]  # fmt: skip
    matches = [(c.kind, c.mesh, c.count, in_us(c.time_s)) for c in result.collectives]
    assert matches == [("all_reduce", "all", 1, 22), ("all_gather", "pair", 1, 12)]
    # In blocks of 512: x and r; x, y, r and g, and s, which g gathers.
    assert result.devices[0].peak_memory_bytes == 512 + 4096
    assert result.devices[2].peak_memory_bytes == 512 + 512 + 4096 + 2048 + 512


def test_what_entries_share_is_claimed_once():
    claims = [(c.kind, c.mesh_axis, c.count) for c in claimed_collectives(shared())]
    assert claims == [("all_gather", "x", (1, 1)), ("all_reduce", "tp", (1, 1))]


@pytest.mark.parametrize("fold", [True, False])
def test_a_transfer_to_devices_of_its_own_mesh(fold):
    """Devices 0 and 1 send 1000 bytes each (10 + 1 + 1 us); 2 and 3 send nothing."""
    first = Build().param("x").compute("p", "x", 5).transfer("s", "p", "send", 1000, 1)
    second = Build().param("x").compute("p", "x", 7).transfer("s", "p", "send", 1000, 1)
    second.ops[-1] = second.ops[-1]._replace(wire_bytes=0)
    on(1, second).transfer("t", "", "recv", 1000, 0).compute("q", "t", 2)
    result = simulate(read(shared(first, second, ends=("s", "q"))), SYSTEM, fold_devices=fold)
    assert spans(result) == {"p": (0, 5), "s": (7, 19)}
    assert spans(result, 2) == {"p": (0, 7), "s": (7, 7), "t": (7, 19), "q": (19, 21)}


def wrong(program):
    with pytest.raises(SimulationError, match="DIST0712") as caught:
        simulate(read(program), SYSTEM)
    return str(caught.value)


def test_entries_with_other_collectives_on_a_mesh():
    """Another size, one more, and devices of the mesh that have none of it."""
    other = alone()
    other.ops[1] = other.ops[1]._replace(payload_bytes=4008)
    assert "device 2 has another operation in its position" in wrong(shared(other))
    more = alone().collective("t", "q", "all_reduce", 4, 4)
    assert "another operation in its position" in wrong(shared(more))
    none = Build().param("x").compute("q", "x", 3)
    assert "the devices [0, 1] do not take part" in wrong(shared(none))


def test_collectives_behind_those_of_a_common_function_are_compared():
    """Tasks of two entries that call the same function have the same rows."""
    ops = alone().collective("t", "q", "all_reduce", 8, 4).ops
    common, first = (OpRow("main", op, COMM, 1, "network") for op in (ops[1], ops[3]))
    other = replace(first, op=first.op._replace(payload_bytes=16))
    part = DeviceTasks(1, (2, 3), 0)
    synchronization._check_same(ALL, part, [common, first], [common, replace(first)])
    with pytest.raises(SimulationError, match=r"DIST0712.*device 2 has another operation"):
        synchronization._check_same(ALL, part, [common, first], [common, other])


def test_devices_of_entries_are_checked():
    assert "device 2 runs main_mesh0 already" in wrong(shared(devices=((0, 1, 2), (2, 3))))
    assert "device 4 is not among those of its mesh" in wrong(shared(devices=((0, 1, 4), (2, 3))))
    assert "occurs twice" in wrong(shared(devices=((0, 0), (2, 3))))
    text = wrong(shared(devices=((0, 2), (1, 3))))
    assert "on the mesh pair in a program of the mesh all" in text
