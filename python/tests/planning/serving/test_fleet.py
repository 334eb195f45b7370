# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The fewest devices that serve a rate: against analyses of each number, and as a command."""

from __future__ import annotations

import json
import re

import pytest

from tests.planning.serving.test_serving_surface import SYSTEM, fitted_once
from tvm_distir.hardware import System
from tvm_distir.interface.command.__main__ import main
from tvm_distir.planning.serving.fleet import search_fleet
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.serving_report import serve_analyze
from tvm_distir.support.errors.tree import SimulationError

MODEL = "zoo:llama3?size=tiny"
SCHEDULERS = ("continuous:tokens=128", "prefill_first:tokens=512")
LENGTHS = "in=64,out=uniform:2-16,seed=3"


@pytest.fixture(scope="module", autouse=True)
def known_engines():
    with fitted_once():
        yield


@pytest.fixture(scope="module")
def rate():
    """Twice what a device can serve."""
    work = f"poisson:1,{LENGTHS},count=200"
    return 2 * serve_analyze(MODEL, "megatron", {"tp": 1}, SYSTEM, work).summary.capacity_per_s


@pytest.mark.parametrize("levels", [ServiceLevels(0.004, 0.0008), ServiceLevels(tpot_s=0.001)])
def test_a_replica_fewer_breaks_a_level(rate, levels):
    """The fewest of each plan keep the levels by their analysis, and one fewer does not."""
    work = f"poisson:{rate},{LENGTHS}"
    result = search_fleet(MODEL, [SYSTEM], work, levels, devices=2, schedulers=SCHEDULERS)
    assert {choice.plan.rpartition(" x ")[0] for choice in result.choices} == {
        "megatron tp=1", "megatron tp=2",
    }  # fmt: skip
    for choice in result.choices:
        plan, _, count = choice.plan.rpartition(" x ")
        kept = {}
        for scheduler in SCHEDULERS:
            for replicas in (int(count) - 1, int(count)):
                report = serve_analyze(
                    MODEL, "megatron", {"tp": int(plan[-1])}, SYSTEM, work, levels=levels,
                    replicas=replicas, scheduler=scheduler,
                )  # fmt: skip
                kept[report.scheduler, replicas] = not report.broken and (
                    not report.summary.overloaded
                )
        assert kept.pop((choice.scheduler, int(count)))
        assert not any(keeps for (_, replicas), keeps in kept.items() if replicas < int(count))
    assert len(result.choices) + len(result.cuts) == 4


def test_devices_apart_are_as_few_as_keep_the_levels(rate):
    levels = ServiceLevels(0.004, 0.0007)
    result = search_fleet(
        MODEL, [SYSTEM], f"poisson:{rate},{LENGTHS}", levels, devices=1,
        schedulers=SCHEDULERS[:1], disaggregated=True,
    )  # fmt: skip
    (apart,) = [c for c in result.choices if c.plan.startswith("prefill")]
    fillers, decoders = map(int, re.findall(r" x (\d+)", apart.plan))
    for fewer, keeps in (((0, 0), True), ((1, 0), False), ((0, 1), False)):
        report = serve_analyze(
            MODEL, "megatron", {"tp": 1}, SYSTEM, f"poisson:{rate},{LENGTHS}", levels=levels,
            scheduler=SCHEDULERS[0], replicas=decoders - fewer[1], prefill_mesh={"tp": 1},
            prefill_replicas=fillers - fewer[0],
        )  # fmt: skip
        assert (not report.broken and not report.summary.overloaded) == keeps


def test_the_cheapest_is_the_answer_where_all_have_a_price(rate):
    work, levels = f"poisson:{rate},{LENGTHS},count=400", ServiceLevels(tpot_s=0.01)
    cheap, dear = (System.load(SYSTEM).priced(price) for price in (1.0, 4.0))
    options = {"devices": 1, "schedulers": SCHEDULERS[:1]}
    result = search_fleet(MODEL, [dear, cheap], work, levels, **options)
    first, last = result.choices
    assert first.usd_per_hour == pytest.approx(first.devices * 1.0)
    assert last.usd_per_hour == pytest.approx(4 * first.usd_per_hour)
    assert f"({first.usd_per_hour:.2f} $ an hour)" in result.verdict
    assert result.text().startswith(result.verdict)
    never = search_fleet(MODEL, [cheap], work, ServiceLevels(tpot_s=1e-6), **options)
    assert never.verdict.startswith("No choice keeps TPOT p90 <= 0.001 ms")
    assert not never.choices and "TPOT of one user" in never.cuts[0].why


def test_a_workload_without_a_rate_is_refused():
    with pytest.raises(SimulationError, match=r"DIST0761 workload.*rate"):
        search_fleet(MODEL, [SYSTEM], "closed:3,in=9,out=4", ServiceLevels(), rate_per_s=9.0)


def test_the_command(capsys, rate):
    words = ["serve-search", MODEL, "--system", SYSTEM, "--workload", f"poisson:1,{LENGTHS}"]
    more = ["--rate", f"{rate:g}", "--tpot", "1ms", "--percentile", "99", "--devices", "1"]
    assert main([*words, *more, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"].startswith(f"{result['choices'][0]['devices']} devices of")
    assert "TPOT p99 <= 1 ms" in result["verdict"]
    for wrong, text in (
        ([], "--devices is missing"),
        (["--devices", "1", "--system", "h100"], "several systems"),
        ([*more, "--picture", "a.svg"], "has no front"),
        ([*more, "--system", "h100", "--price", "2"], "each system has a price"),
    ):
        assert main([*words, *wrong]) == 2
        assert text in capsys.readouterr().err
    assert main([*words, "--rate", "-1"]) == 2
    assert main([*words, *more[:4], "--percentile", "95"]) == 1
    assert "DIST0761 percentile" in capsys.readouterr().err
