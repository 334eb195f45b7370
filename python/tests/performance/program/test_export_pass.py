# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The export as a pass of TVM: in a ``Sequential``, of a file, and by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tvm_distir.performance import ExportProgram
from tvm_distir.support import DistIRError
from tvm_distir.transforms import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    PropagateSharding,
    parse_passes,
)

MODEL = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
PLAN = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})


def test_the_chain_from_a_plan_to_a_program_is_passes_of_tvm() -> None:
    programs: list[td.Program] = []
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Names:
        def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
            seen.append(str(info.name))

    chain = tvm.transform.Sequential([
        relax.transform.DeadCodeElimination(), AnnotateSharding(PLAN), PropagateSharding(),
        LegalizeRedistribute(), LowerDistIR(), ExportProgram(programs.append),
        relax.transform.LegalizeOps(),
    ])  # fmt: skip
    with tvm.transform.PassContext(instruments=[Names()]):
        chain(MODEL)
    assert "tvm_distir.ExportProgram" in seen
    assert [program.to_dict() for program in programs] == [
        td.export(td.distribute(MODEL, PLAN)).to_dict()
    ]


def test_the_module_stays_and_the_file_is_read_back(tmp_path: Path) -> None:
    local, path = td.distribute(MODEL, PLAN), tmp_path / "program.json"
    (spec,) = parse_passes(f'export{{output="{path}"}}')
    assert spec.make()(local).same_as(local)
    assert td.Program.load(path).to_dict() == td.export(local).to_dict()


def test_another_level_is_refused() -> None:
    with pytest.raises(DistIRError, match="DIST0714"):
        ExportProgram(print)(MODEL)
