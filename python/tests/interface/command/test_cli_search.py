# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir search``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.interface.command import main
from tvm_distir.planning.search import trials

MODEL = "zoo:gpt?size=tiny,layers=1,hidden=32,heads=2,vocab=64,seq=8,batch=4,positions=8"
CLUSTER = ["--devices", "4", "--system", PLAIN_A100]


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What ``search`` prints."""
    assert main(["search", MODEL, *CLUSTER, *arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gap", "100%"], 2, "DIST0152 --gap"),
        (["--gap", "much"], 2, "DIST0152 --gap"),
        (["--memory", "80 apples"], 2, "DIST0152 --memory"),
        (["--top", "0"], 2, "DIST0152 --top"),
        (["--devices", "x"], 2, "DIST0152 --devices"),
        (["--max", "pt=2"], 2, 'DIST0152 most: there is no axis "pt"'),
        (["--micro-batch-sizes", "1,a"], 2, "DIST0152 --micro-batch-sizes"),
        (["--resume"], 2, "DIST0151 --resume"),
        (["--clip", "1"], 2, "DIST0151.*--clip needs --train"),
        (["--max", "dp=1,tp=2"], 3, "DIST0802 search: no mesh of 4 devices"),
        (["--memory", "1KiB"], 3, "DIST0801 search: none of 2 candidates"),
        (["--compare", "megatronn"], 2, "DIST0230 .*megatronn"),
        (["--compare", "pipeline"], 1, "DIST0"),
        (["--system", "dgx-a10"], 2, "DIST0701 --system"),
    ],
)
def test_refusals(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(words, said(arguments, capsys, code))


def test_plans_are_taken_by_analyze(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step that the table promises is what analyze finds of the plan; verify runs it."""
    folder = tmp_path / "found"
    data = json.loads(said(["-o", str(folder), "--json"], capsys))
    plan = ["--plan", str(folder / "1.plan.json")]
    assert main(["analyze", MODEL, *plan, "--system", PLAIN_A100, "--json"]) == 0
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["time_s"] == data["plans"][0]["time_s"]
    assert main(["verify", MODEL, *plan, "--engine", "virtual"]) == 0
    capsys.readouterr()
    page = tmp_path / "found.html"
    again = said(["-o", str(folder), "--resume", "--why", "--report", str(page)], capsys)
    again, why = again.split("Cost added by the second-best placement of each weight")
    assert "mlp.up_proj.weight" in why
    assert "<svg" in page.read_text() and "mlp.up_proj.weight" in page.read_text()
    head = ["#", "plan", "divides", "step", "compute", "comm", "cost", "gap", "peak"]
    assert again.splitlines()[0].split() == head
    assert len(again.splitlines()) == 7 + len(data["plans"])
    assert "\ncost: the time of all ops and collectives in sequence" in again


def test_a_step_of_training_with_what_it_is_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, train = tmp_path / "found", ["--train", "--optimizer", "adam"]
    axes = ["--axes", "pp,dp,tp", "--fixed", "pp=2", "--micro-batch-sizes", "2"]
    text = said([*train, *axes, "--compare", "data_parallel", "-o", str(folder)], capsys)
    assert "pp=2,dp=2" in text and "candidates:" in text
    assert re.search(r"#  plan +divides +step +compute +comm +cost +gap +peak\n", text)
    assert "lower bound of the step time: " in text
    assert re.search(r"\nfastest plan above the lower bound: \d.*% the kernels that", text)
    plan = ["--plan", str(folder / "1.plan.json")]
    assert main(["analyze", MODEL, *plan, *train, "--system", PLAIN_A100, "--json"]) == 0
    result = json.loads((folder / "search.json").read_text())["plans"][0]
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["time_s"] == result["time_s"]
    assert analysis["pipeline"]["ranks"] == result["stages"] == 2


def test_an_interrupt_keeps_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, calls = trials.labeller_of, []

    def interrupted(*inputs: Any, **more: Any) -> Any:
        calls.append(inputs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return make(*inputs, **more)

    monkeypatch.setattr(trials, "labeller_of", interrupted)
    folder = tmp_path / "found"
    assert said(["-o", str(folder)], capsys, 130).endswith("interrupted\n")
    data = json.loads((folder / "search.json").read_text())
    assert not data["complete"] and len(data["plans"]) == 1
    assert (folder / "1.plan.json").exists()


TWO_ENTRIES = """
from tvm.script import ir as I
from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
    def prefill(x: R.Tensor((8, 512, 64), "float32"), w: R.Tensor((64, 64), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function
    def decode(x: R.Tensor((8, 1, 64), "float32"), w: R.Tensor((64, 64), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""


def test_an_entry_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is that of the entry alone, and its step is what analyze finds of that entry."""
    model = tmp_path / "served.py"
    model.write_text(TWO_ENTRIES)
    for entry in ("prefill", "decode"):
        folder = tmp_path / entry
        args = [str(model), "--entry", entry, *CLUSTER, "-o", str(folder), "--json"]
        assert main(["search", *args]) == 0
        data = json.loads(capsys.readouterr().out)
        plan = ["--plan", str(folder / "1.plan.json"), "--entry", entry]
        assert main(["analyze", str(model), *plan, "--system", PLAIN_A100, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["time_s"] == data["plans"][0]["time_s"]
    assert main(["search", str(model), "--entry", "decod", *CLUSTER]) == 2
    assert "DIST0341" in capsys.readouterr().err
