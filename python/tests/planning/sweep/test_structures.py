# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rows predicted from structures are those of the whole pipeline, to the picosecond."""

from __future__ import annotations

import dataclasses
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend import nn

import tvm_distir as td
from tests.references import KERNELS, using
from tvm_distir.models.zoo.layers import FeedForward
from tvm_distir.performance.program.size_formulas import FormulaFit, evaluate
from tvm_distir.performance.simulation.op_costs import OpCosts
from tvm_distir.performance.simulation.pipeline.rank_arrays import StageSteps
from tvm_distir.performance.simulation.pipeline.rank_classes import RankClasses
from tvm_distir.planning import study
from tvm_distir.planning.sweep import pipeline, sweep_run
from tvm_distir.planning.sweep.cache import kept_program
from tvm_distir.planning.sweep.configuration import Configuration
from tvm_distir.planning.sweep.partition import FEW
from tvm_distir.planning.sweep.pipeline import ProgramPipeline
from tvm_distir.support.errors.tree import SimulationError

MODEL = "zoo:gpt?size=tiny,heads=4,seq=8,dropout=0.1,fused_qkv=1,dtype=float16"
SYSTEM = "dgx-a100-megatron"
TRAIN = {"optimizer": "adamw", "master": True}
GRID = {
    "tp": [2], "pp": [2], "dp": [1], "recompute": ["full"],
    "hidden": [128, 192, 256, 320], "vocab": [512, 768, 1024], "micro_batches": [2, 4, 6],
}  # fmt: skip


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Record the calls that a module makes of a function."""
    calls, function = list[Any](), getattr(module, name)

    def recorded(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, recorded)
    return calls


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def swept(cache: Path) -> Any:
    """A sweep by structures."""
    return td.sweep(MODEL, GRID, SYSTEM, train=TRAIN, cache=cache)


def test_equal_to_the_whole_pipeline(swept: Any) -> None:
    rows = swept.to_dicts()
    assert {row["way"] for row in rows} == {"structure"}
    assert [each.equal for each in swept.checked] == [True]
    every = slice(0, len(rows), 7)  # each value of each size
    matches = {name: {str(row[name]) for row in rows[every]} for name in GRID}
    assert all(len(values) == len(GRID[name]) for name, values in matches.items())
    some = {name: [row[name] for row in rows[every]] for name in GRID}
    for number, row in enumerate(rows[every]):
        grid = {name: [values[number]] for name, values in some.items()}
        (whole,) = td.sweep(MODEL, grid, SYSTEM, train=TRAIN, structures=False).to_dicts()
        assert {**whole, "way": "structure"} == row


def test_alignment_of_logits_tells_structures_apart(cache: Path) -> None:
    """Products with unaligned logits have an efficiency of their own."""
    grid = GRID | {"vocab": [512, 768, 1024, 760, 1000, 1016], "micro_batches": [2, 4]}
    rows = td.sweep(MODEL, grid, SYSTEM, train=TRAIN, cache=cache).to_dicts()
    assert {row["way"] for row in rows} == {"structure"}
    for row in rows[1::13]:
        single = {name: [row[name]] for name in GRID}
        (whole,) = td.sweep(MODEL, single, SYSTEM, train=TRAIN, structures=False).to_dicts()
        assert {**whole, "way": "structure"} == row


def test_bursts_of_products_count_in_structures(cache: Path) -> None:
    """A system whose products run at the peak at first, without the host that hides them."""
    known = td.System.load("dgx-b200-megatron")
    quick = {"python_launch_us": 1e-3, "unit_overhead_us": 1.0}
    constants = {
        name: dataclasses.replace(single, value=quick.get(name, single.value))
        for name, single in known.constants.items()
    }
    system = dataclasses.replace(known, constants=constants)
    result = td.sweep(MODEL, GRID, system, train=TRAIN, cache=cache)
    assert [each.equal for each in result.checked] == [True]


def test_samples_are_kept_on_disk(swept: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sweep takes no sample through the pipeline again."""
    monkeypatch.setattr(
        sweep_run.ProgramPipeline, "study", lambda *_: pytest.fail("predicted again")
    )
    monkeypatch.setattr(sweep_run, "CHECKED", 10**9)
    monkeypatch.setattr(sweep_run.SweepRun, "_checked", lambda *_: [])
    again = td.sweep(MODEL, GRID, SYSTEM, train=TRAIN, cache=cache)
    assert again.rows == swept.rows


