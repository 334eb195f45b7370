# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rows of sweeps that share a program: each is the program that the row has by itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.performance import Profile, grouped
from tvm_distir.performance.fusion.grouped import _function
from tvm_distir.planning.study import Study
from tvm_distir.planning.sweep.configuration import Configuration
from tvm_distir.planning.sweep.pipeline import ProgramPipeline

MODEL = "zoo:gpt?size=tiny,layers=4"
TRAIN = {"optimizer": "adamw", "clip": 1.0}
GRID: dict[str, Any] = {
    "pp": [2], "dp": [2], "tp": [1, 2], "zero": [0, 1], "micro_batches": [4],
    "schedule": ["1f1b", "gpipe"],
}  # fmt: skip


def _pipeline(cache: Path, system: str = "h100", **more: Any) -> ProgramPipeline:
    return ProgramPipeline(MODEL, td.System.load(system), train=TRAIN, cache=cache, **more)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """The studies whose programs are made."""
    made: list[Study] = []
    program = Study.program

    def counted(study: Study) -> Any:
        made.append(study)
        return program.func(study)

    monkeypatch.setattr(Study, "program", property(counted))
    return made


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("zero", [0, 1])
def test_gpipe_has_the_program_of_its_own_study(tmp_path: Path, zero: int, recompute: str) -> None:
    row = Configuration(
        (), tp=2, pp=2, dp=2, micro_batches=4, zero=zero, schedule="gpipe", recompute=recompute
    )
    pipeline = _pipeline(tmp_path)
    assert pipeline.program(row).to_json() == pipeline.study(row).program.to_json()


def test_kernels_of_equal_functions_are_grouped_once_and_as_by_themselves(tmp_path: Path) -> None:
    """Functions of programs for other numbers of devices are equal; results are those of each."""
    pipeline = _pipeline(tmp_path)
    rows = [Configuration(tp=2, pp=2, dp=dp, micro_batches=4) for dp in (2, 4)]
    programs = [pipeline.program(row) for row in rows]
    profile = Profile.resolve("fused")
    apart = []
    for program in programs:
        _function.cache_clear()
        apart.append(grouped(program, profile).to_json())
    _function.cache_clear()
    assert [grouped(program, profile).to_json() for program in programs] == apart
    known = _function.cache_info()
    assert known.hits > 0.5 * len(programs[1].functions)
    assert apart[0] != apart[1]


def test_rows_that_differ_in_their_order_share_a_program(
    tmp_path: Path, exported: list[Study]
) -> None:
    result = td.sweep(MODEL, GRID, "h100", train=TRAIN, cache=tmp_path)
    assert [row["status"] for row in result.to_dicts()] == ["ok"] * 8
    assert len(exported) == 4


def test_a_sweep_on_another_system_makes_no_program(tmp_path: Path, exported: list[Study]) -> None:
    td.sweep(MODEL, GRID, "h100", train=TRAIN, cache=tmp_path / "one")
    exported.clear()
    again = td.sweep(MODEL, GRID, "a100-40gb", train=TRAIN, cache=tmp_path / "one")
    assert not exported
    fresh = td.sweep(MODEL, GRID, "a100-40gb", train=TRAIN, cache=tmp_path / "two")
    assert again.rows == fresh.rows and exported


@pytest.mark.parametrize("tp", [1, 2])
def test_no_time_of_a_system_is_in_a_shared_program(tmp_path: Path, tp: int) -> None:
    row = Configuration((), tp=tp, pp=2, dp=2, micro_batches=4)
    texts = [_pipeline(tmp_path, name).study(row).program.to_json() for name in ("h100", "l40s")]
    assert texts[0] == texts[1]


def test_rows_that_times_decide_have_programs_by_system(
    tmp_path: Path, exported: list[Study]
) -> None:
    grids: list[dict[str, Any]] = [
        {"decide": "times"},
        {"cuts": "work"},
        {"tensor": "tensor_parallel"},
    ]
    rows = {"pp": [2], "tp": [2], "micro_batches": [4]}
    for (number, options), system in itertools.product(enumerate(grids), ("h100", "l40s")):
        before = len(exported)
        td.sweep(MODEL, rows, system, train=TRAIN, cache=tmp_path / str(number), **options)
        assert len(exported) == before + 1
