# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of torch are proved by rules at any size."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch", reason="extra torch")

import tvm_distir as td
from tvm_distir.execution import CheckReport
from tvm_distir.execution.checking.proving import prove
from tvm_distir.execution.checking.traced_module import TracedModule

from .decoder import HINTS, LLAMA_8B, Decoder
from .programs import CASES

PROVED = (
    "tensor and data parallel", "DTensor tensor parallel", "sequence parallel", "sharded by hand",
    "tensor parallel and sharded", "clipped",
)  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_a_right_program_is_proved(name: str) -> None:
    case = CASES[name]
    ranks = TracedModule(td.trace_ranks(case.of(), case.ranks, mesh=case.mesh))
    assert prove(ranks, TracedModule(td.trace_ranks(case.single, 1)), case.hints, 0).equal


def by_rules(model: Decoder, bug: str = "") -> CheckReport:
    ranks = td.trace_ranks(model.ranks(bug), model.dp * model.tp, mesh=model.mesh, sample=0)
    return td.check(ranks, td.trace_ranks(model.single, 1), hints=HINTS, by="rules")


def test_a_step_of_llama_sizes_is_proved() -> None:
    report = by_rules(dataclasses.replace(LLAMA_8B, layers=2))
    assert report.equal and report.method == "rules"
    assert report.not_checked[0] == "negative elements of ids, labels"


def test_faults_of_llama_sizes_are_reported() -> None:
    model = dataclasses.replace(LLAMA_8B, layers=1)
    report = by_rules(model, "no g")
    assert report.verdict == "unproved"
    assert "partial over tp" in report.problem and report.line.startswith("decoder.py:")
    report = by_rules(model, "dp over tp")
    assert report.verdict == "wrong"
    assert "partial over dp" in report.problem


def test_the_verdict_of_a_small_model_is_that_of_its_run() -> None:
    model = Decoder(1, heads=4, kv_heads=2, dp=2, tp=2, batch=4, device="cpu")
    ranks = td.trace_ranks(model.ranks(), 4, mesh=model.mesh)
    reference = td.trace_ranks(model.single, 1)
    hints = {**HINTS, **{f"l0.{n}": {"tp": 1} for n in ("q", "k", "v", "gate", "up")}}
    hints |= {f"l0.{n}": {"tp": 0} for n in ("o", "down")}
    for by in ("rules", "execution"):
        report = td.check(ranks, reference, hints=hints, by=by)
        assert report.equal and report.method == by
