# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tokens of steps with pools of caches, and of mixtures: those of the model on one device."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from tvm import ir

import tvm_distir as td
from tests.execution.serving.test_serving import serve
from tvm_distir.execution import draw_inputs
from tvm_distir.execution.serving.pooled_engines import run_together
from tvm_distir.planning.serving.batching import SchedulerOptions, StepTimes
from tvm_distir.planning.serving.engine_loop import EngineLoop, Replicas
from tvm_distir.planning.serving.workload import Requests
from tvm_distir.support.errors.tree import EngineError, SimulationError

SEQ, PAGE, ROWS = 20, 4, 6
LLAMA, MIXTURE = "zoo:llama3?size=tiny,layers=1,vocab=61", "zoo:moe?size=tiny,vocab=61"
LENGTHS, OUTPUTS = (4, 8, 1, 11, 3, 6, 2), (5, 9, 7, 8, 6, 1, 4)


@functools.cache
def serving_step(model, strategy, mesh, pools, pages=14):
    keys = f"entry=serve,batch={ROWS * pools},seq=1,past={SEQ - 1},page={PAGE},pages={pages}"
    mod = td.load_model(f"{model},{keys},pools={pools}").mod
    return td.distribute(mod, td.planning.make_plan(mod, strategy, dict(mesh)))


@functools.cache
def forward(model):
    """The model forward on one device: its module, the names of its inputs, and weights."""
    mod = td.load_model(f"{model},batch=1,seq={SEQ}").mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    drawn = dict(zip(names, draw_inputs(mod, seed=1), strict=True))
    weights = {n: 3 * v for n, v in drawn.items() if v.dtype == np.float32}
    whole = td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 1}))
    return td.compile(whole), names, weights


@functools.cache
def next_token(model, tokens):
    mod, names, weights = forward(model)
    ids = np.zeros((1, SEQ), np.int32)
    ids[0, : len(tokens)] = tokens
    values = {**weights, "input_ids": ids}
    (logits,) = td.run(mod, [values[name] for name in names], engine="virtual")
    return int(logits[0, len(tokens) - 1].argmax())


@functools.cache
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 61, length).tolist() for length in LENGTHS]


def expected(model):
    result = []
    for prompt, count in zip(prompts(), OUTPUTS, strict=True):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(next_token(model, tuple(tokens)))
        result.append(tokens[len(prompt) :])
    return result


def simulated(scheduler, pages, replicas, arrivals_s=None, step_ps=1):
    """Served requests of each replica of the native event loop, which takes requests in turn."""
    count, axis = len(LENGTHS), np.array([1, 2])
    spans = np.full((1, 2, 2), step_ps, np.int64)
    arrivals = np.zeros(count) if arrivals_s is None else 1e12 * np.array(arrivals_s)
    columns = arrivals, LENGTHS, OUTPUTS, np.full(count, -1), np.zeros(count)
    requests = Requests(*(np.array(column, np.int64) for column in columns))
    times = StepTimes(axis, axis, spans, axis, axis, spans)
    options = SchedulerOptions.parse(scheduler)
    loop = EngineLoop(times, options, pages - 1, PAGE, replicas=Replicas(replicas))
    return times, [served for _, served in loop.serve(requests)]


def compare_batches(result, replicas):
    for pool, served in enumerate(replicas):
        np.testing.assert_array_equal(result.steps[result.pools == pool], served.steps)
    assert len(result.times_s) == len(result.steps) == len(result.pools)


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("kind", ["continuous", "prefill_first", "static"])
def test_pools_are_replicas_of_the_simulated_engine(kind, engine):
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    weights = forward(LLAMA)[2]
    result = td.generate(dist, prompts(), OUTPUTS, weights, scheduler=kind, engine=engine)
    assert result.tokens == expected(LLAMA)
    compare_batches(result, simulated(f"{kind}:tokens={ROWS}", 14, 2)[1])


def test_pools_work_in_the_same_steps():
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    result = td.generate(dist, prompts(), OUTPUTS, forward(LLAMA)[2], engine="virtual")
    counts = np.bincount(result.pools)
    together = min(counts)
    assert result.pools[: 2 * together].tolist() == [0, 1] * together
    assert len(set(result.times_s)) == max(counts)


@pytest.mark.parametrize("pages", [6, 7])
def test_a_pool_preempts_its_own_requests(pages):
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2, pages)
    scheduler = f"continuous:tokens={ROWS},requests=4"
    _, replicas = simulated(scheduler, pages, 2)
    assert sum(served.preemptions.sum() for served in replicas) > 0
    result = td.generate(
        dist, prompts(), OUTPUTS, forward(LLAMA)[2], scheduler=scheduler, engine="virtual"
    )
    assert result.tokens == expected(LLAMA)
    compare_batches(result, replicas)


