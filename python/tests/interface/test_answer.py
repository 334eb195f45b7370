# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir MODEL --gpus 8xh100`` tries the usual plans and names the best that fits."""

from __future__ import annotations

import json
import shlex

import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main
from tvm_distir.interface.command.ask import read_gpus
from tvm_distir.support import UsageError

GPT = "zoo:gpt?size=tiny"


def asked(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_training_step_on_two_devices(capsys):
    found = asked(capsys, GPT, "--gpus", "2xH100", "--train")
    plans = {c["strategy"]: c for c in found["choices"]}
    assert {strategy: c["mesh"] for strategy, c in plans.items()} == {
        "fsdp": {"dp": 2}, "zero:stage=1+megatron:sequence=1": {"dp": 1, "tp": 2},
    }  # fmt: skip
    first, second = found["choices"]
    assert first["rate"] >= second["rate"] and found["fits"]
    for strategy, choice in plans.items():
        analysis = td.analyze(
            GPT, strategy=strategy, mesh=choice["mesh"], system="h100", batch=4,
            recompute="auto", train={"optimizer": "adamw"},
        )  # fmt: skip
        assert choice["time_s"] == analysis.time_s
        assert choice["memory_bytes"] == analysis.peak_memory_bytes
        assert choice["rate"] == pytest.approx(4 * 16 / analysis.time_s)


def test_the_command_that_it_names_gives_the_same_step(capsys):
    (best, *_) = asked(capsys, GPT, "--gpus", "h100", "--train", "--batch", "8")["choices"]
    words = shlex.split(best["command"])
    assert words[0] == "tvm-distir" and main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_s"] == best["time_s"]


def test_a_workstation_of_four_lines_is_named_by_its_path(capsys, tmp_path):
    node = {"name": "PCIe 4 x16", "devices_per_node": 2, "bandwidth_GBps": 25}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({
        "schema_version": 2, "name": "workstation", "device": "rtx-4090",
        "network": {"intra_node": node},
    }))  # fmt: skip
    (best, *_) = asked(capsys, GPT, "--gpus", f"2x{path}", "--train")["choices"]
    words = shlex.split(best["command"])
    assert words[words.index("--system") + 1] == str(path)
    assert main([*words[1:], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["time_s"] == best["time_s"]
    assert not [name for name in report["basis"]["assumed"] if name.startswith("inter_node")]


def test_a_decoder_is_served_and_another_model_runs_forward(capsys):
    served = asked(capsys, "zoo:llama?size=tiny", "--gpus", "2xh100")
    assert served["unit"] == "requests/s"
    assert {(c["mesh"]["tp"], c["replicas"]) for c in served["choices"]} == {(1, 2), (2, 1)}
    forward = asked(capsys, "zoo:resnet?size=tiny", "--gpus", "2xh100")
    assert forward["unit"] == "samples/s" and [c["mesh"] for c in forward["choices"]] == [{"dp": 2}]
    assert "DIST0233" in forward["refused"][0]


def test_a_refusal_names_the_plans_that_it_concerns(capsys):
    answer = asked(capsys, "hf:llama-3.1-70b", "--gpus", "4xh100")
    assert [choice["mesh"] for choice in answer["choices"]] == [{"tp": 4}, {"tp": 2}]
    (cause,) = answer["refused"]
    assert cause.startswith("megatron on tp=1 x 4: DIST0761 ")


def test_the_rate_is_of_what_its_unit_says(capsys):
    text = asked(capsys, "zoo:bert?size=tiny", "--gpus", "h100")
    bert = td.analyze("zoo:bert?size=tiny", system="h100")
    ids = td.load_model("zoo:bert?size=tiny").mod["main"].params[0]
    batch, tokens = (int(n) for n in ids.ty.shape)
    assert text["unit"] == "tokens/s"
    assert text["choices"][0]["rate"] == pytest.approx(batch * tokens / bert.time_s)
    images = asked(capsys, "zoo:resnet?size=tiny", "--gpus=h100", "--train", "--batch", "4")
    assert images["unit"] == "samples/s"
    assert images["choices"][0]["rate"] == pytest.approx(4 / images["choices"][0]["time_s"])


def test_a_decoder_with_few_positions_runs_forward(capsys):
    answer = asked(capsys, f"{GPT},positions=64", "--gpus", "h100")
    assert answer["question"] == "forward" and answer["fits"]
    assert answer["refused"][0].startswith("DIST0332 ")


def test_a_batch_is_that_of_a_forward_step(capsys):
    answer = asked(capsys, "zoo:llama?size=tiny", "--gpus", "h100", "--batch", "8")
    assert answer["question"] == "forward"
    assert answer["choices"][0]["time_s"] == td.analyze(
        "zoo:llama?size=tiny", batch=8, system="h100"
    ).time_s  # fmt: skip


def test_a_batch_that_no_plan_divides_is_no_lack_of_memory(capsys):
    assert main(["zoo:resnet?size=tiny", "--gpus", "2xh100", "--batch", "1"]) == 3
    text = capsys.readouterr().out
    assert "DOES NOT FIT" not in text and "DIST0234 " in text


def test_an_unknown_device_is_named_by_the_option(capsys):
    assert main([GPT, "--gpus", "2xv100"]) == 2
    assert capsys.readouterr().err.startswith("DIST0701 --gpus: ")


def test_what_does_not_fit_is_said(capsys):
    model = "zoo:mlp?batch=1,layers=2,hidden=200000"
    assert main([model, "--gpus", "h100", "--train"]) == 3
    text = capsys.readouterr().out
    assert "DOES NOT FIT: none of the usual plans runs in 79.6 GiB" in text and "DIST0803" in text
    assert "[Use more devices, " in text


def test_an_analysis_without_a_plan_is_of_one_device(capsys):
    assert main(["analyze", GPT, "--system", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one = td.analyze(GPT, strategy="data_parallel", mesh={"dp": 1}, system="h100")
    assert found["time_s"] == one.time_s == td.analyze(GPT, system="h100").time_s
    assert main(["analyze", GPT, "--system", "h100", "--mesh", "dp=2"]) == 2


@pytest.mark.parametrize(
    ("text", "read"), [("8xh100", (8, "h100")), ("h100", (1, "h100")), ("64 X A100", (64, "A100"))]
)
def test_devices_are_read(text, read):
    assert read_gpus(text) == read


@pytest.mark.parametrize("text", ["", "0xh100", "8 x"])
def test_a_text_that_names_no_devices_is_refused(text):
    with pytest.raises(UsageError, match="DIST0152"):
        read_gpus(text)
