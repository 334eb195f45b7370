# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Surfaces of steps against the pipeline, and ways of serving found by search."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.nightly import nightly_but
from tvm_distir.hardware import System
from tvm_distir.interface.command.__main__ import main
from tvm_distir.planning.serving import surface as surface_module
from tvm_distir.planning.serving.batching import SchedulerOptions
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_engine import EngineMemory
from tvm_distir.planning.serving.serving_report import serve_analyze
from tvm_distir.planning.serving.serving_search import search_serving
from tvm_distir.planning.serving.speculation import Speculation
from tvm_distir.planning.serving.surface import Surface
from tvm_distir.support.errors.tree import SimulationError

SYSTEM = "dgx-h100"
MODELS = [
    ("llama3", "megatron", {"tp": 8}),
    ("gemma", "megatron", {"tp": 2}),
    ("mixtral", "expert_parallel", {"ep": 2}),
    ("llama3", "pipeline+megatron", {"pp": 2, "tp": 2}),
]
"""More of them, at more sizes, are those of ``scripts/checks/serving_laws.py``."""


@pytest.mark.parametrize(("family", "strategy", "mesh"), nightly_but(MODELS, {1, 2, 3}))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_surface_is_the_pipeline_to_the_picosecond(family, strategy, mesh):
    served = ServedModel(f"zoo:{family}?size=tiny", strategy, mesh, System.load(SYSTEM))
    assert differing_sizes(served, 3) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_experts_that_all_work_in_each_sample():
    """Sixteen parts select all experts of each sample; the formulas hold for few tokens too."""
    model = "zoo:deepseek?size=tiny,layers=1,dense_layers=0,experts=256,top_k=8"
    served = ServedModel(model, "expert_parallel", {"ep": 16}, System.load(SYSTEM))
    surface = Surface(served)
    assert surface.prefill_s(2) > 0
    for tokens, past in ((64, 0), (700, 129)):
        whole = served.study(served.pools, tokens, past).result.time_s
        assert surface.prefill_s(tokens, past) == whole
    symbols = np.array([[1, 2, 5], [0, 3, 4], [16, 16, 16]])  # tokens, past, working experts
    assert not any(term[2] for term in surface._extra(symbols, True, 1))


def test_a_model_whose_weights_fill_the_memory_needs_one_step_of_each_depth(monkeypatch):
    """Steps are compiled for their times only where requests have room beside the weights."""
    compiled, study = [], ServedModel.study

    def counted(served, *sizes):
        compiled.append(sizes)
        return study(served, *sizes)

    monkeypatch.setattr(ServedModel, "study", counted)
    model, work = "zoo:llama?size=8b,layers=12", "poisson:1,in=16,out=4"
    system = replace(System.load("rtx-4090"), kernels="fused")
    small = replace(system, device=replace(system.device, memory_capacity_GiB=2.0))
    with pytest.raises(SimulationError, match=r"DIST0761.*caches of 0 tokens") as refusal:
        serve_analyze(model, "megatron", {"tp": 1}, small, work)
    kinds = 1 + len(("fp8", "int4"))
    assert len(compiled) == 2 * kinds and "--quantize" not in refusal.value.remedy
    roomy = EngineMemory.of_model(
        ServedModel(model, "megatron", {"tp": 1}, system), SchedulerOptions()
    )
    memory, least = roomy.memory, roomy.surface.least_memory()
    assert (least.weight_bytes, least.token_bytes) == (memory.weight_bytes, memory.token_bytes)
    assert least.workspace_bytes == 0 < memory.workspace_bytes


