# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``--dim``: sizes of symbolic dims on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from tvm_distir.interface.command import main

PLACES = "--strategy data_parallel --mesh dp=2"

SCRIPT = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("batch", "seq", 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor(("batch", "seq", 8), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(SCRIPT)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "m.onnx")


@pytest.mark.parametrize("model", ["m.py", "m.onnx"])
def test_a_model_with_open_dims_is_analyzed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    analyze = f"analyze {model} {PLACES} --system dgx-a100 --json"
    assert main(shlex.split(f"{analyze} --dim batch=4 --dim seq=6 --report r.html")) == 0
    assert "--dim batch=4 --dim seq=6" in Path("r.html").read_text()
    assert json.loads(capsys.readouterr().out)["devices"][0]["peak_memory_bytes"] < 10_000
    assert main(shlex.split(f"{analyze} --dim batch=4,seq=6")) == 0
    capsys.readouterr()
    assert main(shlex.split(analyze)) == 1
    err = capsys.readouterr().err
    assert err.startswith(("DIST0313 ", "DIST0714 ")) and "--dim batch=N --dim seq=N" in err


def test_explain_says_which_sizes_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"explain m.py y {PLACES}")) == 0
    out = capsys.readouterr().out
    assert '"batch", "seq"' in out and "--dim batch=N --dim seq=N" in out
    assert "per device: bytes unknown" in out and "1,024" not in out
    assert "Alternative placements" not in out and "int64" not in out
    assert main(shlex.split(f"explain m.py y {PLACES} --dim batch=4,seq=6 --json")) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["size_bytes"], reported["bytes_per_device"]) == (768, 384) and reported[
        "alternatives"
    ]
    assert main(shlex.split(f"explain m.py y {PLACES} --json")) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["open_dims"] == ["batch", "seq"] and reported["price"] is None


def test_opt_binds_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("opt m.py -p inline --dim batch=4 --dim seq=6")) == 0
    assert "R.Tensor((4, 6, 8)" in capsys.readouterr().out


@pytest.mark.parametrize("dim", ["seq", "seq=", "=4", "seq=0", "seq=x", "seq=4,seq=5"])
def test_faults_of_the_option(dim: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "m.py", *shlex.split(f"{PLACES} --system dgx-a100"), "--dim", dim]) == 2
    assert capsys.readouterr().err.startswith("DIST0152 --dim: ")


GPT = "zoo:gpt?size=tiny,layers=1"


@pytest.mark.parametrize(
    "command",
    [
        f"analyze MODEL {PLACES} --system h100 --advice bounds",
        f"compare MODEL {PLACES} --system h100",
        "search MODEL --devices 2 --axes dp --system h100",
        "sweep MODEL --grid dp=2 --system h100",
    ],
)
def test_the_tokens_of_a_sample_are_a_key_of_the_model(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(model: str, options: str = "") -> list[str]:
        assert main(shlex.split(f"{command.replace('MODEL', model)} {options}")) == 0
        return capsys.readouterr().out.splitlines()[:6]  # before the times of the run

    by_option = result(GPT, "--seq 8")
    assert by_option == result(f"{GPT},seq=8") != result(GPT)


@pytest.mark.parametrize(
    ("command", "code", "remedy"),
    [
        (f"analyze m.py {PLACES} --system h100 --seq 8", "DIST0313", "--dim NAME=SIZE"),
        ("sweep m.onnx --grid dp=2 --system h100 --seq 8", "DIST0313", "--dim NAME=SIZE"),
        (f"verify zoo:mlp {PLACES} --seq 8", "DIST0331", "Known: batch"),
        (f"verify {GPT},seq=8 {PLACES} --seq 8", "DIST0302", "twice"),
        ("search zoo:gpt --devices 2 --system h100 --seq 0", "DIST0152", "--seq 4096"),
    ],
)
def test_a_model_without_tokens_refuses_their_number(
    command: str, code: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) in (1, 2)
    err = capsys.readouterr().err
    assert err.startswith(code) and remedy in err
