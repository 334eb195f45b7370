# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans as they may be given, rules that agree or not, and what else takes plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

import tvm_distir as td
from tvm_distir.core.plan.matching import resolve
from tvm_distir.interface.command import main
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.errors.tree import MeshError, PlanError

TEXT = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        up_weight: R.Tensor((16, 16), "float32"),
        down_weight: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            y = R.matmul(x, up_weight)
            z = R.matmul(y, down_weight)
            R.output(z)
        return z
"""
MESH = """    I.module_attrs({"mesh_axes": [["dp"]], "device_num": 2})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function"""
ANNOTATED = TEXT.replace("    @R.function", MESH).replace(
    "y = R.matmul(x, up_weight)",
    'cut = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")\n'
    "            y = R.matmul(cut, up_weight)",
)
PLAN: dict[str, Any] = {
    "schema_version": 1,
    "mesh": {"dp": 2},
    "rules": [{"param": "x", "placement": "S[0]"}],
}


def plan(*rules: dict[str, Any], **mesh: int) -> td.Plan:
    return td.Plan.from_dict({**PLAN, "mesh": mesh or {"dp": 2, "tp": 2}, "rules": list(rules)})


def test_a_dict_a_path_and_a_plan_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    mod = from_tvmscript(TEXT)
    expected = td.distribute(mod, td.Plan.from_dict(PLAN))
    for inputs in (PLAN, path, str(path)):
        assert tvm_ffi.structural_equal(td.distribute(mod, inputs), expected)
        assert td.verify(mod, inputs).equal


def test_an_annotated_module_needs_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotated = from_tvmscript(ANNOTATED)
    assert "S[0]" in str(td.distribute(annotated)["main"].attrs["dist.io"])
    assert td.verify(annotated).equal
    file = tmp_path / "m.py"
    file.write_text(ANNOTATED)
    assert main(["verify", str(file), "--engine", "virtual"]) == 0
    assert main(["analyze", str(file), "--system", "dgx-a100"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_plain_module_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match="DIST0238"):
        td.distribute(from_tvmscript(TEXT))
    file = tmp_path / "m.py"
    file.write_text(TEXT)
    assert main(["verify", str(file), "--engine", "virtual"]) == 2
    assert capsys.readouterr().err.startswith("DIST0238 ")
    with pytest.raises(PlanError, match="DIST0221 plan: 3 is not a plan"):
        td.distribute(from_tvmscript(TEXT), 3)  # type: ignore[arg-type]


def test_systems_by_name_and_meshes_of_sizes() -> None:
    program = td.export(td.distribute(from_tvmscript(TEXT), PLAN))
    by_name = td.simulate(program, "dgx-a100")
    assert by_name.time_s == td.simulate(program, td.System.load("dgx-a100")).time_s
    same = td.device_mesh({"0": 2, "1": 4})
    assert tvm_ffi.structural_equal(td.device_mesh([2, 4]), same)
    with pytest.raises(MeshError, match=r"sizes alone, \[2, 4\]"):
        td.device_mesh(8)  # type: ignore[arg-type]


def test_a_name_counts_more_than_a_pattern_in_any_order() -> None:
    mod = from_tvmscript(TEXT)
    general = {"param": "*_weight", "placement": "R, R"}
    special = {"param": "up_weight", "placement": "R, S[1]"}
    for rules in ((general, special), (special, general)):
        result = resolve(plan(*rules), mod)["main"].params
        assert (result[1].placement, result[2].placement) == ((-1, 1), (-1, -1))


@pytest.mark.parametrize("last", [False, True])
def test_a_rule_for_everything_counts_least(last: bool) -> None:
    """Wherever it stands, a pattern that means fewer wins."""
    rules = [{"param": "*", "placement": "R, R"}, {"param": "up_*", "placement": "R, S[1]"}]
    result = resolve(plan(*rules[:: -1 if last else 1]), from_tvmscript(TEXT))["main"].params
    assert (result[1].placement, result[2].placement) == ((-1, 1), (-1, -1))


def test_rules_that_fill_different_axes_are_one() -> None:
    first = {"param": "up_*", "placement": "?, S[1]"}
    second = {"param": "*_weight", "placement": "R, ?"}
    result = resolve(plan(first, second), from_tvmscript(TEXT))["main"].params
    assert result[1].placement == (-1, 1) and result[2].placement == (-1, None)


@pytest.mark.parametrize(
    "rules",
    [
        ({"param": "up_*", "placement": "R, S[1]"}, {"param": "*_weight", "placement": "R, R"}),
        ({"param": "x", "placement": "S[0], R"}, {"param": "x", "placement": "S[1], R"}),
        ({"value": "y", "placement": "S[0], R"}, {"value": "y", "placement": "R, R"}),
        (
            {"param": "x", "placement": "S[0], R", "stationary": True},
            {"param": "x", "placement": "S[0], R"},
        ),
    ],
)
def test_rules_that_contradict_each_other(rules: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(PlanError, match=r"DIST0239 .*contradict"):
        resolve(plan(*rules), from_tvmscript(TEXT))
