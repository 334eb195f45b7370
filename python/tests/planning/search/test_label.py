# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Automatic sharding on one mesh: exact, bounded, executed, within memory."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tests.plain_systems import PLAIN_A100, PLAIN_H100
from tests.planning.search.systems import A100, QUICK
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.core.propagation.solve.ilp import integer_optimum
from tvm_distir.core.redistribution import Planner, cost_matrix
from tvm_distir.core.solver.problem import INFINITE, Problem
from tvm_distir.hardware.auto_sharding.labeller import Labeller
from tvm_distir.hardware.auto_sharding.memory_bound import TooLargeError
from tvm_distir.hardware.redistribution_times import RedistributionTimes
from tvm_distir.planning.search.auto_sharding import auto_shard, labeller_of
from tvm_distir.planning.search.min_marginals import min_marginals
from tvm_distir.support.errors.tree import InfeasibleError, PlanError


@I.ir_module
class Chain:
    """Two products, a bias, a value that two readers want, a function that is called twice."""

    @R.function(private=True)
    def block(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        with R.dataflow():
            h = R.matmul(x, w)
            y = R.add(h, x)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        v: R.Tensor((16, 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
    ):
        cls = Chain
        with R.dataflow():
            a = cls.block(x, v)
            b = cls.block(a, w)
            out = R.sum(b, axis=[1])
            R.output(out)
        return out


@I.ir_module
class Pair:
    """A product and its transpose's, summed up."""

    @R.function
    def main(x: R.Tensor((8, 6), "float32"), w: R.Tensor((6, 4), "float32")):
        with R.dataflow():
            h = R.matmul(x, w)
            s = R.sum(h, axis=[1])
            R.output(s)
        return s


@I.ir_module
class Layouts:
    """A value that one reader needs gathered, and one behind it as it is or cut otherwise."""

    @R.function
    def main(
        x: R.Tensor((64, 64), "float32"),
        w: R.Tensor((256, 64), "float32"),
        u: R.Tensor((64, 64), "float32"),
    ):
        with R.dataflow():
            h = R.multiply(x, x)
            p = R.matmul(w, h)
            q = R.exp(p)
            s = R.sum(q)
            y = R.add(h, u)
            R.output(s, y)
        return s, y


def _net(mod, mesh, system):
    """The problem of ``main``, and its constant."""
    spec = MeshSpec("mesh0", mesh)
    labeller = Labeller(td.transforms.AnnotateSharding(Plan((spec,)))(mod), system)
    net = labeller.net("main")
    return labeller.tables, Problem(net.domains, net.factors), net.constant


@pytest.mark.parametrize("system", [A100, QUICK], ids=["a100", "quick"])
@pytest.mark.parametrize("mesh", [{"a": 2}, {"a": 2, "b": 2}, {"a": 2, "b": 3}], ids=str)
def test_a_label_is_the_least_of_all_assignments(mesh, system):
    """All assignments of a small net, table by table."""
    tables, problem, constant = _net(Pair, mesh, system)
    total = np.zeros(tuple(problem.domains), np.int64)
    for scope, number in problem.factors.items():
        table = tables.array(number)
        shape = [problem.domains[v] if v in scope else 1 for v in range(total.ndim)]
        total = np.minimum(total + table.reshape(shape), INFINITE)
    result = auto_shard(Pair, mesh, system)
    assert result.cost_ps == constant + int(total.min())
    assert (result.status, result.gap) == ("exact", 0.0)


@pytest.mark.parametrize(
    ("model", "mesh"),
    nightly_but(
        [
            ("gpt", {"a": 4}),
            ("moe", {"a": 4}),
            ("resnet", {"a": 2, "b": 2}),
            ("gpt", {"a": 2, "b": 2}),
        ],
        {0, 1, 2},
    ),
    ids=str,
)
def test_an_integer_program_finds_the_same(model, mesh):
    """HiGHS on the same tables."""
    mod = getattr(td.zoo, model)(size="tiny")
    tables, problem, constant = _net(mod, mesh, QUICK)
    optimum = integer_optimum(tables, problem)
    total, forbidden = tables.evaluate(problem, optimum.values)
    result = auto_shard(mod, mesh, QUICK)
    assert not forbidden and result.cost_ps == constant + total
    assert result.status == "exact"


@pytest.mark.parametrize(
    ("model", "mesh", "gap"),
    nightly_but(
        [
            ("gpt", {"a": 2, "b": 2}, 0.0),
            ("llama", {"a": 4, "b": 2}, 0.01),
            ("moe", {"a": 2, "b": 2}, 0.02),
            ("gpt", {"a": 2, "b": 2, "c": 2}, 0.05),
        ],
        {2},
    ),
    ids=str,
)
def test_what_is_found_runs_and_is_equal_to_one_device(model, mesh, gap):
    """A step on a system on which it pays to cut: so collectives run."""
    mod = td.train_step(getattr(td.zoo, model)(size="tiny", batch=8), optimizer="adam")
    result = auto_shard(mod, mesh, QUICK, gap=gap)
    report = td.verify(mod, Plan(result.meshes), engine="virtual", dist=result.distribute())
    assert report.equal
    assert report.collectives


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        ("gpt:size=gpt3-6.7b,layers=2,batch=16", {"dp": 2, "tp": 4}),
        ("llama:size=8b,layers=2,batch=16", {"dp": 4, "tp": 4}),
        ("vit:batch=32", {"dp": 2, "tp": 4}),
        ("bert:batch=32", {"dp": 8}),
        ("resnet:batch=32", {"dp": 4, "tp": 2}),
    ],
)
def test_the_price_is_what_simulation_says(model, mesh):
    """Collectives one after the other with the work: within 5 %."""
    mod = td.load_model("zoo:" + model.replace(":", "?", 1)).mod
    result = auto_shard(mod, mesh, A100, gap=0.001)
    simulated = td.simulate(result.program(), A100, blocking=True).time_s
    assert result.price_s == pytest.approx(simulated, rel=0.05)


