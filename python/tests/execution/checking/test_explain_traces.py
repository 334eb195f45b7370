# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A value of ranks is explained by what it stands for, and by where its layouts come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tvm_distir as td
from tvm_distir.execution.checking import value_origin
from tvm_distir.interface.command.app import main
from tvm_distir.support.errors import DistIRError

from .test_check_stored import HINTS, MLP, PIPE, TRACES, stored


def explained(value: str, kind: str = "right") -> value_origin.ValueOrigin:
    reference = stored(f"{MLP}_reference")
    return td.explain(stored(f"{MLP}_{kind}"), value, reference=reference, hints=HINTS)


def test_a_partial_sum_comes_from_a_contracted_dim() -> None:
    origin = explained("mm1")
    assert origin.state == "mm1 (sharded along dim 0 over dp, partial over tp)"
    assert origin.method == "rules" and origin.line.startswith("programs.py:")
    steps = [(step.value, step.layout, step.rule) for step in origin.axes["tp"]]
    assert steps == [
        ("a", "S(1)", "S(1)"),
        ("mm", "S(1)", "R, S(1) -> S(1)"),
        ("relu", "S(1)", "S(1) -> S(1)"),
        ("mm1", "P(sum)", "S(1), S(0) -> P(sum)"),
    ]
    assert origin.axes["dp"][0].value == "x"


def test_an_output_is_followed_through_its_collective() -> None:
    origin = explained("grad:a")
    assert origin.name == "grad:a (div3)"
    assert [step.layout for step in origin.axes["dp"]][-3:] == ["P(sum)", "R", "R"]
    assert origin.axes["dp"][-2].op == "dist.all_reduce"
    assert {step.layout for step in origin.axes["tp"]} == {"S(1)"}
    assert "more values: as before\n    div3 = divide: S(1)" in origin.to_text()


def test_a_wrong_value_is_explained_by_its_operands() -> None:
    origin = explained("add1", "no_g")
    assert origin.state == "" and origin.axes == {} and origin.method == "execution"
    assert "mm1: mm1 (partial over tp, sharded along dim 0 over dp)" in origin.operands


def test_values_of_stages_are_explained_by_execution() -> None:
    origin = td.explain(stored(f"{PIPE}_right"), "grad:u", reference=stored(f"{PIPE}_reference"))
    assert origin.state == "mm4 (replicated)" and origin.method == "execution"


def test_what_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistIRError, match=r'DIST0430.*no value "mm_1".*"mm1"'):
        explained("mm_1")
    with pytest.raises(DistIRError, match=r"DIST0451.*Pass reference="):
        td.explain(stored(f"{MLP}_right"), "mm1")
    with pytest.raises(DistIRError, match=r"DIST0151.*no plan, costs or system"):
        td.explain(stored(f"{MLP}_right"), "mm1", reference=stored(PIPE + "_right"), system="h100")
    monkeypatch.setattr(value_origin, "MOST_BYTES", 0)
    with pytest.raises(DistIRError, match=r"DIST0693.*the rules do not know what add1 is"):
        explained("add1", "no_g")


def test_the_command_explains_values_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind in (("programs", "right"), ("reference", "reference")):
        shutil.copy(TRACES / f"{MLP}_{kind}.json", tmp_path / f"{name}.json")
    words = ["explain", str(tmp_path), "mm1"]
    for name, axes in HINTS.items():
        words += ["--hint", name + ":" + ",".join(f"{a}={d}" for a, d in axes.items())]
    assert main(words) == 0
    assert capsys.readouterr().out == explained("mm1").to_text()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["axes"]["tp"][-1]["layout"] == "P(sum)"
    assert main([*words, "--mesh", "tp=2"]) == 2
    assert "--mesh does not apply to traces" in capsys.readouterr().err
    assert main(["explain", "zoo:mlp", "x", "--hint", "x:tp=0"]) == 2
    assert "--hint does not apply to what is no folder of traces" in capsys.readouterr().err
