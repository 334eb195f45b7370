# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The plans that a search simulates before its candidates."""

from __future__ import annotations

import functools

import pytest

import tvm_distir as td
from tests.planning.search.systems import QUICK
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.planning.search.result import SearchResult
from tvm_distir.planning.study import Study

BATCH, DEVICES = 64, 4
ADAM = {"optimizer": "adam"}


def _gpt(batch: int):
    return td.zoo.gpt(size="tiny", layers=2, batch=batch)


@functools.cache
def _by_hand(count: int, recompute: str = "none") -> Study:
    return Study(
        _gpt(BATCH // count), strategy="zero:stage=3", mesh={"dp": DEVICES}, system=QUICK,
        train=ADAM, recompute=recompute, micro_batches=count if count > 1 else None,
    )  # fmt: skip


def _stopped(limit: int | None, rules: Constraints, batch: int = BATCH) -> SearchResult:
    """Return the result of a search whose time is up at once, with a single report."""
    reports = []
    result = search(
        _gpt, DEVICES, QUICK, batch=batch, train=ADAM, memory_bytes=limit, constraints=rules,
        time_limit_s=0.0, on_progress=lambda space, best: reports.append((space, best)),
    )  # fmt: skip
    assert reports == [({}, result.plans[0])]
    return result


@pytest.mark.parametrize("axes", [("dp", "tp"), ("pp", "dp", "tp")])
def test_a_first_plan_has_the_least_number_of_micro_batches_that_fits(axes):
    """It is there before any candidate is tried, as an analysis simulates it."""
    limit = _by_hand(2).result.peak_memory_bytes
    result = _stopped(limit, Constraints(axes))
    (plan,) = result.plans
    assert plan.row.candidate.micro_batches == 2 and plan.row.why == "zero:stage=3"
    assert plan.time_s == _by_hand(2).result.time_s
    assert _by_hand(1).result.peak_memory_bytes > limit
    assert not result.complete
    assert {row.state for row in result.rows} == {"left"}


def test_a_first_plan_recomputes_where_no_number_of_micro_batches_fits():
    largest = BATCH // DEVICES
    peaks = {policy: _by_hand(largest, policy) for policy in ("none", "full")}
    limit = peaks["full"].result.peak_memory_bytes
    assert limit < peaks["none"].result.peak_memory_bytes
    (plan,) = _stopped(limit, Constraints(recompute=("none", "full"))).plans
    assert plan.row.candidate.recompute == "full"
    assert plan.row.peak_bytes <= limit


def test_devices_that_do_not_divide_the_batch_divide_the_sequence():
    (plan,) = _stopped(None, Constraints(), batch=6).plans
    name = "zero:stage=3+context_parallel:axis=tp"
    assert plan.row.why == name and dict(plan.row.candidate.axes) == {"dp": 2, "tp": 2}
    study = Study(_gpt(6), strategy=name, mesh={"dp": 2, "tp": 2}, system=QUICK, train=ADAM)
    assert plan.time_s == study.result.time_s
