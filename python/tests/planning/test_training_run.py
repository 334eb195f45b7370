# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Days, dollars and goodput of a training run, against simulated failures and hand counts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main
from tvm_distir.planning import TrainingRun
from tvm_distir.support import UsageError

MODEL = "zoo:gpt?size=tiny"
STEP = ["analyze", MODEL, "--strategy", "data_parallel", "--mesh", "dp=2", "--system", "a100"]


def simulated_goodput(
    failures_s: float, interval_s: float, write_s: float, restart_s: float
) -> float:
    """The share of useful time of a run that fails at random times, event by event."""
    rng = np.random.default_rng(0)
    now_s = useful_s = 0.0
    next_s = rng.exponential(failures_s)
    for _ in range(20_000):
        work_s = interval_s + write_s
        while next_s < now_s + work_s:  # the interval is lost, and starts after a restart
            now_s = next_s
            next_s += rng.exponential(failures_s)
            work_s = restart_s + interval_s + write_s
        now_s += work_s
        useful_s += interval_s
    return useful_s / now_s


@pytest.mark.parametrize(
    ("hours", "devices", "checkpoint", "restart"),
    [(50_000.0, 16_384, 1.5, 10.0), (10_000.0, 4_096, 5.0, None), (2_000.0, 8, 1.0, 30.0)],
)
def test_goodput_is_that_of_simulated_failures(
    hours: float, devices: int, checkpoint: float, restart: float | None
) -> None:
    run = TrainingRun(mtbf_hours=hours, checkpoint_minutes=checkpoint, restart_minutes=restart)
    failures_s, interval_s = run.failure_interval_s(devices), run.checkpoint_interval_s(devices)
    assert failures_s is not None and interval_s is not None
    assert failures_s == hours * 3600 / devices
    others = (60 * checkpoint, 60 * (checkpoint if restart is None else restart))
    goodput = simulated_goodput(failures_s, interval_s, *others)
    assert run.goodput(devices) == pytest.approx(goodput, rel=0.01)
    for factor in (0.5, 2.0):  # no other interval is better
        assert simulated_goodput(failures_s, factor * interval_s, *others) < goodput


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)["throughput"]
    return result


def test_days_and_dollars_follow_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--train", "--price", "3", "--tokens", "1.5B"]
    figures = printed(capsys, *STEP, *run)
    hours = 1.5e9 / figures["tokens_per_s"] / 3600
    assert figures["run_days"] == pytest.approx(hours / 24)
    assert figures["run_cost_usd"] == pytest.approx(hours * 2 * 3)
    assert figures["goodput"] is None
    failing = ["--mtbf-hours", "20", "--checkpoint-minutes", "6"]
    failed = printed(capsys, *STEP, *run, *failing)
    assert 0.5 < failed["goodput"] < 0.95
    assert failed["run_days"] == pytest.approx(hours / 24 / failed["goodput"])
    assert main([*STEP, *run, *failing]) == 0
    text = capsys.readouterr().out
    assert "1.5B tokens take" in text and "a failure every 10.0 h" in text


def test_python_takes_the_same_words() -> None:
    result = td.analyze(
        MODEL, strategy="data_parallel", mesh={"dp": 2}, system="a100", train=True, tokens=1.5e9
    )
    figures = result.to_dict()["throughput"]
    assert figures["run_days"] == pytest.approx(1.5e9 / figures["tokens_per_s"] / 86400)
    assert figures["run_cost_usd"] is None
    assert "tokens take" in result.summary and "tokens take" in result.to_html()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens", "1T"], "DIST0151 --tokens: a run of many steps trains"),
        (["--train", "--tokens", "0"], "DIST0152 --tokens: "),
        (["--train", "--tokens", "many"], "DIST0152 --tokens: "),
        (["--train", "--mtbf-hours", "9"], "DIST0151 --mtbf-hours: failures need"),
        (["--train", "--restart-minutes", "9"], "DIST0151 --mtbf-hours: failures need"),
        (
            ["--train", "--mtbf-hours", "0.1", "--checkpoint-minutes", "9"],
            "DIST0152 mtbf_hours: of 2 devices one fails every 180 s",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STEP, *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_model_without_tokens_has_no_run_on_tokens() -> None:
    with pytest.raises(UsageError, match=r"DIST0151 tokens: .* no input of tokens"):
        td.analyze("zoo:mlp", system="a100", train={"loss": "mse"}, tokens=1e9)