MOE = td.train_step(td.zoo.moe(size="tiny", batch=8), optimizer="adam")
SQUARE = MeshSpec("mesh0", {"a": 2, "b": 2})


@pytest.fixture(scope="module")
def found():
    """Labels of a step."""
    return auto_shard(MOE, SQUARE, QUICK, gap=0.01)


@pytest.fixture(scope="module")
def plan(found):
    """Their plan, as it is read from its file."""
    return Plan.from_dict(json.loads(json.dumps(found.plan().to_dict())))


class TestPlanOfLabels:
    """What a plan says of every value is what was decided."""

    def test_nothing_is_decided_again(self, found, plan):
        assert plan == found.plan()
        local = td.planning.with_updates(MOE, plan)
        for each in (plan, local):
            created = td.transforms.pipeline(each, system=QUICK)(MOE)
            assert tvm_ffi.structural_equal(created, found.distribute())
        assert "dist.labels" not in created.attrs

    def test_a_step_in_stages_has_labels_too(self):
        schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
        step = td.train_step(td.zoo.gpt(size="tiny", batch=4), optimizer="adam", schedule=schedule)
        result = auto_shard(step, {"a": 2}, QUICK, gap=0.01)
        created = td.transforms.pipeline(result.plan(), system=QUICK)(step)
        assert tvm_ffi.structural_equal(created, result.distribute())

    def test_rules_that_hold_are_annotated(self):
        rules = [{"value": "a", "placement": "S[0], R", "stationary": True}]
        data = {"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules}
        result = auto_shard(Chain, SQUARE, QUICK, fixed=Plan.from_dict(data))
        assert result.plan().labels["rules"] == 1
        created = td.transforms.pipeline(result.plan(), system=QUICK)(Chain)
        assert tvm_ffi.structural_equal(created, result.distribute())

    def test_without_labels_rules_say_nearly_the_same(self, found, plan):
        created = td.transforms.pipeline(plan.by_rules(), system=QUICK)(MOE)
        times = [
            td.simulate(td.export(x), QUICK, blocking=True).time_s
            for x in (created, found.distribute())
        ]
        assert times[0] == pytest.approx(times[1], rel=0.1)

    def test_labels_of_another_module_are_refused(self, plan):
        other = td.train_step(td.zoo.moe(size="tiny", batch=16), optimizer="adam")
        with pytest.raises(PlanError, match="DIST0240"):
            td.distribute(other, plan)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("alternatives", [[[], [7], None]]),
            ("functions", []),
            ("entries", {"main": 99}),
            ("entries", {"main": 0}),
            ("entries", {}),
            ("module", 3),
        ],
    )
    def test_wrong_labels_are_refused(self, plan, key, value):
        wrong = replace(plan, labels={**plan.labels, key: value})
        with pytest.raises(PlanError, match="DIST0221"):
            td.distribute(MOE, wrong)


def test_rules_that_are_given_hold():
    spec = MeshSpec("mesh0", {"a": 2, "b": 2})
    rules = [{"param": "x", "placement": "S[0], R", "stationary": True}]
    rules += [{"param": "v", "placement": "R, S[1]", "stationary": True}]
    fixed = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules})
    result = auto_shard(Chain, spec, QUICK, fixed=fixed)
    free = auto_shard(Chain, spec, QUICK)
    placed = {rule.name: rule.placement for rule in result.plan().rules if rule.kind == "param"}
    assert placed["x"] == (0, -1) and placed["v"] == (-1, 1)
    assert free.cost_ps <= result.cost_ps
    local = result.distribute()
    shapes = {each["name"]: each["placement"] for each in local["main"].attrs["dist.io"]["inputs"]}
    assert str(shapes["v"]) == "R, S[1]"
    assert td.verify(Chain, fixed, engine="virtual", dist=local).equal


