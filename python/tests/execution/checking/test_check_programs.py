# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Right programs pass, and faults are found where they are."""

from __future__ import annotations

import functools
from pathlib import Path

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


MLP, VOC = "tensor and data parallel", "vocabulary parallel"
BOTH, RING = "tensor parallel and sharded", "ring attention"
FAULTS = {
    (MLP, "no g"): ("reaches add", "sum ", "z = d["),
    (MLP, "no f"): ("grad:ln is partial over tp", "sum grad:ln over tp", "autograd.grad("),
    (MLP, "g twice"): ("scaled by 2", "remove all_reduce1", "dist.all_reduce(x, group=group)"),
    (MLP, "bias before"): ("is partial over tp and reaches add", "", 'o = o + p["c"]'),
    (MLP, "dp over tp"): ("partial over dp and replicated over tp", "dp", "all_reduce(g, group"),
    (MLP, "dp over all"): ("replicated over tp: scaled by 2", "dp", "all_reduce(g, group=over)"),
    (MLP, "loss twice"): ("partial since div, divide", "multiply div by 2", "loss = loss / 2"),
    (MLP, "one not reduced"): ("grad:ln is partial over dp", "sum grad:ln", "autograd.grad("),
    (MLP, "no mean"): ("over dp and times 2 on each rank", "average over dp", "group=over)"),
    ("DTensor sequence parallel", "norm twice"): (
        "replicated over tp: scaled by 4", "remove all_reduce", 'out["grad:norm.weight"] = ',
    ),
    ("sequence parallel", "norm not reduced"): (
        "grad:n is partial over tp", "sum grad:n over tp", "autograd.grad(",
    ),
    ("sharded by hand", "sum"): (
        "over dp and times 4 on each rank", "average over dp", "fc.reduce_scatter_tensor(g",
    ),
    ("FSDP2", "sum"): ("is scaled by 4", "by 0.25", "loss * 4"),
    ("DTensor and FSDP2", "reduced twice"): (
        "replicated over tp: scaled by 2", "remove all_reduce", "out[name] = fc.all_reduce",
    ),
    (BOTH, "sum"): ("times 2 on each rank", "average over dp", "fc.reduce_scatter_tensor(g"),
    (BOTH, "wrong group"): ("(dist.all_gather)", "", "fc.all_gather_tensor(x"),
    ("all-to-all attention", "average"): ("is scaled by 0.25", "by 4", "fc.all_reduce(t, kind"),
    (RING, "values stay"): ("stands for none of the reference", "", "new = torch.maximum(top"),
    ("experts", "sum"): ("is scaled by 4", "by 0.25", "fc.all_reduce("),
    ("experts", "not sent back"): ("sub (subtract) is the first value", "", "torch.tanh(y) - d["),
    (VOC, "local denominator"): ("partial over tp and reaches log", "sum ", "s.log()"),
    (VOC, "local maximum"): ("partial over tp and reaches sub", "max ", "z = z - top"),
    (VOC, "no mask"): ("embedding (take) is the first value", "", "h = F.embedding("),
    ("buckets", "no mean"): ("must average", "average over dp in all_reduce", "all_reduce(flat)"),
    ("buckets", "one left out"): (
        "grad:c is partial over dp", "average grad:c over dp", "autograd.grad(",
    ),
    ("accumulated", "not divided"): ("is scaled by 2", "by 0.5", "dist.all_reduce(total[n]"),
    ("ZeRO-1", "wrong shard"): ("sub1 (subtract) is the first value", "", "mine = v.detach()"),
    ("clipped", "local norm"): ("partial over tp and reaches sqrt", "sum ", "squares.sqrt()"),
    ("1F1B", "not divided"): ("loss is scaled by 2", "by 0.5", "total, loss = total + gv, loss"),
}  # fmt: skip
"""What the problem, the repair and the line of each fault contain."""


@pytest.mark.parametrize(("name", "bug"), FAULTS)
def test_a_fault_is_found_with_its_first_value(name: str, bug: str) -> None:
    report = judged(name, bug)
    problem, repair, code = FAULTS[name, bug]
    assert not report.equal
    assert problem in report.problem
    assert repair in report.repair
    file, line = report.line.split()[0].split(":")
    source = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    assert code in source[int(line) - 1]
    with pytest.raises(td.support.errors.MismatchError, match="DIST0692"):
        report.check()
