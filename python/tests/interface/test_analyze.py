# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``td.analyze`` gives what the command gives, and what its stages give one by one."""

from __future__ import annotations

import doctest
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tests.interface.command.cli_inputs import write_inputs
from tests.plain_systems import PLAIN_A100
from tvm_distir.interface.command import main
from tvm_distir.planning import study as study_module
from tvm_distir.planning.study import Study
from tvm_distir.support.errors.tree import DistIRError, ModelError, PlanError, UsageError
from tvm_distir.support.stopwatch import Stopwatch

GPT = "zoo:gpt?size=tiny,layers=2,hidden=32,heads=2,vocab=64,seq=16,batch=8,positions=16"
SYSTEM = PLAIN_A100


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models and plans."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(autouse=True)
def _inside(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(inputs)
    yield


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("mlp.py", {"plan": "plan.json"}, "--plan plan.json"),
    (
        "mlp.onnx",
        {"strategy": "data_parallel", "mesh": {"dp": 2}, "batch": 16},
        "--strategy data_parallel --mesh dp=2 --batch 16",
    ),
    (
        GPT,
        {
            "strategy": "data_parallel+megatron",
            "mesh": {"dp": 2, "tp": 2},
            "train": {"optimizer": "adam"},
            "recompute": "full",
            "bucket_bytes": 1000,
            "kernels": "megatron",
        },
        "--strategy data_parallel+megatron --mesh dp=2,tp=2 --train --optimizer adam "
        "--recompute full --bucket-bytes 1000 --kernels megatron",
    ),
    (
        GPT,
        {"strategy": "pipeline:micro_batches=4", "mesh": {"pp": 2}, "train": True},
        "--strategy pipeline:micro_batches=4 --mesh pp=2 --train",
    ),
    (
        GPT,
        {"strategy": "megatron", "mesh": {"tp": 2}, "allocator": "tvm"},
        "--strategy megatron --mesh tp=2 --allocator tvm",
    ),
    (
        GPT.replace("seq=16,", ""),
        {"strategy": "megatron", "mesh": {"tp": 2}, "seq": 8, "price": 2.5, "advice": "quick"},
        "--strategy megatron --mesh tp=2 --seq 8 --price 2.5",
    ),
]