def test_an_axis_of_one_device_cuts_nothing():
    rules = [{"param": "x", "placement": "S[0], S[1]", "stationary": True}]
    fixed = Plan.from_dict({"schema_version": 1, "mesh": {"a": 1, "b": 2}, "rules": rules})
    result = auto_shard(Chain, {"a": 1, "b": 2}, QUICK, fixed=fixed)
    alone = auto_shard(Chain, {"b": 2}, QUICK)
    assert auto_shard(Chain, {"a": 1, "b": 2}, QUICK).cost_ps == alone.cost_ps <= result.cost_ps
    assert td.verify(Chain, fixed, engine="virtual", dist=result.distribute()).equal


def test_equal_functions_may_be_done_in_different_ways():
    """A rule for one call's weight: the other call is free, and both are called rightly."""
    rules = [{"param": "v", "placement": "S[0]", "stationary": True}]
    rules += [{"param": "w", "placement": "S[1]", "stationary": True}]
    fixed = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": rules})
    result = auto_shard(Chain, {"a": 2}, QUICK, fixed=fixed)
    kids = result.decision.entries["main"].kids.values()
    assert len({kid.number for kid in kids}) == 2
    assert td.verify(Chain, fixed, engine="virtual", dist=result.distribute()).equal


def test_rules_that_exclude_everything_are_refused():
    """The product over 16 elements cannot have both operands stationary on other dims."""
    rules = [{"param": "x", "placement": "S[0]", "stationary": True}]
    rules += [{"param": "w", "placement": "S[0]", "stationary": True}]
    fixed = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": rules})
    with pytest.raises(InfeasibleError, match="DIST0802"):
        auto_shard(Pair, {"a": 2}, QUICK, fixed=fixed)


def test_several_meshes_are_refused():
    meshes = (MeshSpec("one", {"a": 2}), MeshSpec("two", {"a": 2}, start=2))
    with pytest.raises(PlanError, match="DIST0237"):
        auto_shard(Chain, {"a": 2}, QUICK, fixed=Plan(meshes))


def test_no_sweep_bounds_more_than_the_optimum():
    """A gap that is allowed never makes a bound that is too high."""
    mod = td.train_step(td.zoo.llama(size="tiny", batch=8), optimizer="adam")
    exact = auto_shard(mod, {"a": 2, "b": 2}, QUICK)
    for gap in (0.5, 0.1, 0.02):
        result = auto_shard(mod, {"a": 2, "b": 2}, QUICK, gap=gap)
        assert result.bound_ps <= exact.cost_ps <= result.cost_ps
        assert result.gap <= gap


def test_new_weights_and_states_lie_as_the_old_ones():
    """So that a step can be repeated."""
    mod = td.train_step(td.zoo.llama(size="tiny", batch=8), optimizer="adam")
    local = auto_shard(mod, {"a": 4, "b": 2}, QUICK, gap=0.01).distribute()
    io = local["main"].attrs["dist.io"]
    weights = [each for each in io["inputs"] if "role" not in each or each["role"] != "data"]
    placed = {str(each["name"]): str(each["placement"]) for each in weights}
    results = [str(each["placement"]) for each in io["outputs"]][1:]
    assert len(results) == len(placed) and len(set(results)) > 1
    assert results == list(placed.values())


@pytest.mark.parametrize("mod", [Chain, Pair], ids=["chain", "pair"])
def test_second_choices_are_the_best_of_all_others(mod):
    """Each other placement of a weight, one after the other, all else free."""
    mesh = MeshSpec("mesh0", {"a": 2, "b": 2})
    labeller = labeller_of(mod, mesh, QUICK)
    least = labeller.run(0.0, None).cost_ps
    result = min_marginals(labeller.labeller)
    assert len(result) == (2 if mod is Chain else 1) or {each.alike for each in result} == {2}
    for each in result:
        prices = []
        for labels in itertools.product((0, 1, -1), repeat=2):
            text = td.core.ir.placement_text(labels)
            if text == each.form:
                continue
            rules = [{"param": each.weight, "placement": text, "stationary": False}]
            data = {"schema_version": 1, "mesh": dict(mesh.axes), "rules": rules}
            prices.append((auto_shard(mod, mesh, QUICK, fixed=Plan.from_dict(data)).cost_ps, text))
        assert each.dearer_s * 1e12 == pytest.approx(min(prices)[0] - least, abs=0.5)
        assert (min(prices)[0], each.other) in prices


