# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``--train``: the commands on training steps."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.interface.command import main

MODEL = "zoo:gpt?size=tiny,layers=1,hidden=32,heads=2,vocab=64,seq=8,batch=4,positions=8"
LARGER = "zoo:gpt?size=tiny,layers=1,hidden=512,heads=8,vocab=512,seq=256,batch=16,positions=256"
"""Work that counts: where messages cost more than work, devices repeat some of it."""
PLAN = ["--strategy", "data_parallel+megatron", "--mesh", "dp=2,tp=2"]
SYSTEM = ["--system", PLAIN_A100, "--advice", "bounds"]


def analyzed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], model: str = MODEL
) -> dict[str, object]:
    """JSON of ``analyze``."""
    code = main(["analyze", model, *PLAN, *SYSTEM, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return dict(json.loads(out))


def test_a_step_does_three_times_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Two products backward for each one forward; Adam's states treble the parameters."""
    forward = analyzed([], capsys, LARGER)
    plain = analyzed(["--train"], capsys, LARGER)
    adam = analyzed(["--train", "--optimizer", "adam:rate=0.01"], capsys, LARGER)
    assert plain["unmodelled_ops"] == adam["unmodelled_ops"] == []
    single, three, states = (d["devices"][0] for d in (forward, plain, adam))
    assert 2.8 < three["flops"] / single["flops"] < 3.3
    # Scalars of the formulae are constants, which count too.
    assert three["param_bytes"] == pytest.approx(single["param_bytes"], rel=0.02)
    assert states["param_bytes"] == pytest.approx(3 * single["param_bytes"], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--loss", "mse"], 2, "DIST0151"),
        (["--train", "--loss", "mes"], 1, "DIST0351"),
        (["--train", "--optimizer", "adam:rate"], 2, "DIST0152"),
        (["--train", "--optimizer", "sgd:beta1=0.5"], 2, "DIST0351 --optimizer.*beta1"),
        (["--clip", "1"], 2, "DIST0151.*--clip needs --train"),
        (["--loss-scale", "8"], 2, "DIST0151.*--loss-scale needs --train"),
        (["--train", "--clip", "one"], 2, "DIST0152.*--clip"),
        (["--train", "--clip", "-1"], 1, "DIST0351.*clip is -1"),
        (["--train", "--loss-scale", "dynamc"], 1, "DIST0351.*dynamc.*or dynamic"),
        (["--train", "--freeze", "wt.*"], 1, "DIST0351.*wt.*wte"),
        (["--train", "--recompute", "some"], 1, "DIST0351.*some"),
        (["--train", "--recompute", "auto:memory_gib=1e-6"], 3, "DIST0803.*requires .* measured"),
    ],
)
def test_wrong_options(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got = main(["analyze", MODEL, *PLAN, *SYSTEM, *arguments])
    assert got == code
    assert re.search(words, capsys.readouterr().err, re.DOTALL)


def test_masters_frozen_weights_and_scales(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each half-precision weight: itself, a float32 master and two moments, 14 bytes for 2."""
    model = LARGER + ",dtype=bfloat16"
    plain = analyzed(["--train"], capsys, model)["devices"][0]["param_bytes"]
    options = ["--train", "--optimizer", "adamw", "--clip", "1", "--loss-scale", "dynamic"]
    whole = analyzed([*options, "--master"], capsys, model)["devices"][0]["param_bytes"]
    assert whole == pytest.approx(7 * plain, rel=0.02)
    frozen = [*options, "--master", "--freeze", "h.*", "--freeze", "ln_f.*"]
    some = analyzed(frozen, capsys, model)["devices"][0]["param_bytes"]
    assert plain < some < whole / 2


def test_what_is_chosen_stands_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and activations count half; the edited plan makes the step that it says."""
    layers = "zoo:gpt?size=tiny,layers=4,hidden=32,heads=2,vocab=64,seq=64,batch=16,positions=64"
    remaining = analyzed(["--train", "--recompute", "none"], capsys, layers)["devices"][0]
    bound = "auto:memory_gib=0.006,activations=2,weights=2"
    got = analyzed(["--train", "--recompute", bound, "-o", str(tmp_path)], capsys, layers)[
        "devices"
    ][0]
    assert got["peak_memory_bytes"] < remaining["peak_memory_bytes"]
    path = tmp_path / "plan.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    assert "none" in data["recompute"]["layer"] and data["recompute"]["layer"] != "none"
    path.write_text(json.dumps({**data, "recompute": {"layer": "full"}}), encoding="utf-8")
    command = ["analyze", layers, "--plan", str(path), *SYSTEM, "--train"]
    assert main([*command, "--json"]) == 0
    full = json.loads(capsys.readouterr().out)["devices"][0]
    assert full["peak_memory_bytes"] < got["peak_memory_bytes"]
    assert full["flops"] > got["flops"]
    assert main([*command, "--recompute", "full"]) == 2
    assert "DIST0151" in capsys.readouterr().err


def test_recomputation_in_stages_within_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """Activations count as cut over the devices of a stage, not over those of all."""
    model = LARGER.replace("layers=1", "layers=4").replace("batch=16", "batch=64")
    command = ["analyze", model, "--train", *SYSTEM, "--json"]
    command += ["--strategy", "pipeline:micro_batches=4+data_parallel", "--mesh", "pp=2,dp=2"]
    peaks = {}
    for policy in ("none", "auto:memory_gib=0.4", "full"):
        assert main([*command, "--recompute", policy]) == 0
        devices = json.loads(capsys.readouterr().out)["devices"]
        peaks[policy] = max(device["peak_memory_bytes"] for device in devices)
    none, auto, full = peaks.values()
    assert none > 0.4 * 2**30 >= auto > full
    assert main([*command, "--recompute", "auto:memory_gib=0.1"]) == 3
    assert re.search("DIST0803.*requires .* measured", capsys.readouterr().err)


def test_the_report_names_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it calls the command for the same analysis gives the same analysis."""
    monkeypatch.chdir(tmp_path)
    options = ["--train", "--loss", "mse", "--optimizer", "adam:rate=0.01", "--batch", "8"]
    reported = analyzed([*options, "--report", "r.html"], capsys)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    (command,) = set(re.findall(r"tvm-distir analyze [^<\n]*", html.unescape(page)))
    words = shlex.split(command)
    assert main([*words[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "timings_s": 0} == {**reported, "timings_s": 0}
    assert words[0] == "tvm-distir" and set(options) <= set(words)


def test_a_pipeline_is_analyzed_written_and_simulated_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The program in the folder keeps its stages; simulating it says the same."""
    plan = ["--strategy", "pipeline:micro_batches=2+data_parallel", "--mesh", "pp=2,dp=2"]
    folder, trace = tmp_path / "out", tmp_path / "trace.json"
    model = MODEL.replace("layers=1", "layers=2")
    outputs = ["-o", str(folder), "--trace", str(trace)]
    code = main(["analyze", model, "--train", *plan, *SYSTEM, *outputs])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert re.search(r"schedule 1f1b: 2 stages, 2 micro-batches, bubble [0-9.]+%", out)
    assert json.loads((folder / "program.json").read_text())["schema_version"] == 2
    first = json.loads((folder / "analysis.json").read_text())
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward", "backward", "send", "recv"} <= names
    code = main(["simulate", str(folder / "program.json"), "--system", PLAIN_A100, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    again = json.loads(out)
    for key in ("time_s", "devices", "collectives", "pipeline"):
        assert first[key] == again[key]
