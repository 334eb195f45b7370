# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The choices of a search: all that can be analyzed, each with the figures of its analysis."""

from __future__ import annotations

import math
import random

import pytest

from tests.nightly import nightly_but
from tests.planning.serving.test_serving_surface import SYSTEM, fitted_once
from tvm_distir.core.plan import mesh_text
from tvm_distir.hardware import System
from tvm_distir.planning.serving.batching import SchedulerOptions
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_engine import ServingEngine
from tvm_distir.planning.serving.serving_report import serve_analyze
from tvm_distir.planning.serving.serving_run import most_requests_per_s, run_deployment
from tvm_distir.planning.serving.serving_search import search_serving
from tvm_distir.planning.serving.serving_trials import ServingTrials
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.support.errors.tree import DistIRError, SimulationError

SCHEDULERS = ("continuous:tokens=64", "prefill_first:tokens=512")
WORK = "poisson:1,in=64,out=uniform:1-16,seed=3"


@pytest.fixture(scope="module", autouse=True)
def known_engines():
    with fitted_once():
        yield


def searched(model, devices=2, levels=None, **options):
    options = {"schedulers": SCHEDULERS, "front": False, **options}
    return search_serving(model, devices, SYSTEM, WORK, levels or ServiceLevels(), **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", ["llama3", "deepseek"])
def test_a_search_lists_what_can_be_analyzed(model):
    """As tried, or as cut; latent attention too, whose caches each device has whole."""
    layers = "layers=1,dense_layers=0" if model == "deepseek" else "layers=2"
    text = f"zoo:{model}?size=tiny,{layers}"
    result = searched(text)
    known = [choice.plan for choice in result.choices] + [cut.plan for cut in result.cuts]
    plans = [("megatron", {"tp": 1}), ("megatron", {"tp": 2})]
    plans += [("expert_parallel", {"ep": 2})] * (model == "deepseek")
    for strategy, mesh in plans:
        report = serve_analyze(text, strategy, mesh, SYSTEM, "burst,in=9,out=2")
        assert report.summary.requests > 0
        plan = report.plan.rpartition(" x ")[0]
        assert sum(name.rpartition(" x ")[0] == plan for name in known) == len(SCHEDULERS)


def drawn_plan(rng, experts):
    """Return a plan of up to four devices, as a strategy and a mesh."""
    size = rng.choice([1, 2, 3, 4])
    kinds = {"megatron": {"tp": size}}
    if size % 2 == 0:
        kinds["pipeline+megatron"] = {"pp": 2, "tp": size // 2}
    if experts and size > 1:
        kinds["expert_parallel"] = {"ep": size}
    if experts and size == 4:
        kinds["expert_parallel+megatron"] = {"ep": 2, "tp": 2}
    return rng.choice(list(kinds.items()))


def compare_with_analyses(seeds):
    """Analyze drawn plans, and look for each in a search; return how many an analysis takes."""
    taken = 0
    for seed in seeds:
        rng = random.Random(seed)
        family = rng.choice(["llama3", "mixtral"])
        model, scheduler = f"zoo:{family}?size=tiny,layers=2", rng.choice(SCHEDULERS)
        strategy, mesh = drawn_plan(rng, family == "mixtral")
        size = math.prod(mesh.values())
        replicas = 1 if size == 3 else rng.choice([1, 2])
        kv_dtype, weights = rng.choice(["", "float8_e4m3fn"]), rng.choice(["", "fp8"])
        result = search_serving(
            model, size * replicas, SYSTEM, WORK, ServiceLevels(), schedulers=[scheduler],
            kv_dtypes=[kv_dtype], weights=[weights], stages=(1, 2), front=False,
        )  # fmt: skip
        known = [f"{choice.plan}; {choice.scheduler}" for choice in result.choices]
        known += [cut.plan for cut in result.cuts]
        plan = f"{strategy} {mesh_text(mesh)}"
        try:
            report = serve_analyze(
                model, strategy, mesh, SYSTEM, "burst,in=9,out=2,count=4", replicas=replicas,
                scheduler=scheduler, kv_dtype=kv_dtype, weights=weights,
            )  # fmt: skip
        except DistIRError:
            assert any(name == plan or name.startswith(f"{plan},") for name in known), (seed, plan)
            continue
        taken += 1
        alike = [name for name in known if name.startswith(report.plan)]
        assert [name.endswith(f"; {report.scheduler}") for name in alike] == [True], (seed, plan)
        assert ("float8_e4m3fn" in alike[0], "weights=fp8" in alike[0]) == (
            bool(kv_dtype), bool(weights)
        )  # fmt: skip
    return taken


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seeds", nightly_but([[0, 1], [1, 2]], {1}))
def test_drawn_plans_are_tried_or_cut(seeds):
    """Ten of them are in scripts/checks/serving_laws.py."""
    assert compare_with_analyses(seeds) > 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_devices_that_no_replica_needs_are_idle():
    """Two of three devices serve by a plan of two, with a third of their rate per device."""
    three, two = (searched("zoo:llama3?size=tiny", devices, bounds=False) for devices in (3, 2))
    rates = [
        {
            choice.scheduler: choice.requests_per_s
            for choice in result.choices
            if choice.plan.startswith("megatron tp=2 x 1")
        }
        for result in (three, two)
    ]
    assert rates[0] == rates[1]
    assert {choice.plan for choice in three.choices} == {
        "megatron tp=1 x 3", "megatron tp=2 x 1 (1 of 3 devices idle)",
    }  # fmt: skip
    assert [cut.plan for cut in three.cuts] == ["megatron tp=3"]  # three do not divide its heads
    assert {choice.devices for choice in three.choices} == {3}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model", "strategy", "mesh"),
    [
        ("llama3", "megatron", {"tp": 1}),
        ("mixtral", "expert_parallel", {"ep": 2}),
    ],
)
def test_data_parallelism_serves_no_more_than_replicas(model, strategy, mesh):
    """Why a search does not try it: its parts do the work of replicas, and wait for each other."""
    text, work = f"zoo:{model}?size=tiny,layers=1", Workload.parse(WORK)
    options = SchedulerOptions(tokens=512)
    plans = (f"data_parallel+{strategy}", {"dp": 2, **mesh}), (strategy, mesh)
    parts, replica = (
        ServingEngine.of(ServedModel(text, plan, sizes, System.load(SYSTEM)), options)
        for plan, sizes in plans
    )
    assert parts.served.devices == 2 * replica.served.devices
    assert parts.capacity_per_s(work) <= 1.02 * 2 * replica.capacity_per_s(work)


def test_experts_and_their_widths_are_divided_together():
    """Over both axes of a mesh; a model without experts has one."""
    plans = {}
    for model in ("llama3", "deepseek"):
        options = [SchedulerOptions()], False, "round_robin", (1, 2)
        search = ServingTrials(
            f"zoo:{model}?size=tiny", 4, System.load(SYSTEM), Workload.parse(WORK),
            ServiceLevels(), *options,
        )  # fmt: skip
        plans[model] = [f"{strategy} {mesh_text(mesh)}" for strategy, mesh in search._plans()]
    dense = [f"megatron tp={n}" for n in (1, 2, 4)]
    dense += [f"pipeline+megatron pp=2,tp={n}" for n in (1, 2)]
    experts = ["expert_parallel ep=2", "expert_parallel ep=4", "expert_parallel+megatron ep=2,tp=2"]
    assert sorted(plans["llama3"]) == sorted(dense)
    assert sorted(plans["deepseek"]) == sorted(
        [*dense, *experts, "pipeline+expert_parallel pp=2,ep=2"]
    )


def test_devices_apart_have_schedulers_of_their_own():
    result = searched("zoo:llama3?size=tiny", apart=True, bounds=False)
    pairs = [c.scheduler for c in result.choices if c.plan.startswith("prefill")]
    assert len(pairs) == len(set(pairs)) == 4
    assert sum(pair.startswith("prefill ") for pair in pairs) == 2


@pytest.mark.parametrize("apart", [False, True])
def test_the_best_is_what_its_analysis_says(apart):
    """The page of a search and that of the analysis of its best choice have the same figures."""
    model, levels = "zoo:llama3?size=tiny", ServiceLevels(1.0, 1.0)
    result = searched(model, levels=levels, apart=apart, bounds=False)
    chosen = [c for c in result.choices if c.plan.startswith("prefill") == apart]
    assert result.best is not None
    known = {"levels": levels}
    if not apart:
        known["replicas"] = result.best.devices // result.mesh["tp"]
        known["scheduler"] = result.best.scheduler
        again = serve_analyze(
            model, result.strategy, result.mesh, SYSTEM, result.best.workload, **known
        )
        assert again.to_dict() == result.best.to_dict()
    else:
        first, _, other = chosen[0].scheduler.partition(", decode ")
        known["scheduler"] = other or first
        known["prefill_scheduler"] = first.removeprefix("prefill ") if other else ""
        again = serve_analyze(
            model, "megatron", {"tp": 1}, SYSTEM,
            f"poisson:{chosen[0].requests_per_s},in=64,out=uniform:1-16,seed=3",
            prefill_mesh={"tp": 1}, **known,
        )  # fmt: skip
        assert again.summary == chosen[0].summary


def test_requests_of_one_token_are_served_by_devices_apart():
    """They end where their caches are filled; they were left out of all figures."""
    report = serve_analyze(
        "zoo:llama3?size=tiny", "megatron", {"tp": 1}, SYSTEM,
        "burst,in=64,out=uniform:1-2,count=100", prefill_mesh={"tp": 1},
    )  # fmt: skip
    assert report.summary.requests == 100
    tokens = sum(int(part.requests.output_tokens.sum()) for part in report.served)
    made = sum(int(part.steps[:, 2].sum()) for part in report.served)
    assert tokens == made + 100


def test_devices_apart_have_a_system_of_their_own():
    """A slower one fills caches later, and tokens after the first come as before."""
    model, plan = "zoo:llama3?size=tiny", ("megatron", {"tp": 1})
    work, apart = "closed:2,in=8192,out=16", {"prefill_mesh": {"tp": 1}}
    plain = serve_analyze(model, *plan, "dgx-h100", work, **apart)
    other = serve_analyze(model, *plan, "dgx-h100", work, prefill_system="dgx-a100", **apart)
    assert other.system == "dgx-a100 and dgx-h100"
    assert other.summary.ttft.mean_s > plain.summary.ttft.mean_s
    assert other.summary.tpot.mean_s == pytest.approx(plain.summary.tpot.mean_s, rel=0.2)
    with pytest.raises(SimulationError, match="DIST0761 prefill_mesh"):
        serve_analyze(model, *plan, "dgx-h100", work, prefill_system="dgx-a100")


def test_overload_is_said_first():
    """Of an open load three times above capacity, with what is served, in text and JSON."""
    model = "zoo:llama3?size=tiny"
    plain = serve_analyze(model, "megatron", {"tp": 1}, SYSTEM, WORK)
    assert not plain.summary.overloaded
    rate = 3 * plain.summary.capacity_per_s
    report = serve_analyze(
        model, "megatron", {"tp": 1}, SYSTEM, WORK.replace("poisson:1,", f"poisson:{rate},"),
        levels=ServiceLevels(ttft_s=1e6),
    )  # fmt: skip
    assert report.text().startswith("overloaded: ")
    assert "not steady" in report.text()
    summary = report.to_dict()["summary"]
    assert summary["overloaded"] is True
    assert summary["requests_per_s"] <= summary["capacity_per_s"] < summary["offered_per_s"] / 2.8
    assert report.broken == ["TTFT"]
    assert "times as fast" in report.causes[0]


def trials(levels=None, apart=False):
    """Return the deployments of one device, or of two that serve apart, and what rates them."""
    options = [SchedulerOptions.parse(text) for text in SCHEDULERS]
    search = ServingTrials(
        "zoo:llama3?size=tiny,layers=2", 1 + apart, System.load(SYSTEM), Workload.parse(WORK),
        levels or ServiceLevels(), options, True, "round_robin", (1,),
    )  # fmt: skip
    search.engines(search.system, "", None)
    return search, list(search._deployments(apart))


@pytest.mark.parametrize("apart", [False, True])
def test_the_bound_of_rates_is_above_all_that_are_served(apart):
    """Of every choice, also at twice the bound; the ends of a window add less than 1 in 1,000."""
    search, deployments = trials(apart=apart)
    for deployment in deployments:
        bound = most_requests_per_s(deployment, search.work)
        for rate in (0.8 * bound, 2 * bound):
            work = search.work.at_rate(rate)
            summary, _ = run_deployment(deployment, work, search.levels)
            assert summary.requests_per_s <= 1.001 * bound
            assert summary.overloaded or summary.requests_per_s == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("kind", ["TPOT", "TTFT"])
def test_choices_are_cut_at_levels_that_no_user_gets(kind):
    """A tiny model takes the time of the host, whatever the context: the bounds are exact."""
    _, deployments = trials()
    work = Workload.parse("closed:1,in=64,out=2")
    for deployment in deployments:
        alone, _ = run_deployment(deployment, work, ServiceLevels())
        seen_s = alone.tpot.mean_s if kind == "TPOT" else alone.ttft.mean_s
        for share in (0.9, 1.01):
            search, _ = trials(ServiceLevels(**{f"{kind.lower()}_s": share * seen_s}))
            assert search._cut(deployment, math.inf).startswith(kind if share < 1 else ""), share
            assert bool(search._cut(deployment, math.inf)) == (share < 1), share


@pytest.mark.parametrize("apart", [False, True])
def test_bounds_do_not_change_the_best(apart):
    """Of all choices, each tried; what a bound cuts serves no more than the best."""
    short, full = (
        searched("zoo:llama3?size=tiny,layers=2", apart=apart, bounds=bounds)
        for bounds in (True, False)
    )
    rates = {f"{c.plan}; {c.scheduler}": c.per_device for c in full.choices}
    tried = {f"{c.plan}; {c.scheduler}": c.per_device for c in short.choices}
    assert tried.items() <= rates.items()
    assert max(tried.values()) == max(rates.values())
    assert short.cuts and {cut.plan for cut in short.cuts} == rates.keys() - tried.keys()
