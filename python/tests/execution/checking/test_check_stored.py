# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check stored traces, which needs no torch (scripts/checks/store_traces.py writes them)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir

import tvm_distir as td
from tvm_distir.execution import distributed_reference
from tvm_distir.execution.checking.checking import drawn_inputs
from tvm_distir.execution.checking.traced_module import TracedModule
from tvm_distir.interface.command.app import main

TRACES = Path(__file__).parent / "traces"
MLP, PIPE = "tensor_and_data_parallel", "1F1B"
HINTS = {"x": {"dp": 0}, "y": {"dp": 0}, "a": {"tp": 1}, "b": {"tp": 0}}


def stored(name: str) -> ir.IRModule:
    return tvm.ir.load_json((TRACES / f"{name}.json").read_text(encoding="utf-8"))


def test_a_right_program_is_equal_with_its_chain() -> None:
    report = td.check(stored(f"{MLP}_right"), stored(f"{MLP}_reference"), hints=HINTS)
    assert report.equal
    assert report.mesh == {"dp": 2, "tp": 2}
    assert report.chain[0] == "all_reduce = dist.all_reduce: mm1 (sharded along dim 0 over dp)"
    assert report.placements is not None and report.placements["a"] == {"tp": 1}


def test_gradients_over_the_wrong_group() -> None:
    report = td.check(stored(f"{MLP}_dp_over_tp"), stored(f"{MLP}_reference"), hints=HINTS)
    assert report.verdict == "wrong"
    assert "partial over dp and replicated over tp: scaled by 2" in report.problem
    assert report.repair == "communicate over dp in all_reduce2, and so at 3 more"
    assert report.op == "dist.all_reduce"
    assert report.line.startswith("programs.py:")


def test_stages_that_exchange_micro_batches() -> None:
    reference = stored(f"{PIPE}_reference")
    assert td.check(stored(f"{PIPE}_right"), reference, micro_batches=(2,)).equal
    report = td.check(stored(f"{PIPE}_deadlock"), reference, micro_batches=(2,))
    assert report.verdict == "deadlock"
    assert "ranks [0] in main_mesh0/recv1" in report.problem


def test_a_gradient_of_two_stages_is_reduced_after_their_messages() -> None:
    reference = stored("tied_embedding_reference")
    assert td.check(stored("tied_embedding_right"), reference).equal
    report = td.check(stored("tied_embedding_not_summed"), reference)
    assert "grad:e is partial over pp" in report.problem
    assert report.repair == "sum grad:e over pp"
    assert report.line.startswith("further_programs.py:")


def test_a_mean_of_different_counts_is_found() -> None:
    report = td.check(stored("masked_mean_local_counts"), stored("masked_mean_reference"))
    assert "partial over dp and reaches div (divide)" in report.problem


def test_traced_ranks_are_simulated() -> None:
    program = td.export(stored(f"{MLP}_right"))
    result = td.simulate(program, td.System.load("h100"), kernels="torch-eager")
    assert result.time_s > 0
    reduced = [op for op in program.functions["main"].ops if op.op.endswith("all_reduce")]
    assert len(reduced) == 6


def test_shapes_that_leave_a_choice_need_a_hint() -> None:
    with pytest.raises(td.support.errors.ModelError, match=r"DIST0366.*hints="):
        td.check(stored(f"{MLP}_right"), stored(f"{MLP}_reference"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"hints": {**HINTS, "X": {"dp": 0}}}, r'DIST0366 input "X": the reference has no input'),
        ({"hints": {**HINTS, "x": {"d": 0}}}, r'DIST0366 input "x": no axis .*dp, tp.* is "d"'),
        ({"hints": HINTS, "inputs": {"X": np.ones(8)}}, r'DIST0366 input "X": the reference has'),
        ({"hints": HINTS, "inputs": {"x": np.ones((4, 16))}}, r"DIST0366 .*\[4, 16\].*\[8, 16\]"),
    ],
)
def test_hints_and_inputs_that_fit_nothing_are_refused(options: Any, match: str) -> None:
    with pytest.raises(td.support.errors.ModelError, match=match):
        td.check(stored(f"{MLP}_right"), stored(f"{MLP}_reference"), **options)


