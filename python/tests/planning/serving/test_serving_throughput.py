# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Laws of the estimators of a run: Little's law, capacity, tokens, percentiles, monotony."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from tests.planning.serving.one_engine import serve_requests
from tests.planning.serving.test_serving_events import MS, PAGE, steps_of
from tvm_distir.hardware import System, system_names
from tvm_distir.planning.serving.batching import SCHEDULERS, SchedulerOptions
from tvm_distir.planning.serving.levels import ServiceLevels, summarize
from tvm_distir.planning.serving.serving_engine import ServingEngine
from tvm_distir.planning.serving.serving_run import ServingSetup, run_deployment
from tvm_distir.planning.serving.steady_window import complete_cycles
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.support.errors.tree import SimulationError

LENGTHS = ("in=1024,out=64", "in=uniform:16-900,out=uniform:2-90", "in=lognormal:200:1,out=30")
USERS = (1, 2, 3, 5, 8, 16, 32, 48, 64, 100, 128, 256, 512)


def engine_of(kind="continuous", tokens=2048, requests=256, pages=1 << 20, system="h100", **times):
    """Return an engine of one device with given times of steps and pages."""
    served = SimpleNamespace(
        system=System.load(system), page=PAGE, pools=1, stages=1, devices=1, plan_text="synthetic"
    )
    options = SchedulerOptions(kind, tokens, requests)
    engine = ServingEngine(served, None, options, steps_of(**times))
    engine.__dict__["pages"] = pages
    return engine


def summary_of(engine, text, levels=None, replicas=1):
    setup = ServingSetup(engine, replicas)
    return run_deployment(setup, Workload.parse(text), levels or ServiceLevels())[0]


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_littles_law_of_users(kind, lengths):
    """Of N users N requests are in the system: the rate times the time that each is in it."""
    compare_littles_law(kind, lengths, USERS[::4])


def compare_littles_law(kind, lengths, numbers):
    """Compare rates and times of closed loops with their users, which ``numbers`` has."""
    for users in numbers:
        summary = summary_of(engine_of(kind), f"closed:{users},{lengths}")
        assert summary.requests_per_s * summary.e2e.mean_s == pytest.approx(users, rel=0.01), users
        if kind == "continuous":  # a request decodes in each step between its tokens
            tokens = summary.decoding / summary.tpot.mean_s + summary.requests_per_s
            assert summary.output_tokens_per_s == pytest.approx(tokens, rel=0.01), users


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("seed", range(3))
def test_littles_law_of_a_window(kind, seed):
    """The number in the system, integrated over the window, of requests that arrive at random."""
    text = f"poisson:{(1, 4, 7)[seed]},in=uniform:16-900,out=uniform:2-90,seed={seed}"
    options = SchedulerOptions(kind)
    served = serve_requests(Workload.parse(text).draw(4000), steps_of(), options, 1 << 20, PAGE)
    arrival, finish = served.requests.arrival_ps / 1e12, served.finish_ps / 1e12
    low, high = complete_cycles(arrival, finish)
    spent = np.clip(np.minimum(finish, high) - np.maximum(arrival, low), 0, None).sum()
    summary = summarize([served], ServiceLevels(), window=True)
    assert summary.window_s == pytest.approx(high - low)
    assert summary.requests_per_s * summary.e2e.mean_s == pytest.approx(
        spent / (high - low), rel=0.01
    )


@pytest.mark.parametrize("users", [1, 5, 48])
@pytest.mark.parametrize("output", ["16", "uniform:1-60"])
def test_users_of_devices_apart_ask_when_they_have_their_answer(users, output):
    """By Little's law, and request by request: some end where their caches are filled."""
    engine = engine_of()
    memory = SimpleNamespace(token_bytes=1 << 17)
    engine.__dict__["memory"] = memory
    setup = ServingSetup(engine, 1, engine_of(tokens=512), 2)
    work = Workload.parse(f"closed:{users},in=uniform:16-900,out={output}")
    summary, served = run_deployment(setup, work, ServiceLevels())
    assert summary.requests_per_s * summary.e2e.mean_s == pytest.approx(users, rel=0.02)
    arrival, finish = (
        np.sort(np.concatenate(times))
        for times in zip(*((p.requests.arrival_ps, p.finish_ps) for p in served), strict=True)
    )
    assert not arrival[:users].any()
    np.testing.assert_array_equal(arrival[users:], finish[: arrival.size - users])
    if users == 1:
        alone = setup.serve(replace(work, kind="burst").draw(1))
        assert min(p.finish_ps.min() for p in alone if len(p.requests)) == finish[0]


