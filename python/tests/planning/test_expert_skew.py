# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Uneven loads of experts: rows of the most loaded device, counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main
from tvm_distir.support import ModelError, UsageError

MODEL = "hf:mixtral-8x7b?seq=1024,layers=1"
SAMPLES, TOKENS, CHOSEN, HIDDEN, WIDTH, DEVICES = 8, 1024, 2, 4096, 14336, 4
STEP = [MODEL, "--batch", str(SAMPLES), "--strategy", "expert_parallel", "--mesh", f"ep={DEVICES}"]
ROWS = SAMPLES * TOKENS * CHOSEN // DEVICES
"""Rows of the experts of a device at a balanced load."""


def analyzed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    words = ("analyze", *STEP, "--system", "h100", "--advice", "bounds", "--json", *words)
    assert main([*words]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def check(result: dict[str, Any], factor: float) -> None:
    """Compare products of experts and all-to-alls with the rows of the most loaded device."""
    products = [op for op in result["ops"] if op["op"].startswith("matmul")]
    flops = {op["module"]: op["flops"] for op in products}
    for name in ("gate_proj", "up_proj", "down_proj"):
        (found,) = (flops[module] for module in flops if module.endswith(f"mlp.{name}"))
        assert found == 2 * factor * ROWS * HIDDEN * WIDTH
    (sent,) = result["collectives"]
    assert (sent["kind"], sent["count"]) == ("all_to_all", 2)
    moved = 2 * factor * ROWS * HIDDEN * 2  # there and back, two bytes each
    assert sent["bytes_per_device"] == moved
    assert sent["wire_bytes_per_device"] == moved * (DEVICES - 1) / DEVICES


@pytest.mark.parametrize(
    ("skew", "factor"),
    [
        ("1.5", 1.5),
        ("2,0,1,1,1,1,1,1", 1.0),  # the device of the first two experts has as many as others
        ("5,3,2,2,1,1,1,1", 2.0),
        ("3,1,1,3", 1.5),  # a load of each device
    ],
)
def test_the_most_loaded_device_determines_the_step(
    skew: str, factor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    even, uneven = analyzed(capsys), analyzed(capsys, "--expert-skew", skew)
    check(even, 1.0)
    check(uneven, factor)
    assert uneven["flops"] == even["flops"]  # those of the model, of which MFU is a share
    assert uneven["model"] == MODEL
    ratio = even["time_s"] / uneven["time_s"]
    assert uneven["throughput"]["mfu"] == pytest.approx(even["throughput"]["mfu"] * ratio)
    assert (ratio < 0.9) == (factor > 1)


def test_python_takes_the_same_words() -> None:
    results = [
        td.analyze(
            MODEL, batch=SAMPLES, strategy="expert_parallel", mesh={"ep": 4}, system="h100",
            expert_skew=skew,
        )
        for skew in (2.0, [5, 3, 2, 2, 1, 1, 1, 1])
    ]  # fmt: skip
    assert results[0].time_s == results[1].time_s
    check(results[0].to_dict(), 2.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--expert-skew", "0.5"], "DIST0152 --expert-skew: the most loaded of 4 devices"),
        (["--expert-skew", "5"], "DIST0152 --expert-skew: the most loaded of 4 devices"),
        (["--expert-skew", "1,2,3"], "DIST0152 --expert-skew: 3 loads do not divide"),
        (["--expert-skew", "1,-1,3,1"], "DIST0152 --expert-skew: loads are not negative"),
        (["--expert-skew", "most"], "DIST0152 --expert-skew: "),
        (["--expert-skew", "2", "--strategy", "data_parallel", "--mesh", "dp=4"], "DIST0151"),
    ],
)
def test_wrong_loads_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *STEP, "--system", "h100", *words]) == 2
    assert message in capsys.readouterr().err


def test_modules_and_files_have_fixed_sizes() -> None:
    options: dict[str, Any] = {"strategy": "expert_parallel", "mesh": {"ep": 2}, "system": "h100"}
    with pytest.raises(UsageError, match="DIST0151 expert_skew"):
        td.analyze(td.zoo.moe(size="tiny"), expert_skew=1.5, **options)
    with pytest.raises(ModelError, match="DIST0313 capacity_factor"):
        td.analyze("model.onnx", expert_skew=1.5, **options)