def test_an_output_that_is_not_compared_is_refused() -> None:
    reference = stored(f"{MLP}_reference")
    names = {**reference.attrs["dist.trace"]}
    outputs = [*map(str, names["outputs"])]
    outputs[outputs.index("grad:ln")] = "grad:norm"
    renamed = reference.with_attr("dist.trace", {**names, "outputs": outputs})
    with pytest.raises(td.support.errors.ModelError, match='DIST0365 output "grad:ln"'):
        td.check(stored(f"{MLP}_right"), renamed, hints=HINTS)


def test_a_reference_of_several_ranks_is_refused() -> None:
    with pytest.raises(td.support.errors.ModelError, match=r"DIST0365 reference: .* of 4 ranks"):
        td.check(stored(f"{MLP}_reference"), stored(f"{MLP}_right"))


def test_another_module_is_refused() -> None:
    mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    with pytest.raises(td.support.errors.ModelError, match=r"DIST0366 input .head\.bias"):
        td.check(mod, stored(f"{MLP}_reference"))
    with pytest.raises(td.support.errors.ModelError, match=r"DIST0365 td\.check"):
        td.check(tvm.IRModule(), stored(f"{MLP}_reference"))


def test_the_command_prints_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(TRACES / f"{MLP}_no_g.json", tmp_path / "programs.json")
    shutil.copy(TRACES / f"{MLP}_reference.json", tmp_path / "reference.json")
    words = ["check", str(tmp_path), "--json"]
    for name, axes in HINTS.items():
        words += ["--hint", name + ":" + ",".join(f"{a}={d}" for a, d in axes.items())]
    assert main(words) == 1
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert report["verdict"] == "wrong"
    assert report["repair"] == "sum mm1 over tp"
    assert output.err.startswith("DIST0692 programs.py:")
    assert main([*words[:2], "--hint", "x"]) == 2


def _folder(path: Path) -> list[str]:
    """Write a right program to a folder, and return the words that check it by rules."""
    for name, kind in (("programs", "right"), ("reference", "reference")):
        shutil.copy(TRACES / f"{MLP}_{kind}.json", path / f"{name}.json")
    words = ["check", str(path), "--by", "rules"]
    for name, axes in HINTS.items():
        words += ["--hint", name + ":" + ",".join(f"{a}={d}" for a, d in axes.items())]
    return words


def test_the_command_compares_with_a_plan_of_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*_folder(tmp_path), "--system", "h100"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("EQUAL by rules on dp=2, tp=2: 5 outputs for all inputs")
    assert "The ranks take 1.04 times the time of this package's plan and send 3.1" in text
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in report["comparison"]["results"]] == ["this package", "the ranks"]
    assert main([*words[:-1], "h1000"]) == 2
    assert main(["check", str(tmp_path), "--by", "proof"]) == 2


def test_the_plan_of_the_package_computes_the_reference() -> None:
    reference = stored(f"{MLP}_reference")
    report = td.check(stored(f"{MLP}_right"), reference, hints=HINTS, by="rules")
    single = TracedModule(reference)
    inputs = drawn_inputs(single, {}, 0)
    ours = distributed_reference(reference, report)
    results = td.run(ours, [inputs[name].astype("float32") for name in single.codes[0].inputs])
    expected = single.run({0: inputs}).outputs[0]
    for value, want in zip(results, expected.values(), strict=True):
        assert np.allclose(value, want, 1e-4, 1e-5)


def test_hints_of_an_input_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in (("programs", "right"), ("reference", "reference")):
        shutil.copy(TRACES / f"{MLP}_{kind}.json", tmp_path / f"{name}.json")
    hints = ("a:tp=1", "b:tp=0", "x:pp=0", "x:dp=0")
    words = [word for hint in hints for word in ("--hint", hint)]
    assert main(["check", str(tmp_path), *words]) == 1
    assert 'no axis of the mesh (dp, tp) is "pp"' in capsys.readouterr().err