def test_a_window_is_of_whole_waves():
    """Eight users whose requests take 7 s, together: a closed window would count nine waves."""
    begin = np.repeat(np.arange(0.0, 140.0, 7.0), 8)
    low, high = complete_cycles(begin, begin + 7.0)
    assert (high - low) % 7.0 == 0.0
    count = ((begin >= low) & (begin < high)).sum()
    assert count == 8 * (high - low) / 7.0 > 80


def test_a_window_does_not_depend_on_the_unit_of_time():
    """Scaling by a power of two is exact, and makes a window that is shorter than a second."""
    begin = np.cumsum(np.random.default_rng(0).integers(1, 5, 200)).astype("float64")
    low, high = complete_cycles(begin, begin + 7.0)
    scaled = complete_cycles(begin / 1024, (begin + 7.0) / 1024)
    assert scaled == (low / 1024, high / 1024)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_no_more_is_served_than_can_be_served(kind, lengths):
    compare_capacity(kind, lengths, (0.3, 0.8, 1.3, 4.0, 1e5))


def compare_capacity(kind, lengths, loads):
    """Compare what is served at multiples of what can be served: all below, no more above."""
    engine = engine_of(kind)
    capacity = engine.capacity_per_s(Workload.parse(f"poisson:1,{lengths}"))
    served, waits = [], []
    for load in loads:
        summary = summary_of(engine, f"poisson:{load * capacity},{lengths}", ServiceLevels(60.0))
        assert summary.overloaded == (load > 1), load
        assert summary.offered_per_s == pytest.approx(load * capacity)
        assert summary.requests_per_s <= summary.capacity_per_s
        assert summary.capacity_per_s == pytest.approx(capacity, rel=0.05)
        if load < 1:
            assert summary.requests_per_s == pytest.approx(load * capacity, rel=0.03)
            waits.append(summary.ttft.mean_s)
        else:
            assert summary.broken(ServiceLevels(1e9)) == ["TTFT"]
            assert summary.goodput_per_s == 0.0
        served.append(min(summary.requests_per_s, 0.7 * capacity))
    assert all(b >= a * 0.99 for a, b in pairwise(served)), served
    assert all(b >= a * 0.99 for a, b in pairwise(waits)), waits


def test_more_users_are_served_faster_together_and_slower_each():
    rates, tokens = [], []
    for users in USERS:
        summary = summary_of(engine_of(), f"closed:{users},in=uniform:64-300,out=uniform:30-90")
        rates.append(summary.requests_per_s)
        tokens.append(1 / summary.tpot.mean_s)
    assert all(b >= a * 0.98 for a, b in pairwise(rates))
    assert all(b <= a * 1.02 for a, b in pairwise(tokens))


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_tokens_of_steps_are_those_of_requests(kind):
    """Each step gives a token to the requests that decode, and to those whose prompt ends."""
    for number, arrivals in enumerate(("poisson:20", "burst", "closed:7")):
        work = Workload.parse(f"{arrivals},in=uniform:1-900,out=uniform:1-60,seed={number}")
        requests = work.draw(300)
        options = SchedulerOptions(kind, 512, 24)
        served = serve_requests(requests, steps_of(), options, 1 << 16, PAGE, work.users)
        assert served.steps[:, 2].sum() + len(requests) == requests.output_tokens.sum()
        assert served.steps[:, 3].sum() == requests.input_tokens.sum()


def test_percentiles_are_those_of_the_requests():
    """Of all requests of a run that counts them all, and of its window otherwise."""
    work = Workload.parse("poisson:15,in=uniform:1-900,out=uniform:2-60,count=500")
    for window in (False, True):
        summary, served = run_deployment(
            ServingSetup(engine_of()), replace(work, count=0 if window else 500), ServiceLevels()
        )
        (part,) = served
        arrival, finish = part.requests.arrival_ps / 1e12, part.finish_ps / 1e12
        inside = np.ones(arrival.size, bool)
        if window:
            low, high = complete_cycles(arrival, finish)
            inside = (arrival >= low) & (arrival < high)
        first = part.first_ps / 1e12
        tpot = (finish - first) / (part.requests.output_tokens - 1)
        rows = (
            (summary.ttft, first - arrival),
            (summary.tpot, tpot),
            (summary.e2e, finish - arrival),
        )
        for latency, values in rows:
            expected = [values[inside].mean(), *np.percentile(values[inside], (50, 90, 99))]
            got = (latency.mean_s, latency.p50_s, latency.p90_s, latency.p99_s)
            np.testing.assert_allclose(got, expected, rtol=1e-9)
        assert summary.requests == inside.sum()


