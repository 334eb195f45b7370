# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``convert``: what is written reads back as the same module, at every level and by any way."""

from __future__ import annotations

import json

import pytest
import tvm_ffi

import tvm_distir as td
from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.core.analysis.levels import check_level, level_of
from tvm_distir.core.analysis.names import LEVELS
from tvm_distir.interface.command import main
from tvm_distir.models.model import load_model

PLAN = ["--plan", "plan.json"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the input files, entered."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(*words):
    assert main(["convert", *words]) == 0


def same(first, other):
    return tvm_ffi.structural_equal(load_model(first).mod, load_model(other).mod)


@pytest.mark.parametrize("model", ["mlp.py", "mlp.onnx", "zoo:gpt?size=tiny,layers=1"])
def test_forms_hold_the_same_module(model, work):
    convert(model, "a.py")
    convert(model, "a.json")
    convert("a.json", "b.py")
    convert("a.py", "b.json")
    assert same("a.py", "a.json") and same("a.py", "b.py") and same("a.json", "b.json")
    assert (work / "a.py").read_text() == (work / "b.py").read_text()


def test_every_level_from_every_level_before(work):
    for number, level in LEVELS.items():
        convert("mlp.py", f"{number}.json", *(PLAN if number > 1 else []), "--level", level)
        mod = load_model(f"{number}.json").mod
        check_level(mod, level)
        assert level_of(mod) == level
        for before in range(2, number):
            convert(f"{before}.json", "again.py", "--level", str(number))
            assert same("again.py", f"{number}.json")
    convert("mlp.py", "whole.py", *PLAN)
    assert same("whole.py", "5.json")
    convert("2.json", "p.program.json")
    program = td.Program.load("p.program.json")
    assert program.to_json() == td.export(load_model("5.json").mod).to_json()


def test_training_steps_and_strategies(work):
    convert("mlp.onnx", "step.json", "--train", "--loss", "mse")
    mod = load_model("step.json").mod
    assert len(mod["main"].params) > 2
    words = ["--train", "--strategy", "data_parallel", "--mesh", "dp=2", "--level", "3"]
    convert("zoo:gpt?size=tiny,layers=1", "three.py", *words)
    convert("zoo:gpt?size=tiny,layers=1", "three.json", *words)
    assert same("three.py", "three.json")
    convert("mlp.onnx", "cut.py", "--strategy", "data_parallel", "--mesh", "dp=4", "--level", "2")
    assert level_of(load_model("cut.py").mod) == "annotated"


def test_json_is_a_model(work, capsys):
    convert("mlp.py", "m.json")
    words = [*PLAN, "--system", "dgx-a100", "--json"]
    matches = []
    for model in ("mlp.py", "m.json"):
        assert main(["analyze", model, *words]) == 0
        matches.append(json.loads(capsys.readouterr().out))
    assert matches[0]["devices"] == matches[1]["devices"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mlp.py", "out.txt"], 2, "has an unknown extension"),
        (["mlp.py", "out.py", "--level", "lcoal"], 2, "there is no level"),
        (["mlp.py", "out.py", "--level", "local"], 2, "needs a plan"),
        (["mlp.py", "out.program.json", *PLAN, "--level", "3"], 2, "supports level local only"),
        (["local.json", "out.py", "--level", "1"], 2, "cannot become a global module"),
        (["mlp.py", "mlp.py"], 2, "would be overwritten"),
        (["plan.json", "out.py"], 1, "DIST0303"),
        (["list.json", "out.py"], 1, "DIST0303"),
        (["notjson.json", "out.py"], 1, "DIST0303"),
        (["deep.json", "out.py"], 1, "DIST0303"),
        (["missing.json", "out.py"], 1, "DIST0301"),
        (["m.json", "out.py", "--batch", "4"], 1, "DIST0314"),
    ],
)
def test_refusals(words, code, said, work, capsys):
    convert("mlp.py", "local.json", *PLAN)
    convert("mlp.py", "m.json")
    capsys.readouterr()
    assert main(["convert", *words]) == code
    assert said in capsys.readouterr().err and not (work / "out.py").exists()
