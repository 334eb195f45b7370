# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check stored traces, which needs no torch (scripts/checks/store_traces.py writes them)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tvm
from tvm import ir

import tvm_distir as td
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


def test_traced_ranks_are_simulated() -> None:
    program = td.export(stored(f"{MLP}_right"))
    result = td.simulate(program, td.System.load("h100"), kernels="torch-eager")
    assert result.time_s > 0
    reduced = [op for op in program.functions["main"].ops if op.op.endswith("all_reduce")]
    assert len(reduced) == 6


def test_shapes_that_leave_a_choice_need_a_hint() -> None:
    with pytest.raises(td.support.errors.ModelError, match=r"DIST0366.*hints="):
        td.check(stored(f"{MLP}_right"), stored(f"{MLP}_reference"))


def test_another_module_is_refused() -> None:
    mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    with pytest.raises(td.support.errors.ModelError, match="DIST0365"):
        td.check(mod, stored(f"{MLP}_reference"))


def test_the_command_prints_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(TRACES / f"{MLP}_no_g.json", tmp_path / "programs.json")
    shutil.copy(TRACES / f"{MLP}_reference.json", tmp_path / "reference.json")
    words = ["check", str(tmp_path), "--json"]
    for name, axes in HINTS.items():
        words += ["--hint", name + ":" + ",".join(f"{a}={d}" for a, d in axes.items())]
    assert main(words) == 70
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert report["verdict"] == "wrong"
    assert report["repair"] == "sum mm1 over tp"
    assert output.err.startswith("DIST0692 programs.py:")
    assert main([*words[:2], "--hint", "x"]) == 2