def test_many_steps_are_those_by_themselves(monkeypatch):
    """Parts of rows are in order of size, and depths and kernels share interpolations."""
    served = ServedModel(
        "zoo:llama3?size=tiny,layers=9", "megatron", {"tp": 2}, System.load("h100-serving")
    )
    surface, rng = Surface(served), np.random.default_rng(3)
    assert surface._depths is not None
    first, before = rng.integers(1, 400, 8), rng.integers(0, 3, 8) * 1000
    alone = [
        (surface.decode_ps(*size)[0], surface.prefill_ps(*size)[0])
        for size in zip(first[:, None], before[:, None], strict=True)
    ]
    monkeypatch.setattr(surface_module, "_MOST_ROWS", 3)
    decode_ps = surface.decode_ps(first, before)
    together = zip(decode_ps, surface.prefill_ps(first, before), strict=True)
    assert list(together) == alone
    costs = surface.costs(first, before)
    np.testing.assert_array_equal(costs.time_ps, decode_ps)
    peaks = [
        surface.costs(*size).peak_bytes[0]
        for size in zip(first[:3, None], before[:3, None], strict=True)
    ]
    assert costs.peak_bytes[:3].tolist() == peaks
    # A device has 256 rows of the table of tokens, which a look-up of more reads once.
    for batch in (257, 324):
        assert surface.decode_s(batch, 0) == served.study(batch, 1, 0).result.time_s


def differing_sizes(served, count, new=1):
    """Return the sizes of steps at which a surface is not the pipeline: few tokens, and many."""
    surface, rng, differing = Surface(served, new), np.random.default_rng(1), []
    least = 2 if served.config[0].experts else 16
    for number in range(count):
        batch = (number + 1 if number % 2 else int(rng.integers(1, 150))) * served.pools
        tokens = number + least if number % 2 else int(rng.integers(least, 6000))
        past = int(rng.integers(0, 9000))
        if surface.decode_s(batch, past) != served.study(batch, new, past).result.time_s:
            differing.append((batch, new, past))
        whole = served.study(served.pools, tokens, past).result.time_s
        if surface.prefill_s(tokens, past) != whole:
            differing.append((served.pools, tokens, past))
    return differing


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_reads_the_experts_of_its_tokens():
    """One token reads ``top_k`` experts of each layer; many read all, as in the model forward."""
    model = "zoo:deepseek?size=tiny,layers=2,experts=64,top_k=4"
    served = ServedModel(model, "megatron", {"tp": 1}, System.load(SYSTEM))
    hidden, inner = 64, 48
    for batch, experts in ((1, 4), (2, 8), (2000, 64)):
        read = {
            op.name: op.bytes_read - op.flops // (2 * inner) // experts * 64 * 4
            for fn in served.study(batch, 1, 0).program.functions.values()
            for op in fn.ops
            if op.op == "relax.dist.expert_matmul" and op.name in ("gate", "up")
        }
        assert read == dict.fromkeys(("gate", "up"), experts * hidden * inner * 4)


def test_steps_of_several_tokens_and_narrow_caches():
    served = ServedModel(
        "zoo:llama3?size=tiny", "megatron", {"tp": 1}, System.load(SYSTEM), "float8_e4m3fn"
    )
    surface = Surface(served, new=4)
    assert surface.decode_s(7, 333) == served.study(7, 4, 333).result.time_s
    wide = Surface(ServedModel("zoo:llama3?size=tiny", "megatron", {"tp": 1}, System.load(SYSTEM)))
    assert surface.memory(64).token_bytes * 4 == wide.memory(64).token_bytes


def test_memory_is_that_of_the_pipeline():
    """Weights, caches and workspace are at least the peak of a step, and not much more."""
    model = "zoo:llama3?size=3.1-8b,layers=4"
    served = ServedModel(model, "megatron", {"tp": 2}, System.load(SYSTEM))
    memory = Surface(served).memory(1024)
    peak = served.study(1, 1024, 3072).result.peak_memory_bytes
    whole = memory.weight_bytes + memory.token_bytes * 4096 + memory.workspace_bytes
    assert peak <= whole <= 1.5 * peak


