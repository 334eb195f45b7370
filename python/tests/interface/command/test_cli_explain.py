# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir explain`` from end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import child_environment
from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.core.plan.plan import Plan
from tvm_distir.interface.command import main
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.models.tvmscript import from_tvmscript

MLP = ["mlp.py", "--plan", "plan.json"]
GPT = ["zoo:gpt?size=tiny,layers=2", "--strategy", "data_parallel+megatron", "--mesh", "dp=2,tp=2"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the input files, entered."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_says_everything(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *MLP, "mlp/lv2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # Of (8, 16) over dp=2: the batch is cut in two, both devices of tp hold the same rows.
    for line in (
        "mlp/lv2: matmul, shape (8, 16)",
        "(4, 16) per device: 256 of 512 bytes",
        "0:4 | 0, 1",
        "4:8 | 2, 3",
        "dp (2): S[0], from main/x",
        "tp (2): R, partial sum over a dim sharded by main/b (produced as P, reduced immediately)",
        "S[0], P -> S[0], R: all_reduce along tp, 256 bytes",
        "axis  label",
    ):
        assert line in out


def test_json_is_the_explanation(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *MLP, "main/y", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    created = explain(from_tvmscript(work / "mlp.py"), "main/y", plan=Plan.load("plan.json"))
    assert data == json.loads(json.dumps(created.to_dict()))
    assert data["schema_version"] == 1 and data["name"] == "main/y"
    assert {x["axis"] for x in data["alternatives"]} == {"dp", "tp"}


def test_a_plan_to_be_completed_is_explained_so(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mod, plan = from_tvmscript(work / "mlp.py"), Plan.load("plan.json")
    completed = dataclasses.replace(plan, complete=True)
    completed.save("plan.json")
    assert main(["explain", *MLP, "main/y", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads(json.dumps(explain(mod, "main/y", plan=completed).to_dict()))
    assert data["price"] != explain(mod, "main/y", plan=plan).to_dict()["price"]


def test_prices_can_be_left_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *MLP, "main/y", "--json", "--no-alternatives"]) == 0
    assert json.loads(capsys.readouterr().out)["alternatives"] == []
    assert main(["explain", *MLP, "main/y", "--no-alternatives"]) == 0
    assert "Alternative placements" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("mlp/lv22", 'DIST0430 mlp/lv22: no value has this name [Did you mean mlp/lv2'),
        ("lv", "mlp: matmul"),
        ("h.0.attn.q_proj.wieght", "main/h.0.attn.q_proj.weight"),
    ],
)  # fmt: skip
def test_names(value: str, said: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = GPT if value.startswith("h.") else MLP
    code = main(["explain", *model, value])
    out, err = capsys.readouterr()
    if value == "lv":
        assert code == 0 and out.startswith("mlp/lv: matmul")
        return
    assert code == 1 and out == "" and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["mlp.py", "--plan", "plan.json"], 2),
        (["mlp.py", "x"], 2),
        (["mlp.py", "--strategy", "megatron", "x"], 2),
        (["missing.py", "--plan", "plan.json", "x"], 1),
        (["cycle.py", "--strategy", "data_parallel", "--mesh", "dp=2", "x"], 1),
    ],
)
def test_wrong_command_lines(
    words: list[str], code: int, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and "DIST0" in err and "Traceback" not in err


def test_processes_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """The hash seed changes no byte: that of this process, and another."""
    words = ["explain", *GPT, "layer/matmul4"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "layer/matmul4" in text and "Alternative placements" in text
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-m", "tvm_distir.interface.command", *words],
        capture_output=True,
        text=True,
        env=child_environment(PYTHONHASHSEED=seed),
    )
    assert (done.returncode, done.stdout) == (0, text), done.stderr


def test_the_documentation_shows_true_output(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[4] / "docs/explain.md").read_text(encoding="utf-8")
    block = re.search(r"```console\n\$ tvm-distir (.*)\n((?:.*\n)*?)```\n", text)
    assert block is not None
    assert main(shlex.split(block[1])) == 0
    assert capsys.readouterr().out == block[2], "run scripts/docs_tools/update_readme.py"


def test_the_documentation_s_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[4] / "docs/explain.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n((?:.*\n)*?)```\n", text)
    assert block is not None
    exec(block[1], {})
    out = capsys.readouterr().out
    assert out.startswith("layer/matmul3: matmul") and out.endswith("4:8 | 2   | 3\n")
