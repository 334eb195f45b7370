# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Right programs pass, and faults are found where they are."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch", reason="extra torch")

import tvm_distir as td
from tvm_distir.execution import CheckReport

from .programs import CASES


@functools.cache
def judged(name: str, bug: str = "") -> CheckReport:
    case = CASES[name]
    programs = td.trace_ranks(case.of(bug), case.ranks, mesh=case.mesh)
    reference = td.trace_ranks(case.single, 1)
    options = {"hints": case.hints, "micro_batches": case.micro_batches}
    return td.check(programs, reference, **options)


@pytest.mark.parametrize("name", CASES)
def test_a_right_program_is_equal(name: str) -> None:
    report = judged(name)
    assert report.equal, str(report)
    assert report.check() is report


FAULTS = {
    ("tensor and data parallel", "no g"): ("reaches add", "sum "),
    ("tensor and data parallel", "no f"): ("grad:ln is partial over tp", "sum grad:ln over tp"),
    ("tensor and data parallel", "g twice"): ("scaled by 2", "remove all_reduce1"),
    ("tensor and data parallel", "bias before"): ("is partial over tp and reaches add", ""),
    ("tensor and data parallel", "dp over tp"): ("partial over dp and replicated over tp", "dp"),
    ("tensor and data parallel", "dp over all"): ("replicated over tp: scaled by 2", "dp"),
    ("tensor and data parallel", "loss twice"): ("partial since div, divide", "multiply div by 2"),
    ("tensor and data parallel", "one not reduced"): ("grad:ln is partial over dp", "sum grad:ln"),
    ("tensor and data parallel", "no mean"): (
        "over dp and times 2 on each rank",
        "average over dp",
    ),
    ("DTensor sequence parallel", "norm twice"): (
        "replicated over tp: scaled by 4",
        "remove all_reduce",
    ),
    ("sequence parallel", "norm not reduced"): ("grad:n is partial over tp", "sum grad:n over tp"),
    ("sharded by hand", "sum"): ("over dp and times 4 on each rank", "average over dp"),
    ("FSDP2", "sum"): ("is scaled by 4", "by 0.25"),
    ("tensor parallel and sharded", "sum"): ("over dp and times 2 on each rank", "average over dp"),
    ("tensor parallel and sharded", "wrong group"): (
        "all_gather_into_tensor (dist.all_gather)",
        "",
    ),
    ("all-to-all attention", "average"): ("is scaled by 0.25", "by 4"),
    ("experts", "sum"): ("is scaled by 4", "by 0.25"),
    ("vocabulary parallel", "local denominator"): ("partial over tp and reaches log", "sum "),
    ("vocabulary parallel", "local maximum"): ("partial over tp and reaches sub", "max "),
    ("buckets", "no mean"): ("is scaled by 4", "by 0.25"),
    ("buckets", "one left out"): ("grad:c is partial over dp", "average grad:c over dp"),
    ("accumulated", "not divided"): ("is scaled by 2", "by 0.5"),
    ("clipped", "local norm"): ("partial over tp and reaches sqrt", "sum "),
    ("1F1B", "not divided"): ("loss is scaled by 2", "by 0.5"),
}


@pytest.mark.parametrize(("name", "bug"), FAULTS)
def test_a_fault_is_found_with_its_first_value(name: str, bug: str) -> None:
    report = judged(name, bug)
    problem, repair = FAULTS[name, bug]
    assert not report.equal
    assert problem in report.problem
    assert repair in report.repair
    with pytest.raises(td.support.errors.MismatchError, match="DIST0692"):
        report.check()