MODEL = "zoo:llama3?size=3.1-8b,layers=4,vocab=4096"
DRAFT = "zoo:llama3?size=3.1-8b,layers=1,vocab=4096,ffn=1024"
LENGTHS = ("in=64,out=16", "in=uniform:16-900,out=uniform:2-40")
LEVELS = [
    ServiceLevels(ttft, tpot) for ttft in (0.004, 0.02, None) for tpot in (0.0006, 0.001, None)
]
SPACES = list(itertools.product(LENGTHS, LEVELS, (False, True), (1, 2)))[:50]
"""``scripts/checks/serving_laws.py`` searches all of them, the test two of two devices."""


@contextmanager
def fitted_once():
    """Fit the steps of each plan once."""
    surfaces, engines = {}, {}
    make, tabulate = EngineMemory.of_model, EngineMemory.with_times

    def of_model(served, options):
        system = served.system.name, served.system.device.price_per_hour
        types = served.kv_dtype, served.system.kernels
        key = (served.model, served.strategy, tuple(served.mesh.items()), system, types)
        if key not in surfaces:
            surfaces[key] = make(served, options).surface
        return EngineMemory(served, surfaces[key], options)

    def with_times(memory):
        if memory.surface not in engines:
            engines[memory.surface] = tabulate(memory)
        return engines[memory.surface].with_options(memory.options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineMemory, "of_model", staticmethod(of_model))
        patch.setattr(EngineMemory, "with_times", with_times)
        yield


@pytest.fixture(scope="module")
def known_engines():
    with fitted_once():
        yield


def test_the_best_is_that_of_exhaustive_search(known_engines):
    assert compare_with_exhaustive(SPACES[35::8]) > 0


def compare_with_exhaustive(spaces):
    """Compare searches with those without bounds; return the choices that bounds cut."""
    cut = 0
    for lengths, levels, apart, devices in spaces:
        matches = [
            search_serving(
                "zoo:llama3?size=tiny", devices, SYSTEM, f"poisson:1,{lengths}", levels,
                schedulers=("continuous:tokens=128", "prefill_first:tokens=512"),
                apart=apart, front=False, bounds=bounds, stages=(1, 2),
            )
            for bounds in (True, False)
        ]  # fmt: skip
        best = [r.choices[0].per_device if r.choices else 0.0 for r in matches]
        assert best[0] == best[1]
        cut += len(matches[0].cuts)
        assert len(matches[0].choices) + len(matches[0].cuts) == len(matches[1].choices)
        for choice in matches[1].choices:
            assert choice.requests_per_s <= choice.bound_per_s
    return cut


def test_no_point_of_the_front_is_dominated(known_engines):
    result = search_serving(MODEL, 2, SYSTEM, "poisson:1,in=64,out=16", ServiceLevels())
    assert len(result.front) > 3
    for a, b in itertools.combinations(result.front, 2):
        assert not (b.per_user >= a.per_user and b.per_device >= a.per_device)
        assert not (a.per_user >= b.per_user and a.per_device >= b.per_device)


def test_a_report_says_why_levels_break(known_engines):
    report = serve_analyze(
        MODEL, "megatron", {"tp": 1}, SYSTEM, "poisson:9000,in=256,out=16",
        levels=ServiceLevels(0.01, 0.0001),
    )  # fmt: skip
    assert report.broken == ["TTFT", "TPOT"]
    assert len(report.causes) == len(report.advice) == 2
    assert "queue" in report.text()


def test_devices_apart_keep_prompts_from_those_that_decode(known_engines):
    """The time per token is that of steps that decode, and tokens are conserved."""
    work = "poisson:40,in=2048,out=64"
    together, apart = (
        serve_analyze(MODEL, "megatron", {"tp": 1}, SYSTEM, work, **more)
        for more in ({}, {"prefill_mesh": {"tp": 1}})
    )
    assert apart.devices == 2
    assert apart.summary.tpot.p90_s <= together.summary.tpot.p90_s
    assert apart.summary.ttft.p50_s >= apart.alone_ttft_s


