# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``--micro-batches`` accumulates gradients on every command that trains."""

from __future__ import annotations

import json

import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main
from tvm_distir.planning.study import Study
from tvm_distir.support.errors.tree import UsageError

MODEL = "zoo:gpt?size=tiny"
TRAIN = ("--train", "--batch", "8", "--micro-batches", "4")
PLANNED = ("--mesh", "dp=2", "--strategy", "zero")
BY_HAND = "pipeline:stages=1,micro_batches=4+zero"


@pytest.fixture(scope="module")
def by_hand():
    """The step that a strategy with a pipeline of one stage makes."""
    return Study(
        MODEL, strategy=BY_HAND, mesh={"dp": 2}, system="dgx-a100", train={}, batch=8
    ).result


def test_analyze(by_hand, capsys):
    assert main(["analyze", MODEL, *TRAIN, *PLANNED, "--system", "dgx-a100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["time_s"] == by_hand.time_s
    assert data["peak_memory_bytes"] == by_hand.peak_memory_bytes


def test_compare(by_hand, capsys):
    ways = ("--strategy", "zero", "--strategy", "data_parallel", "--mesh", "dp=2")
    assert main(["compare", MODEL, *TRAIN, *ways, "--system", "dgx-a100", "--json"]) == 0
    assert f'"time_s": {by_hand.time_s}' in capsys.readouterr().out


def test_verify(capsys):
    assert main(["verify", MODEL, *TRAIN, *PLANNED, "--engine", "virtual"]) == 0


def test_sweep_is_a_column(capsys):
    """A table that says the numbers itself is not changed."""
    common = ["sweep", MODEL, "--train", "--system", "dgx-a100", "--grid", "dp=2"]
    texts = []
    for more in (
        ["--micro-batches", "4"],
        ["--grid", "micro_batches=4"],
        ["--micro-batches", "2", "--grid", "global_batch=8"],
    ):
        assert main([*common, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_search_keeps_to_the_number(capsys):
    arguments = ["search", MODEL, *TRAIN, "--devices", "2", "--system", "dgx-a100", "--json"]
    assert main(arguments) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert plans and {plan["micro_batches"] for plan in plans} == {4}


def test_another_number_in_the_strategy_is_refused():
    study = Study(
        td.zoo.gpt(size="tiny", batch=4), strategy=BY_HAND, mesh={"dp": 2}, train={},
        micro_batches=2,
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"DIST0151 micro_batches: 2 .* the strategy has 4"):
        _ = study.step_plan


def test_it_needs_a_training_step(capsys):
    arguments = ["analyze", MODEL, *PLANNED, "--micro-batches", "4", "--system", "dgx-a100"]
    assert main(arguments) == 2
    assert "--micro-batches needs --train" in capsys.readouterr().err
