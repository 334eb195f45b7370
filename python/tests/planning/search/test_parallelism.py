# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a search are named by their parallelism, and those with the same are one row."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tvm_distir as td
from tests.planning.search.systems import QUICK
from tvm_distir.planning.plan_export.axis_uses import describe
from tvm_distir.planning.search.driver import search
from tvm_distir.planning.search.parallelism import parallelism_text

pytestmark = pytest.mark.quick
DENSE, MIXTURE = "zoo:llama?size=tiny,layers=2,vocab=256", "zoo:mixtral?size=tiny"
STRATEGIES = [
    (DENSE, "data_parallel", {"dp": 4}, "data/4"),
    (DENSE, "zero:stage=1", {"dp": 4}, "ZeRO-1/4"),
    (DENSE, "zero:stage=2", {"dp": 4}, "ZeRO-2/4"),
    (DENSE, "fsdp", {"dp": 4}, "ZeRO-3/4"),
    (DENSE, "zero:stage=3,axis=dp/pod", {"pod": 2, "dp": 2}, "ZeRO-3/4"),
    (DENSE, "hsdp", {"pod": 2, "dp": 2}, "ZeRO-3/2 data/2"),
    (DENSE, "data_parallel+megatron", {"dp": 2, "tp": 2}, "data/2 tensor/2"),
    (DENSE, "megatron:sequence=1", {"tp": 2}, "tensor+sequence/2"),
    (DENSE, "fsdp+megatron", {"dp": 2, "tp": 2}, "ZeRO-3/2 tensor/2"),
    (DENSE, "fsdp+megatron:sequence=1", {"dp": 2, "tp": 2}, "ZeRO-3/2 tensor+sequence/2"),
    (DENSE, "zero:stage=1+megatron", {"dp": 2, "tp": 2}, "ZeRO-1/2 tensor/2"),
    (DENSE, "data_parallel+context_parallel", {"dp": 2, "cp": 2}, "context/2 data/2"),
    (DENSE, "fsdp+context_parallel:form=gather", {"dp": 2, "cp": 2}, "ZeRO-3/2 context+ZeRO-3/2"),
    (MIXTURE, "expert_parallel", {"ep": 4}, "expert/4"),
    (MIXTURE, "data_parallel+expert_parallel", {"dp": 2, "ep": 2}, "data/2 expert/2"),
    (MIXTURE, "zero:stage=1,axis=dp/ep+expert_parallel", {"dp": 2, "ep": 2},
     "ZeRO-1/2 expert+ZeRO-1/2"),
    (MIXTURE, "fsdp:axis=ep+expert_parallel", {"ep": 4}, "expert+ZeRO-3/4"),
    (MIXTURE, "fsdp", {"dp": 4}, "ZeRO-3/4"),
]  # fmt: skip


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    return {
        text: td.train_step(td.load_model(text, batch=16).mod, optimizer="adam")
        for text in (DENSE, MIXTURE)
    }


@pytest.mark.parametrize(("model", "strategy", "mesh", "name"), STRATEGIES)
def test_names_are_those_of_the_roles_that_export_finds(
    steps: dict[str, Any], model: str, strategy: str, mesh: dict[str, int], name: str
) -> None:
    step = steps[model]
    plan = td.planning.make_plan(step, strategy, mesh)
    assert parallelism_text(step, plan) == name
    found = describe(step, plan)
    degrees = {use: found.degree(use) for use in found.uses.values()}
    words = {"data": "data", "zero": f"ZeRO-{found.zero_stage}", "tensor": "tensor",
             "context": "context"}  # fmt: skip
    for use, degree in degrees.items():
        parts = [part.split("/") for part in name.split()]
        names = {words[use], "expert"} if use in ("data", "zero") else {words[use]}
        ours = [int(n) for kind, n in parts if names & {*kind.split("+")} and (
            use == "context" or "context" not in kind)]  # fmt: skip
        assert math.prod(ours) == degree


def _model(batch: int) -> Any:
    return td.zoo.llama(size="tiny", layers=2, vocab=256, batch=batch)


def test_rows_with_the_same_parallelism_are_one() -> None:
    """The fastest stands, and names the others; plans stay in order."""
    result = search(_model, 4, QUICK, batch=16, train={"optimizer": "adam"}, top=5)
    names = [group.name for group in result.groups]
    assert all(names) and len(set(names)) == len(names) < len(result.plans)
    times = [plan.time_s for plan in result.plans]
    assert times == sorted(times)
    rows = result.to_dict()["groups"]
    for group, row in zip(result.groups, rows, strict=True):
        members = [plan.time_s for plan in group.plans]
        assert members == sorted(members) == [plan["time_s"] for plan in row["plans"]]
        assert row["parallelism"] == group.name and row["plans"][0]["number"]
        if "gain" in row:
            assert row["gain"] == 1 - members[0] / group.of_trainers.time_s >= 0
    known = {(g.name, p.row.why) for g in result.groups for p in g.plans if p.row.why}
    assert known == {("ZeRO-3/4", "zero:stage=3"), ("ZeRO-1/4", "zero:stage=1")}
    text = result.to_text()
    assert all(f"{name}: " in text for name in names)
    several = sum(len(group.plans) > 1 for group in result.groups)
    assert text.count(" is one plan for a trainer with ") == several > 0


def test_fewer_plans_are_of_different_groups() -> None:
    result = search(_model, 4, QUICK, batch=16, train={"optimizer": "adam"}, top=2)
    assert len(result.groups) == len(result.plans) == 2
    assert [group.first for group in result.groups] == list(result.plans)


def test_forward_plans_are_not_grouped() -> None:
    result = search(_model, 2, QUICK, batch=4)
    assert result.groups == () and "groups" not in result.to_dict()