@pytest.mark.parametrize(("load", "count"), [(50, 4000), (70, 10000)])
def test_sampling_errors_hold_percentiles_of_long_runs(load, count):
    """Intervals of 95 % of 100 draws of a queue with one server; those of p99 where stated."""
    times = steps_of(base=10 * MS, request=0, context=0, token=0, past=0)
    options = SchedulerOptions("prefill_first", tokens=64, requests=1)

    def ttft_of(seed, count):
        work = Workload.parse(f"poisson:{load},in=64,out=1,seed={seed}")
        served = serve_requests(work.draw(count), times, options, 64, PAGE)
        return summarize([served], ServiceLevels(), window=True).ttft

    expected, draws = ttft_of(1000, 200000), [ttft_of(seed, count) for seed in range(100)]
    for percent, stated, least in ((50, 100, 0.95), (90, 100, 0.93), (99, 80, 0.9)):
        held = [
            abs(draw.at(percent) - expected.at(percent)) <= error
            for draw in draws
            if (error := getattr(draw, f"p{percent}_error_s")) is not None
        ]
        assert len(held) >= stated, percent
        assert np.mean(held) >= least, percent


def test_a_percentile_has_the_requests_that_it_needs():
    """A hundred beyond it, or more until its sampling error is small; others are refused."""
    text = "poisson:20,in=uniform:16-900,out=uniform:2-20"
    counts = {}
    for percent in (50, 90, 99):
        summary = summary_of(engine_of(), text, ServiceLevels(percentile=percent))
        counts[percent] = summary.requests
        assert summary.offered_per_s == 20
        assert summary.requests_per_s == pytest.approx(20, rel=0.01)
        assert summary.ttft.precise(percent)
    assert counts[50] <= counts[90] < counts[99]
    assert counts[99] > 9500
    with pytest.raises(SimulationError, match=r"DIST0761 percentile"):
        ServiceLevels(percentile=95)


def test_a_run_is_as_long_as_requests_live():
    """A hundred lives a second: the requests of a first run would all be in flight at its end."""
    times = {"base": 10**11, "request": 0, "context": 0, "token": 0, "past": 0}
    engine = engine_of(tokens=1 << 20, requests=1 << 13, **times)
    summary = summary_of(engine, "poisson:500,in=16,out=100")
    assert not summary.overloaded
    assert summary.steady
    assert summary.run_s > 4 * summary.e2e.p50_s  # as many as 4 million tokens allow
    assert summary.requests_per_s == pytest.approx(500, rel=0.03)


@pytest.mark.parametrize("rate", ["1e-9", "1e-320"])
def test_arrivals_beyond_the_clock_are_refused(rate):
    with pytest.raises(SimulationError, match=r"DIST0761.*clock"):
        summary_of(engine_of(), f"poisson:{rate},in=10,out=10")


def test_a_slow_workload_has_fewer_requests():
    summary = summary_of(engine_of(), "poisson:0.0001,in=10,out=10")
    assert summary.requests_per_s == pytest.approx(1e-4, rel=0.2)


def test_times_of_a_trace_beyond_the_clock_are_refused(tmp_path):
    """Such as seconds since 1970: they were read as other times without a word."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1764000000,30,4\n1764000001,10,2\n")
    with pytest.raises(SimulationError, match=r"DIST0761.*clock"):
        Workload.parse(str(path)).draw(0)


def test_an_overloaded_trace_is_found(tmp_path):
    rows = "".join(f"{number * 0.001},64,30\n" for number in range(3000))
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    summary = summary_of(engine_of(), str(path))
    assert summary.overloaded
    assert summary.requests == 3000
    assert summary.offered_per_s == pytest.approx(1000)
    assert summary.requests_per_s <= summary.capacity_per_s < 1000


@pytest.mark.parametrize("system", [name for name in system_names() if "-" in name])
def test_ttft_is_continuous_in_the_tokens_of_a_step(system):
    """One token more or less in a step changes little, on each system with its host times."""
    first = [
        summary_of(engine_of(tokens=tokens, system=system), "poisson:2,in=1024,out=64").ttft.mean_s
        for tokens in (512, 513)
    ]
    assert first[1] == pytest.approx(first[0], rel=0.1)


def test_the_host_of_a_request_delays_no_step():
    """Each request waits for the host once; what others take is as without."""
    requests = Workload.parse("poisson:9,in=uniform:1-900,out=uniform:1-60").draw(200)
    plain, late = (
        serve_requests(requests, steps_of(), SchedulerOptions(), 4096, PAGE, host_ps=host_ps)
        for host_ps in (0, 50 * MS)
    )
    np.testing.assert_array_equal(late.finish_ps, plain.finish_ps + 50 * MS)
    np.testing.assert_array_equal(late.start_ps, plain.start_ps + 50 * MS)
    np.testing.assert_array_equal(late.requests.arrival_ps, requests.arrival_ps)
    queues = [summarize([run], ServiceLevels(), window=False).queue for run in (plain, late)]
    assert queues[1].mean_s == pytest.approx(queues[0].mean_s, abs=1e-9)
