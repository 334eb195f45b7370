# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a step is bound by, and a program that does not fit."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.interface.report.collect import analysis_of
from tvm_distir.interface.report.document import to_dict
from tvm_distir.interface.report.model import Analysis
from tvm_distir.interface.report.verdict import check_fits
from tvm_distir.support.errors.tree import InfeasibleError


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    mod = td.zoo.gpt(size="tiny")
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    program = td.export(td.distribute(mod, plan))
    system = td.System.load("dgx-a100")
    return analysis_of(td.simulate(program, system), program, system, model="m", command="c")


def told(analysis: Analysis, **seconds: float) -> Analysis:
    """The analysis with a device that spends its step so."""
    device = analysis.devices[0]
    ops = [
        replace(analysis.ops[0], time_s=seconds.get(kind, 0.0), bound_by=kind)
        for kind in ("compute", "memory", "launch")
    ]
    busy = replace(
        device,
        compute_s=sum(each.time_s for each in ops),
        exposed_comm_s=seconds.get("communication", 0.0),
        idle_s=seconds.get("idle", 0.0),
    )
    return replace(analysis, devices=(busy,), ops=tuple(ops))


@pytest.mark.parametrize("kind", ["compute", "memory", "launch", "communication", "idle"])
def test_the_largest_share_says_it(kind: str, analysis: Analysis) -> None:
    seconds = dict.fromkeys(("compute", "memory", "launch", "communication", "idle"), 1.0)
    result = told(analysis, **{**seconds, kind: 2.0})
    assert result.bound_by == kind and result.bound_share == pytest.approx(2 / 6)
    assert result.spent_s == pytest.approx({**seconds, kind: 2.0})


def test_seventy_per_cent_of_memory_is_not_called_compute(analysis: Analysis) -> None:
    result = told(analysis, compute=3.0, memory=7.0)
    assert (result.bound_by, result.bound_share) == ("memory", pytest.approx(0.7))


def test_json_has_the_times_of_ops_and_collectives(analysis: Analysis) -> None:
    data = to_dict(analysis)
    assert sum(data["spent_s"].values()) == pytest.approx(data["time_s"], rel=1e-6)
    assert {"op", "count", "time_s", "bound_by"} <= set(data["ops"][0])
    assert all("time_s" in each for each in data["collectives"])
    json.dumps(data)


def test_what_does_not_fit_exits_with_3(
    analysis: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    check_fits(analysis)
    with pytest.raises(InfeasibleError, match="DIST0804"):
        check_fits(replace(analysis, peak_memory_bytes=10**15))
    command = "analyze zoo:gpt?size=tiny,hidden=65536,heads=64 --strategy data_parallel --mesh dp=2"
    assert main(shlex.split(f"{command} --system dgx-a100 --json")) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is False and err.startswith("DIST0804 dgx-a100: ")
