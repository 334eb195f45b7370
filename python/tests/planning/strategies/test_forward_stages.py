# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The strategy pipeline for forward passes and serving steps, by execution."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import ir

import tvm_distir as td
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.stage_division import even_layers
from tvm_distir.support.errors.tree import DistIRError

SERVE = "entry=serve,batch=2,seq=1,past=20,page=4,pages=16"


def _sent(local: ir.IRModule) -> list[int]:
    """Return the number of messages of each mesh."""
    names = sorted(str(gv.name_hint) for gv in local.functions if "main_mesh" in str(gv.name_hint))
    return [
        sum(dist_op_name(b.value) == "send" for b in all_bindings(local[name].body))
        for name in names
    ]


def _inputs(local: ir.IRModule, mesh: int) -> list[str]:
    return [str(row["name"]) for row in local[f"main_mesh{mesh}"].attrs["dist.io"]["inputs"]]


@pytest.mark.parametrize(
    ("model", "strategy", "axes", "engine"),
    [
        (f"llama3?size=tiny,layers=2,{SERVE}", "pipeline+megatron", {"pp": 2, "tp": 2}, "virtual"),
        ("gpt?size=tiny,layers=3", "data_parallel+pipeline", {"dp": 2, "pp": 3}, "virtual"),
    ],
)
def test_stages_send_one_activation_each_and_equal_one_device(
    model: str, strategy: str, axes: dict[str, int], engine: str
) -> None:
    mod = td.load_model(f"zoo:{model}").mod
    plan = make_plan(mod, strategy, axes)
    report = td.verify(mod, plan, engine=engine)
    assert report.equal
    assert not report.unlike_claims
    local = td.distribute(mod, plan)
    assert _sent(local) == [1] * (axes["pp"] - 1) + [0]
    caches = [name for name in _inputs(local, 0) if name.endswith("cache")]
    assert not set(caches) & set(_inputs(local, 1))


def test_a_tied_embedding_is_on_the_first_and_the_last_stage_alone() -> None:
    mod = td.load_model(f"zoo:llama3?size=tiny,layers=3,tied=1,{SERVE}").mod
    local = td.distribute(mod, make_plan(mod, "pipeline", {"pp": 3}))
    holders = [k for k in range(3) if "embed_tokens.weight" in _inputs(local, k)]
    assert (holders, _sent(local)) == ([0, 2], [1, 1, 0])


def test_layers_are_divided_as_requested() -> None:
    mod = td.load_model("zoo:llama3?size=tiny,layers=5").mod
    plan = make_plan(mod, "pipeline:layers=3/2", {"pp": 2})
    stage_of = {rule.name: rule.mesh for rule in plan.rules if rule.kind == "param"}
    weights = [stage_of[f"layers.{k}.mlp.up_proj.weight"] for k in range(5)]
    assert weights == ["stage0"] * 3 + ["stage1"] * 2
    assert even_layers(10, 4) == (2, 3, 3, 2)
    assert even_layers(9, 2) == (5, 4)


@pytest.mark.parametrize(
    ("strategy", "remedy"),
    [
        ("pipeline:micro_batches=4", "--train"),
        ("pipeline:layers=3/1", "2/1"),
        ("pipeline:layers=a/b", "2/1"),
    ],
)
def test_what_does_not_divide_a_forward_pass_is_refused(strategy: str, remedy: str) -> None:
    mod = td.load_model("zoo:llama3?size=tiny,layers=3").mod
    with pytest.raises(DistIRError, match="DIST0233") as refused:
        make_plan(mod, strategy, {"pp": 2})
    assert remedy in refused.value.remedy


def test_layers_of_a_training_step_are_those_of_its_schedule() -> None:
    schedule: Any = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(td.zoo.gpt(size="tiny", layers=2, batch=2), schedule=schedule)
    with pytest.raises(DistIRError, match="DIST0233") as refused:
        make_plan(step, "pipeline:micro_batches=2,layers=1/1", {"pp": 2})
    assert "cuts" in refused.value.remedy
