# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``compare`` from end to end: what it says is what `analyze` says of each."""

from __future__ import annotations

import json

import pytest

import tvm_distir as td
from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.interface.command import main
from tvm_distir.support.config.record import RECORD

SYSTEM = ["--system", "dgx-a100"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the input files, entered."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(words, capsys):
    """Run a command that must succeed, and give what it printed."""
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_plans_strategies_and_results(work, capsys):
    way = ["--strategy", "data_parallel", "--mesh", "dp=4"]
    data = run_command(["analyze", "mlp.py", *way, *SYSTEM, "--json"], capsys)
    (work / "before.json").write_text(data)
    run_command(["analyze", "mlp.py", "--plan", "plan.json", *SYSTEM, "-o", "out"], capsys)
    both = ["mlp.py", "before.json", "out", "--plan", "plan.json", *way, *SYSTEM, "--json"]
    rows = json.loads(run_command(["compare", *both], capsys))["results"]
    assert [row["name"] for row in rows] == ["plan.json", "data_parallel", "before", "out"]
    assert rows[1]["mesh"] == "dp=4" and rows[0]["ratio"] == rows[3]["ratio"] == 1.0
    for each, again in ((rows[0], rows[3]), (rows[1], rows[2])):
        assert {**each, "name": ""} == {**again, "name": ""}
    text = run_command(["compare", "before.json", "out"], capsys)
    assert "mlp.py on dgx-a100" in text and "bound by" in text


def test_results_of_simulate(work):
    program = td.Program.from_json(
        td.export(td.distribute(td.from_tvmscript("mlp.py"), "plan.json")).to_json()
    )
    results = [td.simulate(program, name) for name in ("dgx-a100", "dgx-h100")]
    result = td.compare(*results, names=["a", "v"])
    assert [each.time_s for each in result.outcomes] == [each.time_s for each in results]
    assert result.outcomes[0].mesh == "4 devices" and result.outcomes[0].system == "dgx-a100"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mlp.py", "--plan", "plan.json"], 2, "need a system"),
        (["before.json", *SYSTEM], 2, "--system"),
        (["mlp.py", "--strategy", "data_parallel", *SYSTEM], 2, "needs a mesh"),
        (["mlp.py", "--strategy", "data_parallel", "--mesh", "dp=2", "--mesh", "dp=4", *SYSTEM], 2,
         "2 meshes for 1"),
        (["list.json"], 1, "DIST0740"),
        (["missing.json"], 1, "DIST0740"),
    ],
)  # fmt: skip
def test_refusals(words, code, said, work, capsys):
    assert main(["compare", *words]) == code
    assert said in capsys.readouterr().err


def test_traces_by_ending_and_by_format(work, capsys):
    words = ["analyze", "mlp.py", "--plan", "plan.json", *SYSTEM, "--json", "--trace"]
    run_command([*words, "t.pftrace"], capsys)
    run_command([*words, "t.trace", "--trace-format", "pftrace"], capsys)
    assert (work / "t.pftrace").read_bytes() == (work / "t.trace").read_bytes()
    run_command([*words, "traces", "--trace-format", "hta"], capsys)
    assert sorted(p.name for p in (work / "traces").iterdir()) == [
        RECORD,
        *(f"rank{r}.json" for r in range(4)),
    ]
    run_command([*words, "chakra", "--trace-format", "chakra"], capsys)
    names = [RECORD, "comm_group.json", *(f"trace.{r}.et" for r in range(4))]
    assert sorted(p.name for p in (work / "chakra").iterdir()) == names
    for more, code in (["t", "--trace-format", "hat"], 2), (["no/t.pftrace"], 2):
        assert main([*words, *more]) == code
    assert main([*words[:-1], "--trace-format", "hta"]) == 2
