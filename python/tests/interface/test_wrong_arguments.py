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
    "search": lambda mod, _: td.search(mod, 4, system=SYSTEM),
    "train_step": lambda mod, _: td.train_step(mod),
    "bind_dims": lambda mod, _: td.bind_dims(mod, {"n": 3}),
    "show": lambda mod, _: td.show(mod),
    "explain": lambda mod, _: td.explain.explain(mod, "x"),
    "auto_shard": lambda mod, _: td.auto_shard(mod, {"tp": 2}, SYSTEM),
    "deploy": lambda mod, folder: td.deploy(mod, folder / "deployed"),
    "compile": lambda mod, _: td.compile(mod),
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


@pytest.mark.parametrize("wrong", [PLAN, None, 3], ids=["plan", "None", "int"])
def test_what_is_no_system_is_refused(wrong: Any) -> None:
    local = td.distribute(td.zoo.mlp(layers=1, hidden=8), PLAN)
    with pytest.raises(UsageError, match="DIST0155"):
        td.simulate(local, wrong)
