# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON: what is read, what is written, and what is refused with which code."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tvm_distir.core.ir.placement import R
from tvm_distir.core.plan.name_patterns import match_name
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import MeshSpec, PlanRule, labels_text, parse_open_placement
from tvm_distir.support.errors.tree import DistIRError, MeshError, PlanError

CONTRACT = {
    "schema_version": 1,
    "mesh": {"dp": 2, "tp": 4},
    "rules": [
        {"param": "*.q_proj.weight", "placement": "R, S[0]", "stationary": True},
        {"call": "layer", "index": 0, "arg": 0, "placement": "S[0], R"},
        {"value": "lv19", "function": "main", "placement": "S[0], ?"},
    ],
}
STAGES = {
    "schema_version": 1,
    "meshes": {
        "stage0": {"axes": {"tp": 2}, "start": 0},
        "stage1": {"axes": {"tp": 2}, "device_ids": [5, 3]},
    },
    "rules": [{"param": "x", "placement": "R", "mesh": "stage1"}],
}


def test_the_plan_of_the_contract_is_read() -> None:
    plan = Plan.from_dict(CONTRACT)
    assert plan.meshes == (MeshSpec("mesh0", {"dp": 2, "tp": 4}),)
    assert plan.rules == (
        PlanRule("param", "*.q_proj.weight", (R, 0), stationary=True),
        PlanRule("call", "layer", (0, R), index=0, arg=0),
        PlanRule("value", "lv19", (0, None), function="main"),
    )
    assert plan.rules[2].closed_labels == (0, R)


def test_several_meshes_are_read() -> None:
    plan = Plan.from_dict(STAGES)
    assert [mesh.device_count for mesh in plan.meshes] == [2, 2]
    assert plan.mesh("stage1").device_ids == (5, 3)
    assert plan.rules[0].mesh == "stage1"


@pytest.mark.parametrize("data", [CONTRACT, STAGES], ids=["one mesh", "several"])
def test_json_round_trip(data: dict[str, Any], tmp_path: Path) -> None:
    plan = Plan.from_dict(data)
    assert plan.to_dict() == data
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_saving_replaces_and_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    Plan.from_dict(CONTRACT).save(target)
    Plan.from_dict(STAGES).save(target)
    assert json.loads(target.read_text()) == STAGES
    with pytest.raises(PlanError, match="DIST0227"):
        Plan.from_dict(CONTRACT).save(tmp_path / "missing" / "plan.json")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(PlanError, match="DIST0227"):
        Plan.from_dict(CONTRACT).save(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "plan.json"]


@pytest.mark.parametrize("text", ["S[0], R", "?", "S[12], ?, R", "P, R"])
def test_placement_text_round_trip(text: str) -> None:
    assert labels_text(parse_open_placement(text)) == text


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*.q_proj.weight", "h.0.attn.q_proj.weight", True),
        ("*.q_proj.weight", "h_0_attn_q_proj_weight", True),
        ("*_q_proj_weight", "h.0.attn.q_proj.weight", True),
        ("*.q_proj.weight", "h.0.attn.q_proj.bias", False),
        ("x", "x1", False),
        ("h.[01].w", "h_1_w", True),
        ("h.[01].w", "h_2_w", False),
        ("onnx::MatMul_*", "onnx::MatMul_7", True),
        ("onnx::MatMul_*", "onnx__MatMul_7", True),
        ("X", "x", False),
    ],
)
def test_names_match_as_written_or_as_printed(pattern: str, name: str, fits: bool) -> None:
    assert match_name(pattern, name) is fits


LABELS = {"functions": [], "entries": {}}


@pytest.mark.parametrize("rules", [None, -1, 99, "1", True])
def test_labels_say_how_many_rules_they_leave(rules: Any) -> None:
    plan = Plan.from_dict(CONTRACT)
    labels = LABELS if rules is None else {**LABELS, "rules": rules}
    with pytest.raises(PlanError, match="DIST0221"):
        dataclasses.replace(plan, labels=labels)
    data = {**CONTRACT, "labels": labels}
    with pytest.raises(PlanError, match="DIST0221"):
        Plan.from_dict(data)


def test_rules_that_go_are_counted_no_longer() -> None:
    plan = Plan.from_dict(CONTRACT)
    for local, expected in ((3, 2), (2, 1), (1, 1)):
        left = dataclasses.replace(plan, labels={**LABELS, "rules": local}).without_functions(
            {"layer"}
        )
        assert left.labels is not None and len(left.rules) == 2
        assert left.labels["rules"] == expected


def _changed(change: str) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(CONTRACT)
    exec(change, {"d": data, "r": data["rules"]})
    return data


