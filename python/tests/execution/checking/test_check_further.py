# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Further right programs pass, and faults of other kinds are found."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="extra torch")

import torch
import torch.distributed as dist

import tvm_distir as td
from tvm_distir.execution import CheckReport
from tvm_distir.support.errors import ModelError

from .further_programs import FURTHER

_SLOW = ("grouped heads", "ring of four", "capacity", "replicated keys")
NIGHTLY = {name: [pytest.mark.nightly] for name in _SLOW}
FAULTS = {
    ("interleaved stages", "stages swapped"): ("mm1 (matmul) is the first value", ""),
    ("ZeRO-2", "shifted"): ("cat (concat) is the first value", ""),
    ("ZeRO-2", "not averaged"): ("reduce_scatter_tensor", "multiply reduce_scatter_tensor by 0.25"),
    ("grouped heads", "other heads"): ("flip (flip) is the first value", ""),
    ("grouped heads", "keys not reduced"): ("grad:k is partial over cp", "average grad:k over cp"),
    ("replicated keys", "copies differ"): ("grad:k is partial over copy", "sum grad:k over copy"),
    ("ring of four", "wrong rotation"): ("cat (concat) is the first value", ""),
    ("capacity", "no drop"): ("mm (matmul) is the first value that stands for none", ""),
    ("capacity", "router not reduced"): ("grad:r is partial over ep", "sum grad:r over ep"),
    ("tied embedding", "not summed"): ("grad:e is partial over pp", "sum grad:e over pp"),
    ("scaled loss", "not scaled"): ("is scaled by 0.25", "multiply div1 by 4"),
    ("masked mean", "local counts"): ("sum1 is partial over dp and reaches div", ""),
    ("batch norm", "local statistics"): ("mean is partial over dp and reaches sub", ""),
    ("adapters", "adapter not reduced"): ("grad:down is partial over tp", "sum grad:down over tp"),
    ("adapters", "transposed groups"): ("all_reduce (dist.all_reduce) gives no value", ""),
    ("gathered list", "wrong order"): ("cat (concat) is the first value", ""),
    ("gathered list", "wrong dim"): ("cat (concat) is the first value", ""),
    ("embedding", "wrong mask"): ("embedding (take) is the first value", ""),
    ("round and back", "on"): ("is the first value that stands for none", ""),
}
"""What the problem and the repair of each fault contain."""


def judged(name: str, bug: str = "") -> CheckReport:
    case = FURTHER[name]
    programs = td.trace_ranks(case.of(bug), case.ranks, mesh=case.mesh)
    return td.check(programs, td.trace_ranks(case.single, 1), hints=case.hints)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NIGHTLY.get(name, [])) for name in FURTHER]
)
def test_a_further_program_is_equal(name: str) -> None:
    report = judged(name)
    assert report.equal, str(report)


@pytest.mark.parametrize(
    ("name", "bug"), [pytest.param(*at, marks=NIGHTLY.get(at[0], [])) for at in FAULTS]
)
def test_a_further_fault_is_found(name: str, bug: str) -> None:
    report = judged(name, bug)
    problem, repair = FAULTS[name, bug]
    assert report.verdict == "wrong"
    assert problem in report.problem
    assert repair in report.repair
    assert "further_programs.py:" in report.line or report.line.split(":")[0] in (
        "cases.py",
        "communicating_functions.py",
    )


def test_waits_are_no_part_of_a_trace() -> None:
    report = judged("half reduction", "not waited")
    assert report.equal and "waits for asynchronous collectives" in report.not_checked


def test_uneven_shards_are_refused() -> None:
    def make(rank: int) -> Any:
        ranks = dist.get_world_size()
        rows = 6 if ranks == 1 else (4, 2)[rank]
        return lambda p, d: {"y": d["x"] @ p["w"]}, {"w": torch.ones(rows, 8)}, {
            "x": torch.ones(2, rows)
        }  # fmt: skip

    with pytest.raises(ModelError, match=r"\[4, 8\] of \[6, 8\].*not one of equal parts.*evenly"):
        td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1))
