# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Error bands hold nine of ten further steps, and say what was not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.planning import ErrorBand, StepKind, band_of, bits_of, program_family
from tvm_distir.planning.error_band import COVERAGE, LEAST_ROWS, half_width, measured_groups
from tvm_distir.planning.search.bands import band_line

pytestmark = pytest.mark.quick
GROUP = measured_groups()[0]
KNOWN = StepKind(GROUP.software, GROUP.device, GROUP.family, GROUP.bits)
MODEL = "zoo:llama3?size=tiny,seq=64,dtype=bfloat16"


def test_nine_of_ten_further_ratios_are_inside() -> None:
    """Of exchangeable ratios, on average over many groups of each size."""
    rng = np.random.default_rng(0)
    for count in (LEAST_ROWS, 19, 40):
        drawn = np.exp(rng.normal(0.1, 0.2, (2000, count + 1)))
        inside = [abs(np.log(r[-1])) <= np.log(half_width(r[:-1].tolist())) for r in drawn]
        assert COVERAGE - 0.02 < np.mean(inside) < COVERAGE + 0.1


def test_rows_left_out_are_inside_of_the_band_of_the_others() -> None:
    """Those that ship, software by software, as issue 52 demands."""
    by_software: dict[str, list[float]] = {}
    for group in measured_groups():
        by_software.setdefault(group.software, []).extend(group.ratios)
    for software, ratios in by_software.items():
        if len(ratios) >= LEAST_ROWS:
            inside = [
                abs(np.log(ratio)) <= np.log(half_width(ratios[:n] + ratios[n + 1 :])) + 1e-12
                for n, ratio in enumerate(ratios)
            ]
            assert 0.8 <= np.mean(inside) <= 1.0, software


def test_a_narrow_group_widens_until_it_has_enough_rows() -> None:
    for kind in (KNOWN, replace(KNOWN, family="pipeline"), replace(KNOWN, bits=4)):
        band = band_of(kind)
        assert band.rows >= LEAST_ROWS and band.factor > 1.0
    low, high = band_of(KNOWN).around(2.0)
    assert low * high == pytest.approx(4.0) and low < 2.0 < high


def test_groups_of_any_software_have_each_measured_step_once() -> None:
    """The file has each twice, as it is predicted without a stack, and with its stack."""
    ratios = sum(len(group.ratios) for group in measured_groups())
    assert 2 * band_of(StepKind("torch-fsdp", "RTX", "data", 4)).rows == ratios
    band = band_of(StepKind("torch-fsdp", "H100-SXM5-80GB", "sharded weights", 16))
    assert (band.group, band.rows) == ("H100-SXM5-80GB, 16 bits", 10)


@pytest.mark.parametrize(
    ("changes", "trained", "absent"),
    [
        ({}, True, ()),
        ({}, False, ("steps without training",)),
        ({"software": "torch-eager"}, True, ("torch-eager",)),
        ({"device": "RTX"}, True, ("RTX",)),
        ({"bits": 4}, True, ("products of 4 bits",)),
    ],
)
def test_what_was_not_measured_is_said(
    changes: dict[str, Any], trained: bool, absent: tuple[str, ...]
) -> None:
    assert band_of(replace(KNOWN, **changes), trained).absent == absent


def test_types_have_their_bits() -> None:
    names = ("float32", "bfloat16", "float8_tensor", "float8_e4m3fn", "mxfp8", "nvfp4")
    assert [bits_of(name) for name in names] == [32, 16, 8, 8, 8, 4]


@pytest.mark.parametrize(
    ("strategy", "mesh", "family"),
    [
        ("data_parallel", {"dp": 4}, "data"),
        ("zero:stage=1", {"dp": 4}, "data"),
        ("fsdp", {"dp": 4}, "sharded weights"),
        ("data_parallel+megatron", {"dp": 2, "tp": 2}, "tensor parallelism"),
    ],
)
def test_plans_have_their_family(strategy: str, mesh: dict[str, int], family: str) -> None:
    result = td.analyze(MODEL, strategy=strategy, mesh=mesh, system="h100", batch=8, train=True)
    assert program_family(result.program) == family


def test_every_answer_has_the_band() -> None:
    """Text, JSON and page; ``compare`` names the steps that are level."""
    results = [
        td.analyze(MODEL, strategy=name, mesh={"dp": 4}, system="h100", batch=8, train=True)
        for name in ("fsdp", "zero:stage=1")
    ]
    data = [json.loads(result.to_json()) for result in results]
    for result, each in zip(results, data, strict=True):
        band = each["band"]
        assert band["low_s"] < result.time_s < band["high_s"] and band["rows"] >= LEAST_ROWS
        assert "Error band: " in result.summary and "Error band: " in result.to_html()
        assert 0.0 < each["basis"]["assumed_share"] <= 1.0
    compared = td.compare(*results, names=["a", "b"])
    overlap = data[0]["band"]["low_s"] <= data[1]["band"]["high_s"]
    overlap &= data[1]["band"]["low_s"] <= data[0]["band"]["high_s"]
    assert compared.level == (("a", "b") if overlap else ())
    assert "error band" in compared.to_text()


def test_a_search_says_which_plans_are_level() -> None:
    result = td.search(MODEL, 4, "h100", batch=8, train={"optimizer": "adamw"}, top=3)
    bands = [band for plan in result.plans if (band := result.band(plan.row)) is not None]
    assert len(bands) == len(result.plans)
    ends = [b.around(p.time_s) for b, p in zip(bands, result.plans, strict=True)]
    within = [low_s <= ends[0][1] for low_s, _ in ends]
    assert result.level == sum(within) and "error band of the fastest" in result.to_text()


def test_names_of_files_cannot_control_a_terminal() -> None:
    band = ErrorBand(1.1, "a\x1b[2J", 10, ("b\x1b[2J",))
    assert "\x1b" not in band_line(band, 1.0, 1, 1)