def test_a_single_micro_batch_is_a_structure_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step accumulates nothing; the steps that do have a common structure all the same."""
    made = counted(monkeypatch, pipeline, "kept_program")
    grid = {"tp": [1, 2], "pp": [1, 2], "micro_batches": [1, 2, 3, 4, 6, 8]}
    result = td.sweep(MODEL, grid, SYSTEM, train=TRAIN, cache=tmp_path)
    ways = [row["way"] for row in result.to_dicts()]
    assert ways == 4 * ["row", *5 * ["structure"]]
    assert [each.equal for each in result.checked] == [True]
    assert len(made) == 4 * (1 + FEW)  # the row that is checked is a sample, which is kept


def test_rows_that_differ_in_their_plans_share_models_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = counted(monkeypatch, study, "train_step")
    grid = {"tp": [1, 2, 4], "dp": [2], "zero": [0, 1], "pp": [2]}
    rows = td.sweep(MODEL, grid, SYSTEM, train=TRAIN, cache=tmp_path).to_dicts()
    assert {row["status"] for row in rows} == {"ok"} and len(rows) == 6
    assert len(steps) == 1
    for row in rows[1::3]:
        single = {name: [row[name]] for name in grid}
        (separate,) = td.sweep(MODEL, single, SYSTEM, train=TRAIN, cache=tmp_path / "x").to_dicts()
        assert separate == row


def test_the_models_of_rows_are_kept_for_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "RECENT", 2)
    rows = ProgramPipeline(MODEL, td.System.load(SYSTEM), TRAIN)
    batches = (1, 2, 1, 3, 1, 2)
    mains = [rows.forward(Configuration(micro_batch=n))["main"] for n in batches]
    assert mains[0].same_as(mains[2]) and mains[0].same_as(mains[4])
    assert not mains[1].same_as(mains[5])
    assert pickle.loads(pickle.dumps(rows)) == rows


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", gzip.compress(b'{"schema', mtime=0), "cut short"],
    ids=["empty", "not compressed", "compressed text that ends early", "cut short"],
)
def test_a_broken_cache_is_made_again(tmp_path: Path, content: bytes | str) -> None:
    program = ProgramPipeline(MODEL, td.System.load(SYSTEM), {}).study(Configuration(pp=2)).program
    assert kept_program("what", lambda: program, tmp_path) == program
    (file,) = tmp_path.rglob("*.json.gz")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if isinstance(content, str) else content)
    with pytest.warns(UserWarning) as caught:
        assert kept_program("what", lambda: program, tmp_path) == program
    assert len(caught) == 1 and str(file) in str(caught[0].message)
    assert kept_program("what", lambda: pytest.fail("predicted again"), tmp_path) == program


def test_a_program_is_used_that_cannot_be_kept(tmp_path: Path) -> None:
    program = ProgramPipeline(MODEL, td.System.load(SYSTEM), {}).study(Configuration(pp=2)).program
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"the cache file .*file.*cannot be written") as caught:
        assert kept_program("what", lambda: program, tmp_path / "file") == program
    assert len(caught) == 1


def test_follows_the_zoo(swept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another op in the model's layer is another prediction, that of the whole pipeline."""
    plain = FeedForward.forward

    def changed(self: Any, x: Any) -> Any:
        return plain(self, nn.op.relu(x))

    monkeypatch.setattr(FeedForward, "forward", changed)
    result = td.sweep(MODEL, GRID, SYSTEM, train=TRAIN, cache=tmp_path)
    before = {tuple(row[: result.header.index("time_s")]): row for row in swept.rows}
    at = result.header.index("time_s")
    for row in result.rows:
        assert row[at] > before[tuple(row[:at])][at]
    assert [each.equal for each in result.checked] == [True]


def test_a_wrong_prediction_is_an_error(
    swept: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep_run.through_pipeline

    def slower(*inputs: Any) -> Any:
        result = whole(*inputs)
        return type(result)(
            result.status, result.way, result.time_s * 1.1, result.peak_bytes, "host"
        )

    monkeypatch.setattr(sweep_run, "through_pipeline", slower)
    with pytest.raises(SimulationError, match="DIST0753"):
        td.sweep(MODEL, GRID, SYSTEM, train=TRAIN, cache=cache)


def test_many_durations_at_once() -> None:
    """The native sweep over durations ends when the plain one does, and when single runs do."""
    row = Configuration(pp=2, micro_batches=3)
    program = ProgramPipeline(MODEL, td.System.load(SYSTEM), {}).study(row).program
    staged, system = program.staged, td.System.load(SYSTEM)
    assert staged is not None
    ends = []
    for kernels in KERNELS:
        with using(kernels):
            kinds = RankClasses(program, staged, system, True)
        units = StageSteps(staged, kinds, OpCosts(program, system)).units
        lowering = kinds.lowering
        steps = [step.row for fn in lowering.functions if fn.number >= 0 for step in fn.steps]
        known = np.array([each.duration_ps for each in lowering.rows], np.int64)
        duration = np.stack((known, 3 * known // 2, known * 0), axis=1)
        sent = np.stack((units.edges[:, 1], units.edges[:, 1] * 2, units.edges[:, 1]), axis=1)
        ends.append(kinds.maps.sweep(np.array(steps, np.int64), duration, sent, units).tolist())
    assert ends[0] == ends[1]
    assert ends[0][0] / 1e12 == td.simulate(program, SYSTEM, kernels="eager", blocking=True).time_s


def test_formulas_are_exact() -> None:
    """Sums of monomials are found from samples, and say where they are not whole."""
    sizes = [(2, 3), (4, 3), (2, 9), (8, 27), (6, 12), (10, 15), (14, 6)]
    fit = FormulaFit(sizes)
    monomial = fit.monomial([5 * a * a * b // 2 for a, b in sizes])
    total = fit.total([3 * a * b + 7 * b for a, b in sizes], [(1, 1), (0, 1), (1, 0)])
    assert monomial is not None
    assert total is not None
    assert fit.monomial([a + b for a, b in sizes]) is None
    assert fit.total([a**b % 97 + 1 for a, b in sizes], [(1, 1), (0, 1), (1, 0)]) is None
    values, whole = evaluate([monomial, total], np.array([[20, 3], [30, 1]], np.int64))
    assert values.tolist()[0][0] == 5 * 20 * 20 * 30 // 2
    assert values.tolist()[1] == [3 * 20 * 30 + 7 * 30, 3 * 3 * 1 + 7]
    assert whole.tolist() == [True, False]
