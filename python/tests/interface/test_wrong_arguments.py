# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Test that public functions refuse arguments of a wrong type by a coded error with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.planning.strategies.composition import compose
from tvm_distir.planning.strategies.tensor_parallelism import tensor_parallel
from tvm_distir.support import UsageError

PLAN = td.Plan.from_dict({"schema_version": 1, "mesh": {"tp": 2}, "rules": []})
SYSTEM = "dgx-a100"
TAKES_MODULE: dict[str, Callable[[Any, Path], object]] = {
    "distribute": lambda mod, _: td.distribute(mod, PLAN),
    "verify": lambda mod, _: td.verify(mod, PLAN),
    "run": lambda mod, _: td.run(mod, {}),
    "run virtual": lambda mod, _: td.run(mod, {}, engine="virtual"),
    "run entry": lambda mod, _: td.run(mod, {}, entry="decode"),
    "simulate": lambda mod, _: td.simulate(mod, SYSTEM),
    "export": lambda mod, _: td.export(mod),
    "train_step": lambda mod, _: td.train_step(mod),
    "bind_dims": lambda mod, _: td.bind_dims(mod, {"n": 3}),
    "show": lambda mod, _: td.show(mod),
    "explain": lambda mod, _: td.explain(mod, PLAN, "x"),
    "auto_shard": lambda mod, _: td.auto_shard(mod, {"tp": 2}, SYSTEM),
    "deploy": lambda mod, folder: td.deploy(mod, folder / "deployed"),
    "compile": lambda mod, _: td.compile(mod),
    "to_ccl": lambda mod, _: td.to_ccl(mod),
    "to_stablehlo": lambda mod, _: td.to_stablehlo(mod),
    "plan_storage": lambda mod, _: td.plan_storage(mod),
    "measure": lambda mod, _: td.measure(mod),
    "strategy": lambda mod, _: tensor_parallel(mod, {"tp": 2}),
    "compose": lambda mod, _: compose(mod, {"tp": 2}, "tensor_parallel"),
}


@pytest.mark.parametrize("name", TAKES_MODULE)
def test_what_is_no_module_is_refused(name: str, tmp_path: Path) -> None:
    for wrong in (PLAN, "zoo:mlp", None, 3, [], object()):
        with pytest.raises(UsageError) as caught:
            TAKES_MODULE[name](wrong, tmp_path)
        assert caught.value.code == "DIST0154"
        assert caught.value.remedy


def test_the_remedy_names_the_field_or_the_call_that_gives_the_module() -> None:
    model = td.load_model("zoo:mlp")
    with pytest.raises(UsageError, match=r"field \.mod"):
        td.train_step(model)
    with pytest.raises(UsageError) as caught:
        td.train_step("zoo:mlp")
    call = caught.value.remedy.removeprefix("Load it first: ").removesuffix(".")
    assert td.train_step(eval(call, {"td": td}))  # the remedy runs as it is written


@pytest.mark.parametrize("wrong", [PLAN, [], 3, object()], ids=["plan", "list", "int", "object"])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="DIST0154"):
        td.analyze(wrong, PLAN, system=SYSTEM)


WRONG_PLANS: dict[str, Callable[[], object]] = {
    "rules as text": lambda: td.Plan(mesh={"tp": 2}, rules="x"),  # type: ignore[arg-type]
    "rules of numbers": lambda: td.Plan(mesh={"tp": 2}, rules=[3]),  # type: ignore[list-item]
    "unknown key": lambda: td.Plan(mesh={"tp": 2}, rules=[{"parm": "x", "placement": "R"}]),
    "mesh as text": lambda: td.Plan("tp=2"),  # type: ignore[arg-type]
    "two meshes": lambda: td.Plan({"tp": 2}, mesh={"tp": 2}),
    "ring as number": lambda: td.Plan(mesh={"tp": 2}, ring=3),  # type: ignore[arg-type]
    "recompute as text": lambda: td.Plan(mesh={"tp": 2}, recompute="all"),  # type: ignore[arg-type]
    "schedule as text": lambda: td.Plan(mesh={"tp": 2}, schedule="1f1b"),  # type: ignore[arg-type]
    "labels as number": lambda: td.Plan(mesh={"tp": 2}, labels=3),  # type: ignore[arg-type]
    "attention": lambda: td.Plan(mesh={"tp": 2}, attention="flash"),
    "labels of a rule": lambda: td.core.plan.PlanRule("param", "x", "S[0]"),
}


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_what_is_no_plan_is_refused(name: str) -> None:
    with pytest.raises(td.support.PlanError) as caught:
        WRONG_PLANS[name]()
    assert caught.value.code == "DIST0221"
    assert caught.value.remedy


def test_a_plan_takes_rules_in_json_form_and_the_mesh_first() -> None:
    rule = {"param": "x", "placement": "S[0]"}
    named = td.Plan(mesh={"tp": 3}, rules={"x": "S[0]"})
    assert td.Plan(mesh={"tp": 3}, rules=[rule]) == named
    assert td.Plan({"tp": 3}, {"x": td.P("tp", None)}) == named


def test_explain_is_called_as_the_other_verbs() -> None:
    mod = td.zoo.mlp(layers=1, hidden=8)
    explanation = td.explain(mod, PLAN, "x", alternatives=False)
    assert explanation == td.explain(mod, "x", plan=PLAN, alternatives=False)
    for arguments in ((mod, "x", PLAN), (mod, PLAN), (mod, PLAN, 3)):
        with pytest.raises(UsageError, match="DIST0152"):
            td.explain(*arguments)


def test_the_module_of_a_lowered_function_is_imported() -> None:
    jax = pytest.importorskip("jax")
    lowered = jax.jit(lambda x: x + 1.0).lower(jax.numpy.ones((2, 4)))
    mod = td.from_stablehlo(lowered.compiler_ir())
    assert [str(p.name) for p in mod["main"].params] == ["x"]


@pytest.mark.parametrize("wrong", [3, object(), None], ids=["int", "object", "None"])
def test_what_is_no_stablehlo_is_refused(wrong: object) -> None:
    with pytest.raises(td.support.ModelError, match="DIST0302"):
        td.from_stablehlo(wrong)


def test_traces_go_to_a_folder_that_is_made(tmp_path: Path) -> None:
    result = td.simulate(td.distribute(td.zoo.mlp(layers=1, hidden=8), PLAN), SYSTEM)
    result.to_hta(tmp_path / "new" / "hta")
    assert len(list((tmp_path / "new" / "hta").iterdir())) == 2
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="DIST0153"):
        result.to_hta(tmp_path / "file")


def test_search_takes_the_text_of_a_model() -> None:
    def best(model: Any) -> float:
        return float(td.search(model, 2, SYSTEM, top=1, workers=1).plans[0].row.time_s)

    text = "zoo:mlp?layers=1,hidden=8"
    assert best(text) == best(td.load_model(text).mod)


@pytest.mark.parametrize("wrong", [PLAN, None, 3], ids=["plan", "None", "int"])
def test_what_is_no_system_is_refused(wrong: Any) -> None:
    local = td.distribute(td.zoo.mlp(layers=1, hidden=8), PLAN)
    with pytest.raises(UsageError, match="DIST0155"):
        td.simulate(local, wrong)