REFUSED = [
    ("d['schema_version'] = 2", "DIST0222", PlanError, "version 1"),
    ("d['schema_version'] = True", "DIST0222", PlanError, "version 1"),
    ("d['rule'] = d.pop('rules')", "DIST0221", PlanError, '"rules"'),
    ("r[0]['placment'] = r[0].pop('placement')", "DIST0221", PlanError, '"placement"'),
    ("r[0]['params'] = r[0].pop('param')", "DIST0221", PlanError, '"param"'),
    ("r[0]['arg'] = 0", "DIST0221", PlanError, "in call rules only"),
    ("del r[0]['placement']", "DIST0221", PlanError, "placement"),
    ("del r[0]['param']", "DIST0221", PlanError, "separate rule"),
    ("r[0]['value'] = 'x'", "DIST0221", PlanError, "separate rule"),
    ("r[0]['stationary'] = 1", "DIST0221", PlanError, ""),
    ("r[1]['arg'] = '0'", "DIST0221", PlanError, ""),
    ("r[1]['arg'] = -1", "DIST0221", PlanError, "counted from 0"),
    ("del r[1]['arg']", "DIST0221", PlanError, "argument"),
    ("r.append(3)", "DIST0221", PlanError, ""),
    ("d['rules'] = 3", "DIST0221", PlanError, ""),
    ("del d['mesh']", "DIST0221", PlanError, "mesh"),
    ("d['meshes'] = {}", "DIST0221", PlanError, "either|Give"),
    ("d['mesh'] = {}", "DIST0201", MeshError, "at least one"),
    ("d['mesh'] = [2, 4]", "DIST0201", MeshError, "names"),
    ("d['mesh']['tp'] = 0", "DIST0201", MeshError, "positive"),
    ("d['mesh']['tp'] = 2.0", "DIST0201", MeshError, "positive"),
    ("d['mesh']['tp'] = True", "DIST0201", MeshError, "positive"),
    ("d['mesh']['pp'] = 2", "DIST0204", MeshError, "one entry"),
    ("r[0]['placement'] = 'R'", "DIST0204", MeshError, "one entry"),
    ("r[0]['placement'] = 'R, S[-1]'", "DIST0203", MeshError, ""),
    ("r[0]['placement'] = 'R, P'", "DIST0221", PlanError, ""),
    ("r[0]['placement'] = 'R, X'", "DIST0203", MeshError, ""),
    ("r[0]['placement'] = ''", "DIST0203", MeshError, ""),
    ("r[0]['mesh'] = 'mesh1'", "DIST0206", MeshError, "mesh0"),
]


def test_a_plan_that_states_no_version_is_read_as_the_newest() -> None:
    assert Plan.from_dict(_changed("del d['schema_version']")) == Plan.from_dict(CONTRACT)


@pytest.mark.parametrize(("change", "code", "kind", "remedy"), REFUSED, ids=[r[0] for r in REFUSED])
def test_malformed_plans_are_refused(
    change: str, code: str, kind: type[DistIRError], remedy: str
) -> None:
    with pytest.raises(kind) as info:
        Plan.from_dict(_changed(change))
    assert info.value.code == code
    assert info.value.location
    assert info.value.remedy
    import re

    assert re.search(remedy, info.value.remedy + info.value.what)


def _stages(change: str) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(STAGES)
    exec(change, {"d": data, "m": data["meshes"], "r": data["rules"]})
    return data


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("del r[0]['mesh']", "DIST0221"),
        ("m['stage1']['device_ids'] = [3, 3]", "DIST0202"),
        ("m['stage1']['device_ids'] = [3]", "DIST0202"),
        ("m['stage1']['device_ids'] = []", "DIST0202"),
        ("m['stage1']['device_ids'] = [-1, 3]", "DIST0202"),
        ("m['stage1']['device_ids'] = ['a', 'b']", "DIST0221"),
        ("m['stage1']['start'] = 1", "DIST0221"),
        ("m['stage0']['start'] = -1", "DIST0202"),
        ("m['stage0']['axis'] = m['stage0'].pop('axes')", "DIST0221"),
        ("del m['stage0']['axes']", "DIST0221"),
        ("m['stage2'] = {'axes': {'x': 2}, 'device_ids': [0, 1]}", "DIST0202"),
        ("m.clear()", "DIST0221"),
        ("r[0]['mesh'] = 'stage'", "DIST0206"),
    ],
)
def test_malformed_meshes_are_refused(change: str, code: str) -> None:
    with pytest.raises(DistIRError) as info:
        Plan.from_dict(_stages(change))
    assert info.value.code == code
    assert info.value.remedy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"schema_version": 1, "mesh": {"dp": 2}', "DIST0220"),
        ("", "DIST0220"),
        ("[" * 100000, "DIST0220"),
        ("[1]", "DIST0221"),
        ('{"schema_version": 1, "mesh": {"dp": 2, "dp": 4}, "rules": []}', "DIST0221"),
    ],
)
def test_broken_files_are_refused(text: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(PlanError) as info:
        Plan.load(path)
    assert info.value.code == code
    assert "p.json" in info.value.location


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="DIST0220"):
        Plan.load(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="DIST0220"):
        Plan.load(tmp_path / "b.json")
    with pytest.raises(PlanError, match="DIST0220"):
        Plan.load(tmp_path)