def test_speculation_pays_where_tokens_are_accepted(known_engines):
    plain, all_accepted, none_accepted = (
        serve_analyze(
            MODEL, "megatron", {"tp": 1}, SYSTEM,
            "closed:1,in=64,out=64", **more,
        )
        for more in (
            {},
            {"draft": DRAFT, "draft_tokens": 3, "acceptance": 1.0},
            {"draft": DRAFT, "draft_tokens": 3, "acceptance": 0.0},
        )
    )  # fmt: skip
    assert all_accepted.summary.tpot.mean_s < plain.summary.tpot.mean_s / 2
    assert none_accepted.summary.tpot.mean_s > plain.summary.tpot.mean_s


def test_a_search_tries_speculation(known_engines):
    """A level that only a draft model keeps is kept with it, and the choice says so."""
    plain = serve_analyze(MODEL, "megatron", {"tp": 1}, SYSTEM, "closed:1,in=64,out=64")
    result = search_serving(
        MODEL, 1, SYSTEM, "poisson:1,in=64,out=64",
        ServiceLevels(tpot_s=0.8 * plain.alone_tpot_s),
        schedulers=("continuous:tokens=512",), front=False,
        speculation=Speculation(DRAFT, 3, 0.95),
    )  # fmt: skip
    assert [choice.plan for choice in result.choices] == ["megatron tp=1 x 1, 3 draft tokens"]
    assert result.choices[0].requests_per_s > 0
    assert result.best is not None and "3 draft tokens" in result.best.text()


def test_the_commands(capsys, tmp_path, known_engines):
    common = [MODEL, "--system", SYSTEM, "--workload", "poisson:50,in=64,out=8"]
    assert main(["serve-analyze", *common, "--mesh", "tp=1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["steady"] is True
    picture = tmp_path / "front.svg"
    args = ["serve-search", *common, "--devices", "2", "--tpot", "2ms"]
    page = tmp_path / "search.html"
    assert main([*args, "--picture", str(picture), "--report", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert html.count("<circle") == picture.read_text(encoding="utf-8").count("<circle")
    assert html.count("<h2>") >= 3
    assert "zoo:llama3" in html.partition("<pre>")[2]
    out = capsys.readouterr().out
    assert re.match(r".+ serves most, [\d.]+ requests/s/device, and keeps TPOT p90 <= ", out)
    assert picture.read_text(encoding="utf-8").count("<circle") > 3
    assert main(["serve-analyze", *common, "--mesh", "tp=1", "--ttft", "5"]) == 2
    assert main([*args, "--picture", str(tmp_path / "none" / "front.svg")]) == 2
    assert "DIST0153 --picture" in capsys.readouterr().err
    guess = ["--mesh", "tp=1", "--draft-tokens", "2", "--acceptance", "7"]
    assert main(["serve-analyze", *common, *guess]) == 1
    assert "DIST0761 acceptance" in capsys.readouterr().err


@pytest.mark.parametrize("strategy", ["pipeline", "pipeline+megatron"])
def test_each_stage_has_a_layer(strategy, capsys):
    words = f"serve-analyze zoo:llama?size=tiny,layers=2 --strategy {strategy} --mesh pp=4,tp=1"
    words = words.replace(",tp=1", "") if strategy == "pipeline" else words
    assert main([*words.split(), "--system", SYSTEM, "--workload", "burst,in=16,out=4"]) == 1
    assert 'DIST0233 strategy "pipeline": 4 stages' in capsys.readouterr().err


def test_a_trace_is_not_searched(tmp_path):
    """Its rate and lengths are given: they were replaced by the default ones without a word."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,30,4\n")
    with pytest.raises(SimulationError, match=r"DIST0761.*rate"):
        search_serving(MODEL, 2, SYSTEM, str(path), ServiceLevels())
