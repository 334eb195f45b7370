# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placements by the mesh axes of each dim: equal to the text form, and to JAX's meaning."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.core.ir.placement import shard_slices
from tvm_distir.core.plan.partition_spec import PartitionSpec
from tvm_distir.core.plan.schema import MeshSpec, parse_open_placement
from tvm_distir.support.errors import DistIRError, MeshError, PlanError

AXES = {"dp": 2, "tp": 4}
SPECS = [
    (td.P(), "R, R"),
    (td.P("tp"), "R, S[0]"),
    (td.P("tp", None), "R, S[0]"),
    (td.P(None, "dp"), "S[1], R"),
    (td.P("dp", "tp"), "S[0], S[1]"),
    (td.P("tp", "dp"), "S[1], S[0]"),
    (td.P(None, ("dp", "tp")), "S[1], S[1]"),
    (td.P(["dp", "tp"], []), "S[0], S[0]"),
    (td.P(None, ("tp", "dp")), "S[1], S[1]"),
]


@pytest.mark.parametrize(("spec", "text"), SPECS, ids=str)
def test_the_three_notations_give_the_same_rule(spec: td.P, text: str) -> None:
    python = td.Plan(mesh=AXES, rules={"w.*": spec})
    lists = [list(entry) if isinstance(entry, tuple) else entry for entry in spec]
    file: dict[str, Any] = {"schema_version": 1, "mesh": AXES, "rules": {"w.*": lists}}
    rule: dict[str, Any] = {**file, "rules": [{"param": "w.*", "placement": lists}]}
    as_text = td.Plan(mesh=AXES, rules={"w.*": text})
    assert python == td.Plan.from_dict(file) == td.Plan.from_dict(rule)
    assert (python == as_text) == (not python.rules[0].orders)
    assert python.rules[0].placement == parse_open_placement(text)
    assert td.Plan.from_dict(python.to_dict()) == python


@pytest.mark.parametrize("labels", [*itertools.product((-1, 0, 1, 2), repeat=2)], ids=str)
def test_labels_and_specs_convert_into_each_other(labels: tuple[int, int]) -> None:
    spec = PartitionSpec.of_labels(labels, tuple(AXES))
    assert spec.labels(MeshSpec("mesh0", AXES)) == labels
    assert eval(repr(spec), {"P": td.P}) == spec


def test_an_open_axis_has_no_entry() -> None:
    assert PartitionSpec.of_labels((None, 1), ("dp", "tp")) == td.P(None, "tp")


@pytest.mark.parametrize(("spec", "_"), SPECS, ids=str)
def test_devices_hold_what_jax_gives_them(spec: td.P, _: str) -> None:
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    jax = pytest.importorskip("jax")
    if len(jax.devices()) < 8:
        pytest.skip("JAX was started with fewer devices")
    mesh = jax.sharding.Mesh(_reshaped(jax.devices()), tuple(AXES))
    theirs = jax.sharding.PartitionSpec(*spec)
    plan = td.Plan(mesh=AXES, rules={"w": theirs})
    assert plan == td.Plan(mesh=AXES, rules={"w": spec})
    labels, [order] = plan.rules[0].closed_labels, plan.rules[0].orders or [(0, 1)]
    indices = jax.sharding.NamedSharding(mesh, theirs).devices_indices_map((16, 24))
    for coordinates in itertools.product(range(2), range(4)):
        stored = indices[mesh.devices[coordinates]]
        expected = [cut.indices(size)[:2] for cut, size in zip(stored, (16, 24), strict=True)]
        view = [[row[a] for a in order] for row in (labels, (2, 4), coordinates)]
        assert shard_slices((16, 24), *view) == expected


def _reshaped(devices: Any) -> Any:
    import numpy as np

    return np.array(devices[:8]).reshape(2, 4)


def test_a_plan_by_axes_runs_equal() -> None:
    mod = td.zoo.mlp(layers=2, hidden=16, batch=8)
    weights = [str(var.name) for var in mod["main"].params]
    rules = {weights[0]: td.P("dp"), weights[1]: td.P("tp", None), weights[-2]: td.P(None, "tp")}
    plan = td.Plan(mesh={"dp": 2, "tp": 2}, rules=rules)
    local = td.distribute(mod, plan)
    assert "R.dist.all_" in local.script()
    td.verify(mod, plan, engine="virtual").check()


WRONG = [
    ({"w": td.P("pp")}, "DIST0206", "tp"),
    ({"w": td.P("tp", "tp")}, "DIST0203", "once"),
    ([{"value": "w", "placement": [["tp", "dp"]]}], "DIST0203", "param rules"),
    ({"w": [3]}, "DIST0203", "null"),
    ({"w": [["tp", 3]]}, "DIST0203", "null"),
    ({"w": [""]}, "DIST0203", "null"),
    ({"w": 3}, "DIST0203", "S[0]"),
    ({"w": {"tp": 0}}, "DIST0203", "S[0]"),
    ({"w": "S[0]"}, "DIST0204", "one entry"),
    ({"": td.P("tp")}, "DIST0221", "name"),
]


@pytest.mark.parametrize(("rules", "code", "remedy"), WRONG, ids=str)
def test_what_is_no_placement_is_refused(rules: Any, code: str, remedy: str) -> None:
    with pytest.raises(DistIRError) as python:
        td.Plan(mesh=AXES, rules=rules)
    with pytest.raises(DistIRError) as file:
        td.Plan.from_dict({"schema_version": 1, "mesh": AXES, "rules": rules}, "p.json")
    assert python.value.code == file.value.code == code
    assert remedy in str(python.value) and remedy in str(file.value)


def test_all_faults_are_reported_at_once() -> None:
    rules: Any = {"a": td.P("pp"), "b": [3], "c": td.P("tp"), "d": "X, R"}
    with pytest.raises(PlanError) as info:
        td.Plan(mesh=AXES, rules=rules, ring=("sp",))
    error = info.value
    assert (error.code, error.location) == ("DIST0228", "plan")
    assert [v.code for v in error.violations] == ["DIST0206", "DIST0203", "DIST0203", "DIST0206"]
    assert [v.location for v in error.violations] == [
        'rules (param "a")/placement',
        'rules (param "b")',
        'rules (param "d")/placement',
        "ring",
    ]


def test_a_mapping_of_rules_needs_a_mesh_without_faults() -> None:
    with pytest.raises(MeshError) as info:
        td.Plan(mesh={"tp": 0}, rules={"w": td.P("tp")})
    assert info.value.code == "DIST0201"
    with pytest.raises(PlanError) as none:
        td.Plan(rules={"w": td.P("tp")})
    assert none.value.code == "DIST0221"
    meshes = [MeshSpec("a", {"tp": 2}), MeshSpec("b", {"tp": 2}, start=2)]
    with pytest.raises(PlanError) as several:
        td.Plan(meshes, {"w": td.P("tp")})
    assert several.value.code == "DIST0221"


def test_a_mesh_of_jax_gives_names_and_sizes() -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("dp", "tp"))
    plan = td.Plan(mesh=mesh, rules={"x": jax.sharding.PartitionSpec("dp", None)})
    assert plan == td.Plan(mesh={"dp": 1, "tp": 1}, rules={"x": td.P("dp", None)})
    with pytest.raises(MeshError, match="DIST0201"):
        td.Plan(mesh=np.ones((2, 2)))  # type: ignore[arg-type]