class TestMemory:
    """A limit on what devices keep."""

    mod = td.train_step(td.zoo.gpt(size="tiny", batch=8), optimizer="adam")
    mesh = MeshSpec("mesh0", {"a": 4})

    def test_a_limit_holds_and_costs(self):
        labeller = labeller_of(self.mod, self.mesh, A100)
        free = labeller.run(0.0, None)
        assert free.peak_bytes > 0
        last = free.cost_ps
        for share in (0.9, 0.8, 0.7):
            limit = int(share * free.peak_bytes)
            result = labeller.run(0.0, limit)
            assert result.peak_bytes <= limit
            assert last <= result.cost_ps and result.bound_ps <= result.cost_ps
            last = result.cost_ps
        assert auto_shard(self.mod, self.mesh, A100, memory_bytes=limit).cost_ps == last
        again = labeller.run(0.0, None)
        assert (again.cost_ps, again.peak_bytes) == (free.cost_ps, free.peak_bytes)
        plan = Plan(result.meshes)
        assert td.verify(self.mod, plan, engine="virtual", dist=result.distribute()).equal

    def test_what_cannot_fit_is_proved(self):
        with pytest.raises(InfeasibleError, match=r"DIST0801 .*at least 0\.\d+ GiB are needed"):
            auto_shard(self.mod, self.mesh, A100, memory_bytes=1000)

    def test_the_least_that_is_named_is_about_enough(self):
        """A limit of twice the least that is proved is met."""
        with pytest.raises(TooLargeError) as caught:
            auto_shard(self.mod, self.mesh, A100, memory_bytes=1)
        least = caught.value.least_bytes
        limit = 2 * least
        peak_bytes = auto_shard(self.mod, self.mesh, A100, memory_bytes=limit).peak_bytes
        assert least <= peak_bytes <= limit


class TestWhatIsKept:
    """The peak of labels is that of the lowered program, as simulation reads it."""

    @staticmethod
    def peaks(result):
        return result.peak_bytes, td.simulate(result.program(), result.system).peak_memory_bytes

    @pytest.mark.parametrize(
        ("given", "last"),
        [("S[0]", "S[0]"), ("S[0]", "R"), ("S[1]", "S[1]"), ("R", "R"), ("R", "S[0]")],
    )
    def test_forms_that_only_earlier_readers_need_are_gone(self, given, last):
        """``p`` and ``q`` are made when ``h`` has been gathered, and ``y`` is added behind them."""
        rules = [{"param": "x", "placement": given, "stationary": True}]
        rules += [{"param": "w", "placement": "S[0]", "stationary": True}]
        rules += [{"param": "u", "placement": last, "stationary": True}]
        rules += [{"value": "h", "placement": given}, {"value": "p", "placement": "S[0]"}]
        rules += [{"value": "q", "placement": "S[0]"}, {"value": "y", "placement": last}]
        fixed = Plan.from_dict({"schema_version": 1, "mesh": {"a": 4}, "rules": rules})
        result = auto_shard(Layouts, {"a": 4}, QUICK, fixed=fixed)
        remaining, simulated = self.peaks(result)
        assert remaining == simulated

    @pytest.mark.parametrize(
        ("model", "system", "mesh"),
        [
            ("gpt?size=gpt2,layers=2,batch=16", PLAIN_A100, {"dp": 4, "tp": 2}),
            ("llama?size=70b,layers=1,batch=16", PLAIN_H100, {"dp": 4, "tp": 4}),
            ("moe?size=mixtral-8x7b,layers=1,batch=16", PLAIN_H100, {"dp": 2, "tp": 4}),
            ("vit?size=vit-l16,layers=2,batch=96", PLAIN_H100, {"tp": 24}),
        ],
    )
    def test_steps_of_training(self, model, system, mesh):
        """Weights gathered for both passes, sums that wait for their last term, stashes."""
        mod = td.train_step(td.load_model(f"zoo:{model}").mod, optimizer="adam")
        remaining, simulated = self.peaks(auto_shard(mod, mesh, system, gap=0.01))
        assert remaining == pytest.approx(simulated, rel=0.02)


def test_changes_of_form_cost_what_the_planner_charges():
    """All pairs at once against one after the other."""
    planner = Planner(RedistributionTimes(A100))
    mesh, shape = (2, 2), (8, 12)
    forms = [x for x in itertools.product([0, 1, -1, -2], repeat=2)]
    result = cost_matrix(planner.means.costs, shape, "float32", mesh, range(4), forms)
    for i, before in enumerate(forms):
        for j, after in enumerate(forms):
            if any(y == -2 and x != -2 for x, y in zip(before, after)):
                continue  # what becomes partial, the planner is never asked for
            cost = planner.plan(shape, before, after, mesh).cost
            assert result.cost[i, j] == cost, (before, after)
