# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Host times of serving engines, runs of a given length, and types of weights."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.nightly import nightly_but
from tests.planning.serving.one_engine import serve_requests
from tvm_distir.hardware import System, system_names
from tvm_distir.planning.serving.batching import SchedulerOptions, StepTimes
from tvm_distir.planning.serving.engine_loop import Replicas
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_engine import ServingEngine
from tvm_distir.planning.serving.serving_run import ServingSetup, run_deployment
from tvm_distir.planning.serving.surface import Surface
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.planning.weight_types import with_weights
from tvm_distir.support.errors.tree import UsageError

MODEL = "zoo:llama3?size=tiny,dtype=bfloat16"


def constant_times(decode_us: int, prefill_us: int) -> StepTimes:
    """Return times of steps that do not depend on their sizes."""
    rows, columns = np.array([1, 4096]), np.array([0, 65536])
    tokens = np.array([2, 512, 32768])
    decode = np.full((1, 2, 2), decode_us * 10**6)
    prefill = np.full((1, 3, 2), prefill_us * 10**6)
    return StepTimes(rows, columns, decode, tokens, columns, prefill)


@pytest.mark.parametrize("tokens", [500, 2000])
def test_the_host_adds_its_time_to_requests_and_steps(tokens: int) -> None:
    """A prompt, then 10 tokens: by hand, from 100 us of each kind of step."""
    times = constant_times(100, 100).with_host(request_us=3.0)
    options = SchedulerOptions(tokens=4096, step_overhead_us=7.0)
    work = Workload.parse(f"burst,in={tokens},out=11")
    served = serve_requests(work.draw(1), times, options, 4096, 16, host_ps=500 * 10**6)
    assert served.first_ps[0] == pytest.approx((500 + 100 + 7) * 10**6)
    assert served.finish_ps[0] - served.first_ps[0] == pytest.approx(10 * (100 + 7 + 3) * 10**6)


def test_each_part_of_data_parallelism_has_a_host() -> None:
    """Four requests of two parts take the host's time of two, beside that of the devices."""
    spent_ps = []
    for pools in (1, 2):
        served = SimpleNamespace(
            system=System.load("h100-serving"), pools=pools, page=16, stages=1, devices=pools
        )
        times, options = constant_times(100, 100), SchedulerOptions(tokens=64)
        engine = ServingEngine(served, None, options, times)  # type: ignore[arg-type]
        engine.__dict__["pages"] = 4096
        ((_, run),) = engine.serve(Workload.parse("burst,in=16,out=9").draw(4), Replicas())
        spent_ps.append(int(run.finish_ps.max() - run.first_ps.max()))
    request_ps = round(System.load("h100-serving").constant("serving_request_us") * 1e6)
    assert spent_ps[0] - spent_ps[1] == pytest.approx(8 * 2 * request_ps, rel=1e-6)


def test_a_system_gives_the_host_time_that_the_scheduler_leaves_open() -> None:
    system = System.load("h100-serving")
    stated = SchedulerOptions(step_overhead_us=1.0)
    assert stated.of_system(system) == stated
    assert SchedulerOptions().of_system(system).step_overhead_us == system.constant(
        "serving_step_us"
    )
    assert SchedulerOptions().of_system(System.load("h100")).step_overhead_us == 0.0


def test_a_run_of_a_given_length_counts_all_of_its_requests() -> None:
    served = ServedModel(MODEL, "megatron", {"tp": 1}, System.load("h100-serving"))
    engine = ServingEngine.of(served, SchedulerOptions())
    work = Workload.parse("closed:4,in=uniform:10-50,out=5,count=24")
    summary, runs = run_deployment(ServingSetup(engine), work, ServiceLevels())
    assert summary.requests == 24
    latencies = (runs[0].first_ps - runs[0].requests.arrival_ps) / 1e12
    assert summary.ttft.mean_s == pytest.approx(latencies.mean())


SERVING_SYSTEMS = [name for name in system_names() if name.endswith(("-serving", "-trtllm"))]


@pytest.mark.parametrize("name", nightly_but(SERVING_SYSTEMS, {1}))
def test_one_token_more_in_a_step_changes_ttft_by_little(name: str) -> None:
    """Of a model with its kernels and host times, near half of what can be served."""
    served = ServedModel(f"{MODEL},layers=8", "megatron", {"tp": 1}, System.load(name))
    engine, ttft_s = ServingEngine.of(served, SchedulerOptions()), []
    work = Workload.parse("poisson:1,in=1024,out=16,count=400")
    for tokens in (512, 513):
        setup = ServingSetup(engine.with_options(SchedulerOptions(tokens=tokens)))
        rate = ttft_s[0][1] if ttft_s else setup.capacity_per_s(work) / 2
        summary, _ = run_deployment(setup, work.at_rate(rate), ServiceLevels())
        ttft_s.append((summary.ttft.mean_s, rate))
    assert ttft_s[1][0] == pytest.approx(ttft_s[0][0], rel=0.1)


def test_caches_have_the_memory_that_narrow_weights_leave() -> None:
    system = with_weights(System.load("h100-serving"), "fp8")
    served = ServedModel(MODEL, "megatron", {"tp": 1}, system)
    weights = [v for _, _, v in served.study(1, 1, 0).program.inputs() if v.role == "weight"]
    halved = sum(v.bytes for v in weights if "_proj" in v.name) // 2
    memory = Surface(served).memory(64)
    inputs = 3 * 4  # a token, a page and a length, int32
    assert memory.weight_bytes == sum(v.bytes for v in weights) - halved + inputs


def test_types_of_weights_are_profiles_of_the_kernels() -> None:
    serving, fused = System.load("h100-serving"), System.load("h100")
    assert with_weights(serving, "none") == serving
    assert with_weights(serving, "fp8-block").kernels == "serving:weights=fp8-block"
    assert with_weights(fused, "int4").kernels == "fused:weights=int4"
    with pytest.raises(UsageError) as caught:
        with_weights(serving, "fp9")
    assert caught.value.code == "DIST0152"
    assert "fp8" in str(caught.value)