def test_rules_made_in_python_are_checked() -> None:
    mesh = MeshSpec("m", {"a": 2})
    with pytest.raises(PlanError, match="DIST0221"):
        PlanRule("parm", "x", (0,))
    with pytest.raises(MeshError, match="DIST0204"):
        Plan((mesh,), (PlanRule("param", "x", (0, R), "m"),))
    with pytest.raises(PlanError, match="DIST0221"):
        Plan((), ())
    with pytest.raises(PlanError, match="DIST0221"):
        Plan((mesh, MeshSpec("m", {"a": 2}, start=2)), ())


def test_all_faults_of_a_plan_are_told_at_once() -> None:
    """Each with its place; those of one code keep it."""
    data = _changed(
        "r[0]['placement'] = 'R'; r[1]['args'] = r[1].pop('arg'); r[2]['mesh'] = 'mesh1'; "
        "r.append({'param': 'x', 'placement': 'R, Q'}); r.append({'param': 'y', 'placement': 'R'})"
    )
    with pytest.raises(PlanError) as info:
        Plan.from_dict(data, "p.json")
    matches = [(v.code, v.location) for v in info.value.violations]
    assert info.value.code == "DIST0228" and info.value.location == "p.json"
    assert matches == [
        ("DIST0204", 'p.json/rules/0 (param "*.q_proj.weight")'),
        ("DIST0221", "p.json/rules/1/args"),
        ("DIST0206", 'p.json/rules/2 (value "lv19")'),
        ("DIST0203", "p.json/rules/3/placement"),
        ("DIST0204", 'p.json/rules/4 (param "y")'),
    ]
    assert all(v.remedy for v in info.value.violations)
    assert all(v.location in str(info.value) for v in info.value.violations)


def test_faults_of_several_meshes_are_told_at_once() -> None:
    """With those of the rules that can be seen without the meshes."""
    with pytest.raises(PlanError) as info:
        Plan.from_dict(_stages("m['stage0']['axes'] = {}; m['stage1'] = {}; r[0]['placement']='x'"))
    assert [v.code for v in info.value.violations] == ["DIST0201", "DIST0221", "DIST0203"]
    with pytest.raises(MeshError) as single:
        Plan.from_dict(_stages("m['stage0']['axes'] = {}"))
    assert (single.value.code, len(single.value.violations)) == ("DIST0201", 1)


def test_a_plan_made_in_python_tells_all_its_faults() -> None:
    mesh = MeshSpec("m", {"dp": 2})
    rules = [PlanRule("param", "x", (0, R), "m"), PlanRule("param", "y", (0,), "n")]
    with pytest.raises(PlanError) as info:
        Plan((mesh, mesh), tuple(rules))
    codes = [v.code for v in info.value.violations]
    assert codes == ["DIST0221", "DIST0202", "DIST0204", "DIST0206"]


def test_all_faults_of_one_rule_are_told_at_once() -> None:
    """Of its fields as they are read, and of what they say together."""
    rules = [
        {"param": 3, "placement": "Q", "stationary": 1, "moving": ["x"]},
        {"value": "", "placement": "R", "moving": [4]},
    ]
    with pytest.raises(PlanError) as info:
        Plan.from_dict({"schema_version": 1, "mesh": {"tp": 2}, "rules": rules}, "p.json")
    assert [(v.code, v.location) for v in info.value.violations] == [
        ("DIST0221", "p.json/rules/0/param"),
        ("DIST0203", "p.json/rules/0/placement"),
        ("DIST0221", "p.json/rules/0/stationary"),
        ("DIST0221", "p.json/rules/0/moving/0"),
        ("DIST0221", "p.json/rules/1 (value)"),
        ("DIST0221", 'p.json/rules/1 (value "")'),
    ]


def test_axes_that_cut_nothing() -> None:
    rules = [
        PlanRule("param", "x", (0, R, None), "a"),
        PlanRule("param", "y", (R, R, R), "b"),
    ]
    axes = {"dp": 2, "tp": 4, "one": 1}
    plan = Plan((MeshSpec("a", axes), MeshSpec("b", axes, start=8)), tuple(rules))
    matches = [(mesh.name, axis) for mesh, axis in plan.unused_axes()]
    assert matches == [("a", "tp"), ("b", "dp"), ("b", "tp")]


def test_faults_of_all_kinds_are_told_at_once(tmp_path: Path) -> None:
    """Of a key, a type, a number, a schedule and a placement, each with its code and place."""
    data = {
        "schema_version": 1,
        "mesh": {"tp": 2},
        "rules": [{"param": "x", "placement": "S[x]"}, {"parm": "x", "placement": "R"}],
        "rings": ["tp"],
        "recompute": {"main": 3},
        "complete": "yes",
        "schedule": {"kind": "1f2b"},
    }
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match="DIST0228") as info:
        Plan.load(path)
    faults = {v.location.removeprefix(f"{path}/"): v for v in info.value.violations}
    assert {place: v.code for place, v in faults.items()} == {
        "rules/0/placement": "DIST0203",
        "rules/1/parm": "DIST0221",
        "rings": "DIST0221",
        "recompute/main": "DIST0221",
        "complete": "DIST0221",
        "schedule": "DIST0236",
    }
    assert faults["rings"].remedy == 'Did you mean "ring"?'
    assert faults["rules/1/parm"].remedy == 'Did you mean "param"?'
