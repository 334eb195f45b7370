# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Strategies, schedules and collectives that a script registers are known by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.hardware.systems.network_reader import NETWORKS
from tvm_distir.support import DependencyError, UsageError
from tvm_distir.support.plugins import registry


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registrations", {})


def test_a_strategy_needs_no_decorator() -> None:
    def columns(mod: Any, mesh: MeshSpec, axis: str = "tp", dim: int = 1) -> Plan:
        """Plan that shards the head."""
        placement: list[int | None] = [None] * len(mesh.axes)
        placement[mesh.axis_number(axis)] = dim
        return Plan((mesh,), (PlanRule("param", "head.weight", tuple(placement), mesh=mesh.name),))

    td.register_strategy("columns", columns)
    mod = td.zoo.mlp(size="tiny")
    plan = td.planning.make_plan(mod, "data_parallel+columns:dim=0", {"dp": 2, "tp": 2})
    (rule,) = (rule for rule in plan.rules if "head.weight" in vars(rule).values())
    assert 0 in rule.placement
    assert td.verify(mod, plan, engine="virtual").equal
    with pytest.raises(UsageError, match="DIST0152"):
        td.register_strategy("megatron", columns)


def test_a_schedule_that_is_registered_once_more_is_read_anew() -> None:
    class Late:
        def orders(self, ranks: int, micro_batches: int, chunks: int) -> list[list[Any]]:
            both = [("F", i, 0) for i in range(micro_batches)]
            return [both + [("B", i, 0) for i in range(micro_batches)]] * ranks

        def rank_of(self, ranks: int, chunks: int) -> list[int]:
            return list(range(ranks))

    class Broken(Late):
        def orders(self, ranks: int, micro_batches: int, chunks: int) -> list[list[Any]]:
            return []

    td.register_schedule("late", Late)
    schedule = Schedule("late", 2, 2)
    assert [str(unit.phase) for unit in schedule.orders[0]] == ["F", "F", "B", "B"]
    td.register_schedule("late", Broken)
    with pytest.raises(DependencyError, match='the registration of "late"'):
        _ = Schedule("late", 2, 2).orders


def test_a_collective_is_one_of_a_system() -> None:
    class Free:
        kinds = ("all_reduce",)

        def steps(self, kind: str, ranks: int) -> float:
            return 1.0

        def sent_bytes(self, kind: str, total_bytes: Any, ranks: int, copied: float) -> Any:
            return 0.1 * total_bytes

    td.register_collective("free", Free)
    network = json.loads((NETWORKS / "hgx-h100.json").read_text())
    data = {"schema_version": 2, "name": "s", "device": "h100-sxm", "network": network}
    before = td.System.from_dict(data).collective_time_s("all_reduce", 2**24, range(8))
    curve = {"algorithm": "free", "kind": "all_reduce", "setup_us": 5.0, "hop_us": 1.0}
    network["intra_node"]["curves"]["nccl"].append({**curve, "bandwidth_GBps": 300})
    assert td.System.from_dict(data).collective_time_s("all_reduce", 2**24, range(8)) < before
