# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A system decides wherever a choice is open: plans, placements, collectives, explanations."""

from __future__ import annotations

import json

import pytest

import tvm_distir as td
from tests.plain_systems import PLAIN_A100
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.runtime.engines.registry import engine
from tvm_distir.interface.command import main
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.models.model import load_model
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.training.train_step import train_step

GPT = "zoo:gpt?size=tiny,layers=1,hidden=32,vocab=67,batch=8"
VIT = "zoo:vit?size=tiny,layers=1,hidden=32,batch=8"
SYSTEM = PLAIN_A100


def made(model, strategy, mesh, train, system):
    mod = load_model(model).mod
    mod = train_step(mod, "cross_entropy", "sgd", False) if train else mod
    plan = make_plan(mod, strategy, mesh, system)
    return mod, plan, td.distribute(mod, plan, system=system)


@pytest.mark.parametrize(
    ("model", "strategy", "mesh", "train"),
    [
        (VIT, "tensor_parallel", {"tp": 4}, False),
        (GPT, "data_parallel+megatron", {"dp": 2, "tp": 4}, True),
    ],
)
def test_a_step_takes_less_time_on_the_system_that_decided(model, strategy, mesh, train):
    """Small tensors: where bytes decide many collectives are started, which here cost most."""
    known = td.System.load(SYSTEM)
    (_, _, by_bytes), (mod, plan, by_time) = (
        made(model, strategy, mesh, train, system) for system in (None, SYSTEM)
    )
    steps = [td.simulate(td.export(local), known).time_s for local in (by_bytes, by_time)]
    assert steps[1] < steps[0]
    if not train:
        td.verify(mod, plan, engine=engine("virtual"), dist=by_time).check()


def test_a_system_by_name_is_the_system():
    mod, plan, local = made(VIT, "tensor_parallel", {"tp": 4}, False, SYSTEM)
    known = td.System.load(SYSTEM)
    again = td.distribute(mod, make_plan(mod, "tensor_parallel", {"tp": 4}, known), system=known)
    assert again.script() == local.script()
    assert td.distribute(mod, plan).script() != local.script()


def test_explanations_decide_as_the_passes_do():
    mod, plan, _ = made(GPT, "data_parallel+megatron", {"dp": 2, "tp": 4}, False, SYSTEM)
    annotated = AnnotateSharding(plan)(mod)
    placed = PropagateSharding(system=SYSTEM)(annotated)["main"]
    checked = 0
    for binding in (b for block in placed.body.blocks for b in block.bindings):
        name, ty = str(binding.var.name), getattr(binding.var.ty, "placement", None)
        if name not in ("lm_head", "logits") or ty is None:
            continue
        result = explain(annotated, name, system=SYSTEM, alternatives=False)
        assert result.placement.replace(" ", "") == str(ty).strip(chr(34)).replace(" ", "")
        checked += 1
    assert checked
    by_bytes, by_time = (
        explain(annotated, "logits", system=system, alternatives=False) for system in (None, SYSTEM)
    )
    assert by_bytes.price != by_time.price


def test_the_command_line_hands_it_on(tmp_path, capsys):
    def run_command(*words):
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    folder = tmp_path / "out"
    plan = ("--strategy", "tensor_parallel", "--mesh", "tp=4", "--system", SYSTEM)
    run_command("analyze", VIT, *plan, "-o", str(folder))
    _, made_plan, local = made(VIT, "tensor_parallel", {"tp": 4}, False, SYSTEM)
    assert json.loads((folder / "plan.json").read_text()) == made_plan.to_dict()
    assert json.loads((folder / "program.json").read_text()) == td.export(local).to_dict()
    steps = ("opt", str(folder / "2-annotated.py"), "-p", "propagate,legalize")
    assert run_command(*steps, "--system", SYSTEM) != run_command(*steps)
    reported = (
        "explain",
        GPT,
        "logits",
        "--strategy",
        "data_parallel+megatron",
        "--mesh",
        "dp=2,tp=4",
    )
    words = (*reported, "--no-alternatives", "--json")
    assert json.loads(run_command(*words, "--system", SYSTEM)) != json.loads(run_command(*words))