@pytest.mark.parametrize(("model", "keywords", "options"), CASES)
def test_the_command_gives_the_same(
    model: str, keywords: dict[str, Any], options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All figures are equal, to the picosecond and the byte; only wall-clock times differ."""
    command = ["analyze", model, *shlex.split(options), "--system", SYSTEM]
    command += ["--advice", keywords.get("advice", "bounds")]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = td.analyze(model, system=SYSTEM, **keywords)
    returned = json.loads(result.to_json())
    assert list(returned.pop("timings_s")) == list(printed.pop("timings_s"))
    assert returned == printed
    assert result.time_s == printed["time_s"]
    assert result.peak_memory_bytes == printed["peak_memory_bytes"]
    assert result.summary == str(result)[: len(result.summary)]


@pytest.mark.parametrize("train", [False, True])
def test_the_stages_give_the_same_one_by_one(train: bool) -> None:
    model = td.load_model(GPT).mod
    mesh = {"dp": 2, "tp": 2}
    result = td.analyze(
        model, strategy="data_parallel+megatron", mesh=mesh, system=SYSTEM, train=train
    )
    step = td.train_step(model) if train else model
    plan = td.planning.make_plan(step, "data_parallel+megatron", mesh, SYSTEM)
    program = td.export(td.distribute(step, plan, system=SYSTEM))
    simulated = td.simulate(program, SYSTEM)
    assert result.plan == plan
    assert result.program.to_json() == program.to_json()
    assert result.time_s == simulated.time_s
    assert result.peak_memory_bytes == simulated.peak_memory_bytes
    assert [d.to_dict() for d in result.simulation.devices] == [
        d.to_dict() for d in simulated.devices
    ]


def test_a_module_without_meshes_is_analyzed_on_one_device() -> None:
    """A module, and a loaded model, need no plan, as names of models do not."""
    model = td.load_model(GPT)
    expected = td.analyze(GPT, system=SYSTEM)
    assert len(expected.simulation.devices) == 1
    for given in (model, model.mod):
        assert td.analyze(given, system=SYSTEM).time_s == expected.time_s


@pytest.mark.parametrize(
    ("model", "keywords", "error", "words"),
    [
        (
            "mlp.py",
            {"plan": "plan.json", "strategy": "data_parallel", "mesh": {"dp": 2}},
            UsageError,
            "DIST0151 analyze: a plan and a strategy",
        ),
        ("mlp.py", {"strategy": "data_parallel"}, UsageError, "DIST0151.*needs a mesh"),
        ("mlp.py", {"plan": "plan.json", "mesh": {"dp": 4}}, UsageError, "DIST0151 mesh"),
        ("mlp.py", {}, PlanError, "DIST0238"),
        (
            GPT,
            {"strategy": "pipeline:micro_batches=4", "mesh": {"pp": 2}},
            UsageError,
            "DIST0151 train",
        ),
        (
            GPT,
            {"strategy": "pipeline:micro_batches=3", "mesh": {"pp": 2}, "train": True},
            UsageError,
            "DIST0152 batch: the batch 8 is not a multiple of the 3",
        ),
        ("mlp.py", {"plan": "plan.json", "seq": 8}, ModelError, "DIST0313 seq"),
        (GPT, {"advice": "all"}, UsageError, "DIST0152 advice"),
        (GPT, {"price": "free"}, UsageError, "DIST0152 price"),
    ],
)
def test_arguments_that_contradict_each_other(
    model: str, keywords: dict[str, Any], error: type[DistIRError], words: str
) -> None:
    with pytest.raises(error, match=words):
        td.analyze(model, system=SYSTEM, **keywords)


def test_a_module_has_its_sizes() -> None:
    model = td.from_tvmscript("mlp.py")
    with pytest.raises(UsageError, match="DIST0151 batch"):
        td.analyze(model, "plan.json", system=SYSTEM, batch=4)


def test_stages_run_when_they_are_read_and_once() -> None:
    stages: list[str] = []
    study = Study("mlp.py", "plan.json", watch=Stopwatch(stages.append))
    assert study.program is study.program
    assert {"load", "annotate", "lower", "export"} <= set(stages) and "simulate" not in stages
    assert stages.count("lower") == stages.count("export") == 1
    with pytest.raises(UsageError, match="DIST0155 system"):
        _ = study.result


def test_a_missing_system_is_said_before_the_step_is_distributed() -> None:
    with pytest.raises(UsageError, match="DIST0155 system"):
        td.analyze("missing.onnx", strategy="data_parallel", mesh={"dp": 2})


def test_a_step_that_is_fitted_to_a_memory_is_distributed_once_per_attempt() -> None:
    """Megatron without sequence parallelism holds more than the first choice expects."""
    model = "zoo:gpt?size=tiny,layers=2,batch=4,seq=64"
    keywords: dict[str, Any] = {
        "strategy": "pipeline:micro_batches=1+megatron",
        "mesh": {"pp": 2, "tp": 2},
        "train": {"optimizer": "adam"},
    }
    peaks = [
        td.analyze(model, system=SYSTEM, recompute=policy, **keywords).peak_memory_bytes
        for policy in ("none", "full")
    ]
    bound = sum(peaks) // 2
    stages: list[str] = []
    auto = f"auto:memory_gib={bound / 2**30!r},activations=2,weights=2"
    study = Study(model, system=SYSTEM, recompute=auto, watch=Stopwatch(stages.append), **keywords)
    assert peaks[1] <= study.result.peak_memory_bytes <= bound
    assert stages.count("train") >= stages.count("lower") == stages.count("export") >= 1
    local = td.distribute(study.step, study.step_plan, system=SYSTEM)
    assert td.export(local).to_json() == study.program.to_json()


def test_a_fit_measures_the_step_that_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def recorded(program: Any, system: Any, **options: Any) -> Any:
        given.append(options)
        return td.simulate(program, system, **options)

    monkeypatch.setattr(study_module, "simulate", recorded)
    result = Study(
        "zoo:gpt?size=tiny,layers=2,batch=4,seq=64", strategy="zero:stage=1", mesh={"dp": 2},
        train={"optimizer": "adam"}, system=SYSTEM, recompute="auto:memory_gib=1",
        overlap_optimizer=True, allocator="pytorch",
    ).result  # fmt: skip
    assert result.peak_memory_bytes > 0
    assert len(given) >= 2, "the fit, and the step"
    assert all(options == given[-1] for options in given)
    assert given[-1]["overlap_optimizer"] is True


def test_the_example_of_the_docstring() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(td.analyze, "analyze", globs={})
    assert len(example.examples) == 5
    doctest.DebugRunner().run(example)
