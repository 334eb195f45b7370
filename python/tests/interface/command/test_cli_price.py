# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Test the cost of steps and of serving at the price of ``--price``."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main

MODEL = "zoo:gpt?size=tiny"
STEP = [MODEL, "--strategy", "data_parallel", "--mesh", "dp=2", "--system", "a100"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_step_costs_its_time_on_all_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", *STEP, "--price", "3"]
    report = printed(capsys, *words)
    cost = 3 * 2 * float(report["time_s"]) / 3600
    throughput = report["throughput"]
    assert throughput["cost_per_hour_usd"] == 6
    assert throughput["cost_per_step_usd"] == pytest.approx(cost)
    compared = printed(capsys, "compare", *STEP, "--price", "3")
    assert compared["results"][0]["figures"]["cost_per_hour_usd"] == 6


def test_python_prices_a_system() -> None:
    system = td.System.load("a100")
    result = td.analyze(MODEL, strategy="data_parallel", mesh={"dp": 2}, system=system.priced(4.0))
    assert result.to_dict()["throughput"]["cost_per_hour_usd"] == 8
    assert system.device.price_per_hour is None


def test_plans_of_a_search_cost_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "zoo:mlp?layers=2,hidden=64", "--devices", "2", "--system", "a100"]
    result = printed(capsys, *words, "--price", "3")
    for plan in result["plans"]:
        assert plan["cost_per_step_usd"] == pytest.approx(plan["time_s"] * 6 / 3600)
    assert main([*words, "--price", "3"]) == 0
    assert "$ per step" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-1", "free", "nan", "inf"])
def test_a_price_is_a_positive_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", *STEP, "--price", text]) == 2
    assert "DIST0152 --price: " in capsys.readouterr().err
