# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memory of TVM's storage plan in results, and what is said of what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_distir as td
from tests.performance.simulation.hand_programs import SYSTEM, Build, program
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.memory.remedies import verdict
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import SimulationError, UsageError

MIB = 2**20


def test_the_plan_is_the_memory_of_a_result() -> None:
    mod = td.zoo.gpt(size="tiny", batch=4)
    local = td.distribute(mod, make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2}))
    plain = td.export(local)
    whole = replace(plain, storage=td.plan_storage(local))
    assert Program.from_json(whole.to_json()) == whole
    storage, entry = whole.storage, whole.entries[0]
    assert storage is not None
    fn = whole.functions[entry.function]
    stored = sum(fn.values[i].bytes for i in fn.params)
    stored += sum(
        v.bytes for f in whole.functions.values() for v in f.values if v.role == "constant"
    )
    result = simulate(whole, "dgx-a100", allocator="tvm")
    assert result.peak_memory_bytes == stored + storage.walk(entry.function).peak
    (account,) = (lane.account for lane in result.lanes)
    assert account.allocator == "tvm"
    assert sum(account.at_peak.values()) == account.peak_bytes
    assert {device.peak_memory_bytes for device in result.devices} == {account.peak_bytes}
    with pytest.raises(SimulationError, match="DIST0716"):
        simulate(plain, "dgx-a100", allocator="tvm")
    with pytest.raises(UsageError, match=r"DIST0152.*framework"):
        simulate(plain, "dgx-a100", allocator="framwork")


def _account(**sizes: int) -> MemoryAccount:
    peak = sum(sizes.values())
    return MemoryAccount("framework", peak, 0, "main/a", dict(sizes), dict(sizes), ())


def _trained() -> Program:
    """Data cut in four; a weight and a state on every device; a layer keeps 30 and gives 10."""
    layer = Build().param("p").param("w").compute("y", "p w", 1, 10).compute("s", "p w", 1, 30)
    main = Build().param("x", 8, "input").param("w", 100, "weight").param("m", 200, "state")
    main.call("y s", "x w", "layer_forward", 10)
    main.values[-1] = main.values[-1]._replace(bytes=30)
    for k, placement in enumerate(("S[0], R", "R, R", "R, R")):
        main.values[k] = main.values[k]._replace(placement=placement)
    mesh = (("dp", "tp"), (4, 1))
    return program(mesh, main=main.done("y"), layer_forward=layer.done("y s"))


def test_remedies_by_hand() -> None:
    created = _trained()
    account = _account(weights=100, states=200, gradients=100, stashes=60, temporaries=40)
    assert verdict(created, 0, account, 500) is None
    result = verdict(created, 0, account, 360)
    assert result is not None
    assert result.missing_bytes == 140
    # Recomputation: a third of the stashes, and 30 of the layer that is made again.
    assert {each.name: each.peak_bytes for each in result.remedies} == {
        "ZeRO stage 1": 350,
        "ZeRO stage 2": 275,
        "micro-batch / 2": 450,
        "recomputation": 490,
        "ZeRO stage 3": 300,
        "tp x 2": 250,
    }
    assert result.chosen == "ZeRO stage 1"
    last = verdict(created, 0, account, 270)
    none = verdict(created, 0, account, 200)
    assert last is not None
    assert none is not None
    assert (last.chosen, none.chosen) == ("tp x 2", "")


def test_a_peak_names_its_holders() -> None:
    """Ten tensors alike are one holder; what a function makes is named where it is made."""
    inner = Build().param("p").compute("big", "p", 1, 5 * MIB).compute("o", "big", 1, 512)
    main = Build().param("x", 512).param("w", 2 * MIB, "weight")
    for k in range(10):
        main.compute(f"kept{k}", "x", 1, MIB)
    main.call("y", "x", "f", 512)
    main.compute("z", " ".join(["y", *(f"kept{k}" for k in range(10))]), 1, 512)
    created = program((("x",), (1,)), main=main.done("z"), f=inner.done("o"))
    (lane,) = simulate(created, SYSTEM).lanes
    first, second, third = lane.account.holders[:3]
    assert (first.what, first.count, first.bytes, first.role) == (
        "kept*", 10, 10 * MIB, "temporaries",
    )  # fmt: skip
    assert (second.what, second.function, second.bytes) == ("big", "f", 5 * MIB)
    assert (third.what, third.role, third.function) == ("w", "weights", "")
    assert lane.account.moment == "main/f/o"
    assert lane.account.peak_bytes == 17 * MIB + 512 + 512
