# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Completed plans: what rules leave open may be sharded on any dim along any axis."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tests.planning.search.systems import QUICK
from tvm_distir.core.ir.attributes.readers import training_notes
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.decide import propagate
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.support.errors.tree import InfeasibleError, PlanError, PropagationError

MESH = {"dp": 2, "tp": 2}
HAND = "data_parallel+megatron"
BY_NAME = {"moe": "data_parallel+expert_parallel:axis=tp,data=false"}
"""Of models whose weights Megatron's rules do not name."""


@I.ir_module
class Sliced:
    @R.function
    def main(w: R.Tensor((8, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            y = R.strided_slice(w, axes=[0], begin=[1], end=[5])
            R.output(y)
        return y


def _module(name, train):
    mod = getattr(td.zoo, name)(size="tiny")
    return td.train_step(mod, optimizer="adam") if train else mod


def _plans(mod, name=""):
    """Hand-made rules, and the same completed."""
    rules = td.planning.make_plan(mod, BY_NAME.get(name, HAND), MESH)
    return rules, dataclasses.replace(rules, complete=True)


def _cost(mod, plan):
    """Price of a plan at propagation's weights."""
    solver = Propagator(AnnotateSharding(plan)(mod), Costs(), plan.complete)
    return solver.cost(solver.run()).total


@pytest.mark.parametrize(
    ("system", "name", "train"),
    nightly_but(itertools.product([None, QUICK], ["gpt", "llama"], [False, True]), {1, 2, 4, 7}),
)
def test_a_completed_plan_computes_what_the_model_does(name, train, system):
    mod = _module(name, train)
    _, plan = _plans(mod)
    placed = td.distribute(mod, plan, system=system)
    result = verify(mod, plan, dist=placed, engine="threads")
    assert result.equal
    assert sum(each.count for each in result.collectives) > 0


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_a_completion_never_costs_more_than_the_rules_alone(name, train):
    """All that the rules reach is still to be had."""
    mod = _module(name, train)
    rules, plan = _plans(mod, name)
    assert _cost(mod, plan) <= _cost(mod, rules)


def test_norms_between_megatrons_blocks_are_cut():
    """The residual stream, which weights cut over tp leave whole, is cut along the sequence.

    So it is in Megatron-LM's sequence parallelism: each all-reduce in two halves, norms in parts.
    """
    mod = td.zoo.gpt(size="tiny", layers=2)
    rules, plan = _plans(mod)
    before, after = (str(td.distribute(mod, each, system=QUICK)) for each in (rules, plan))
    assert before.count("R.dist.all_reduce(") > 0
    assert "R.dist.reduce_scatter(" not in before
    assert after.count("R.dist.all_reduce(") == 0
    assert after.count("R.dist.reduce_scatter(") > 0


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_a_completion_for_a_system_is_the_best_one(name, train):
    """Within the gap of the labels found for the same rules, whose bound is proved."""
    mod = _module(name, train)
    _, plan = _plans(mod, name)
    least = td.auto_shard(mod, MESH, QUICK, fixed=plan, gap=0.0)
    assert least.status == "exact"
    labelled = td.simulate(td.export(least.distribute()), QUICK, blocking=True).time_s
    placed = td.distribute(mod, plan, system=QUICK, bucket_bytes=0, ahead_bytes=0)
    completed = td.simulate(td.export(placed), QUICK, blocking=True).time_s
    assert completed == pytest.approx(labelled, rel=0.02)


def test_the_rules_hold():
    """A completion moves nothing that a rule places."""
    mod = td.zoo.llama(size="tiny", layers=2)
    rules, plan = _plans(mod)
    decided = [
        propagate(AnnotateSharding(each)(mod), complete=each.complete).entries["main"]
        for each in (rules, plan)
    ]
    forms = [
        [inst.choice[a][k].gives for a in (0, 1) for k in inst.graph.params] for inst in decided
    ]
    assert forms[0] == forms[1]


def test_a_plan_says_so_in_its_file(tmp_path):
    mod = td.zoo.gpt(size="tiny")
    rules, plan = _plans(mod)
    assert "complete" not in rules.to_dict()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    wrong = {**rules.to_dict(), "complete": "yes"}
    with pytest.raises(PlanError, match="DIST0221"):
        Plan.from_dict(wrong)


def test_the_strategy_completes_what_others_say():
    mod = td.zoo.gpt(size="tiny")
    _, plan = _plans(mod)
    assert td.planning.make_plan(mod, f"{HAND}+complete", MESH) == plan


def test_passes_take_it_from_the_plan_or_by_hand():
    mod = td.zoo.gpt(size="tiny")
    _, plan = _plans(mod)
    by_hand = PropagateSharding(complete=True)(AnnotateSharding(plan)(mod))
    later = td.transforms.LegalizeRedistribute()(by_hand)
    lowered = td.transforms.LowerDistIR()(td.transforms.OptimizeCollectives()(later))
    assert str(lowered) == str(td.distribute(mod, plan))


def test_rules_that_allow_nothing_are_named():
    """As without a system: the op that cannot use a stationary weight as it lies."""
    mod = AnnotateSharding(
        Plan.from_dict(
            {
                "schema_version": 1,
                "mesh": {"tp": 2},
                "rules": [{"param": "w", "placement": "S[0]", "stationary": True}],
                "complete": True,
            }
        )
    )(Sliced)
    for system in (None, QUICK):
        with pytest.raises(PropagationError, match=r"DIST0411.*strided_slice"):
            PropagateSharding(complete=True, system=system)(mod)


def test_a_weight_that_has_no_form_as_its_rule_says_is_refused():
    """Four columns are no parts for eight devices: no label is found, and it is said of which."""
    rules = [{"param": "w", "placement": "S[1]", "stationary": True}]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 8}, "rules": rules})
    with pytest.raises(InfeasibleError, match="DIST0802"):
        td.auto_shard(Sliced, {"tp": 8}, QUICK, fixed=plan)
    for system in (None, QUICK):
        with pytest.raises(PropagationError, match="DIST0411"):
            td.distribute(Sliced, dataclasses.replace(plan, complete=True), system=system)


@pytest.mark.parametrize("strategy", [HAND, "data_parallel", "zero:stage=1+megatron"])
@pytest.mark.parametrize("system", [None, QUICK])
def test_what_replaces_a_weight_lies_as_it_does(strategy, system):
    """So that a step can be repeated, also where no rule says how a weight lies along an axis."""
    mod = _module("llama", True)
    plan = td.planning.make_plan(mod, f"{strategy}+complete", MESH)
    io = td.distribute(mod, plan, system=system)["main"].attrs["dist.io"]
    before = {str(port["name"]): str(port["placement"]) for port in io["inputs"]}
    results = mod["main"].body.body.fields
    placements = [str(port["placement"]) for port in io["outputs"]]
    after = {str(var.name): form for var, form in zip(results, placements, strict=True)}
    notes = training_notes(mod["main"], "updated")
    moved = {
        name: (before[name], after[value])
        for name, value in ((str(n), str(v)) for n, v in notes.items())
        if before[name] != after[value]
    }
    assert len(notes) > 10
    assert moved == {}