def test_pools_have_clocks_of_their_own():
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    arrivals = [0.0, 0.0, 0.5, 3.5, 3.5, 40.0, 41.0]
    times, replicas = simulated(f"continuous:tokens={ROWS}", 14, 2, arrivals, 10**12)
    result = td.generate(
        dist, prompts(), OUTPUTS, forward(LLAMA)[2],
        times=times, arrivals_s=arrivals, engine="virtual",
    )  # fmt: skip
    assert result.tokens == expected(LLAMA)
    compare_batches(result, replicas)


def test_fewer_requests_than_pools():
    dist = serving_step(LLAMA, "data_parallel", (("dp", 4),), 4)
    result = td.generate(dist, prompts()[:3], 4, forward(LLAMA)[2], engine="virtual")
    assert result.tokens == [
        tokens[:4] if len(tokens) > 3 else tokens for tokens in expected(LLAMA)[:3]
    ]
    assert sorted(set(result.pools.tolist())) == [0, 1, 2]


@pytest.mark.parametrize("stopped", range(4))
def test_a_stop_token_ends_a_request_of_a_pool(stopped):
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    full = expected(LLAMA)
    stop = full[stopped][2]
    result = td.generate(dist, prompts(), OUTPUTS, forward(LLAMA)[2], stop=stop, engine="virtual")
    assert result.tokens == [t[: t.index(stop) + 1] if stop in t else t for t in full]


MESHES = [
    (LLAMA, "data_parallel+megatron", (("dp", 2), ("tp", 2)), 2),
    (MIXTURE, "megatron", (("tp", 2),), 1),
    (MIXTURE, "expert_parallel", (("ep", 2),), 2),
]


@pytest.mark.parametrize(("model", "strategy", "mesh", "pools"), MESHES)
def test_tokens_of_a_plan_are_those_of_one_device(model, strategy, mesh, pools):
    dist = serving_step(model, strategy, mesh, pools)
    result = td.generate(dist, prompts(), OUTPUTS, forward(model)[2])
    assert result.tokens == expected(model)
    compare_batches(result, simulated(f"continuous:tokens={ROWS}", 14, pools)[1])


def test_more_tokens_than_the_rows_of_a_pool_are_refused():
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    with pytest.raises(EngineError, match=r"DIST0602.*a pool has 6 rows"):
        td.generate(dist, [[1]], 2, forward(LLAMA)[2], scheduler="continuous:tokens=7")


def test_modules_with_cache_objects_are_refused():
    """MLC-LLM's modules make TVM's paged cache by a function, which ``generate`` cannot drive."""
    mod = td.load_model(f"{LLAMA},batch=1,seq=4").mod
    mlc = ir.IRModule({"prefill": mod["main"], "create_tir_paged_kv_cache": mod["main"]})
    with pytest.raises(EngineError, match=r"DIST0602.*create_tir_paged_kv_cache.*MLC-LLM"):
        td.generate(mlc, [[1]], 2)


def test_the_failure_of_a_pool_ends_the_others():
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2, pages=4)
    with pytest.raises(SimulationError, match="DIST0761"):
        td.generate(dist, [[1] * 4, [1] * 14], 3, forward(LLAMA)[2], engine="virtual")


def test_a_failure_of_a_step_ends_all_engines():
    ended = []

    def serve_until_the_end(run_step):
        try:
            while True:
                run_step([(0, 0, 1)])
        finally:
            ended.append(True)

    def fail(_):
        raise RuntimeError("a rank failed")

    with pytest.raises(RuntimeError, match="a rank failed"):
        run_together([serve_until_the_end] * 3, fail)
    assert ended == [True] * 3


def test_a_job_generates_with_pools(tmp_path):
    pytest.importorskip("torch", reason="extra torch")
    dist = serving_step(LLAMA, "data_parallel", (("dp", 2),), 2)
    td.deploy(dist, tmp_path / "step", forward(LLAMA)[2])
    requests = {"prompts": prompts(), "tokens": OUTPUTS}
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    out = tmp_path / "y.npz"
    serve(2, tmp_path / "step", "--requests", tmp_path / "requests.json", "-o", out)
    found = np.load(out)
    rows = found["tokens"].tolist()
    assert [[token for token in row if token >= 0] for row in rows] == expected(LLAMA)
    assert set(found["pools"].tolist()) == {0, 1}
