# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Options on systems and kernels of the commands, and what they say of their numbers."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import tvm_distir as td
from tests.plain_systems import PLAIN_H100
from tvm_distir.hardware.systems.system_reader import DATA
from tvm_distir.interface.command import main

MODEL = "zoo:gpt?size=tiny,dtype=bfloat16"
WAY = ["--strategy", "data_parallel", "--mesh", "dp=2"]
WAY_OF_MLP = "data_parallel", {"dp": 2}
TRAIN = ["--train", "--optimizer", "adam"]


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must succeed, and return what it printed."""
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_compare_gives_each_system_what_analyze_does(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a100", "b200"]
    systems = [word for name in names for word in ("--system", name)]
    rows = json.loads(run_command(["compare", MODEL, *WAY, *systems, "--json"], capsys))["results"]
    assert [row["system"] for row in rows] == names
    assert [row["name"] for row in rows] == [f"data_parallel on {name}" for name in names]
    for name, row in zip(names, rows, strict=True):
        single = json.loads(
            run_command(["analyze", MODEL, *WAY, "--system", name, "--json"], capsys)
        )
        assert row["time_s"] == single["time_s"]
        assert row["figures"]["mfu"] == single["throughput"]["mfu"]
    text = run_command(["compare", MODEL, *WAY, *systems], capsys)
    assert "tokens/s per device" in text and "MFU" in text


def test_the_kernels_of_a_sweep_are_those_of_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def time_s(*options: str) -> float:
        words = ["sweep", MODEL, "--grid", "dp=2", "--system", "h100", *TRAIN, *options]
        rows = list(csv.DictReader(io.StringIO(run_command(words, capsys))))
        return float(rows[0]["time_s"])

    assert time_s("--kernels", "eager") > time_s()
    assert main(["sweep", MODEL, "--grid", "dp=2", "--system", "h100", "--kernels", "none"]) == 2


def test_a_search_says_which_kernels_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", MODEL, "--devices", "2", "--system", "h100", "--kernels", "none"]
    assert main(words) == 2
    assert "--kernels" in capsys.readouterr().err


def test_masters_are_kept_by_default_on_systems_that_describe_trainers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def peak_bytes(*options: str) -> int:
        words = ["analyze", MODEL, *WAY, *TRAIN, "--advice", "bounds", "--json", *options]
        return int(json.loads(run_command(words, capsys))["peak_memory_bytes"])

    remaining = peak_bytes("--system", "h100", "--master")
    without = peak_bytes("--system", "h100", "--no-master")
    assert remaining > without
    assert peak_bytes("--system", "h100") == remaining
    by_hand = {"strategy": "data_parallel", "mesh": {"dp": 2}, "train": {"optimizer": "adam"}}
    assert td.analyze(MODEL, system="h100", **by_hand).peak_memory_bytes == remaining
    plain = [peak_bytes("--system", PLAIN_H100, *more) for more in ((), ("--no-master",))]
    assert plain[0] == plain[1]


def test_the_head_of_an_answer_states_rate_cost_and_basis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "priced.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": 2, "name": "priced", "device": "h100-sxm", "network": "hgx-h100",
                "price_per_device_hour_usd": 3.0, "watts_per_device": 500,
            }
        )
    )  # fmt: skip
    words = ["analyze", MODEL, *WAY, "--system", str(path), "--advice", "bounds"]
    data = json.loads(run_command([*words, "--json"], capsys))
    inputs, time_s = data["throughput"], data["time_s"]
    assert inputs["cost_per_hour_usd"] == 6.0
    assert math.isclose(inputs["cost_per_step_usd"], 6.0 * time_s / 3600)
    assert math.isclose(inputs["energy_per_step_kWh"], 2 * 500 * time_s / 3.6e6)
    assert math.isclose(inputs["tokens_per_s"], inputs["tokens"] / time_s)
    assumed = [number["name"] for number in data["basis"]["numbers"] if number["assumed"]]
    assert assumed == data["basis"]["assumed"] != []
    head = run_command(words, capsys).splitlines()[:7]
    assert "tokens/s" in head[3] and "MFU" in head[3]
    assert "$6.00 per hour" in head[4]
    count = f"({len(assumed)} of the {len(data['basis']['numbers'])} that it uses"
    assert "system priced, kernel profile" in head[5] and count in head[5]


@pytest.mark.parametrize("kernels", ["", "torch-eager"])
def test_simulate_names_the_profile_that_it_takes(
    kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.json"
    local = td.distribute(td.zoo.mlp(), td.planning.make_plan(td.zoo.mlp(), *WAY_OF_MLP))
    td.export(local).save(path)
    options = ["--kernels", kernels] if kernels else []
    text = run_command(["simulate", str(path), "--system", "h100", *options], capsys)
    assert f"kernel profile {kernels or td.System.load('h100').kernels};" in text


@pytest.mark.parametrize("name", ["h100,", ",h100", "h100,,a100", ",", ""])
def test_a_missing_name_among_systems_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", MODEL, *WAY, "--system", name]) == 2
    assert f'DIST0701 --system: a name is missing in "{name}"' in capsys.readouterr().err


def test_an_image_model_has_samples_and_no_tokens() -> None:
    result = td.analyze(
        "zoo:resnet?size=tiny", strategy="data_parallel", mesh={"dp": 2}, system="h100"
    )
    inputs = result.to_dict()["throughput"]
    assert inputs["tokens_per_s"] is None and inputs["samples_per_s"] > 0
    assert "samples/s" in result.summary


def test_systems_are_listed_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows agree with the systems, and a system has all its numbers with their sources."""
    text, _, further = run_command(["systems"], capsys).partition("\n\nfurther names\n")
    lines = text.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(td.hardware.system_names())
    for name in ("h100", "rtx-4090"):
        system = td.System.load(name)
        (row,) = (line for line in lines if line.split()[0] == name)
        numbers = td.hardware.sourced_numbers(system)
        assumed = sum(number.source.startswith("assumed") for number in numbers)
        assert row.endswith(f"{assumed} of {len(numbers)}")
        assert f" {system.device.memory_bandwidth_GBps:g} " in row and system.device.name in row
        listed = [
            line.split()[0]
            for line in run_command(["systems", name], capsys).splitlines()[5:]
            if line
        ]
        assert listed == [number.name for number in numbers]
    for line in further.splitlines():
        name, _, aliases = line.strip().partition(": ")
        for alias in aliases.split(", "):
            assert td.System.load(alias) == replace(td.System.load(name), name=alias)


def test_numbers_of_a_file_and_an_unknown_system(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text((DATA / "tpu-v4-like.json").read_text())
    assert run_command(["systems", str(path)], capsys) == run_command(
        ["systems", "tpu-v4-like"], capsys
    )
    assert main(["systems", "h10"]) == 1
    assert "DIST0701" in capsys.readouterr().err
