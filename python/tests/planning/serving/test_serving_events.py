# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The event loop of engines: a reference in Python, and the laws of queues."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.planning.serving.one_engine import serve_requests
from tests.references.serving_events import ReferenceReplicas
from tvm_distir.planning.serving import engine_loop
from tvm_distir.planning.serving.batching import SCHEDULERS, SchedulerOptions, StepTimes
from tvm_distir.planning.serving.engine_loop import ROUTERS, EngineLoop, Replicas, seconds
from tvm_distir.planning.serving.lengths import Lengths
from tvm_distir.planning.serving.levels import ServiceLevels, summarize
from tvm_distir.planning.serving.request_trace import request_trace
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.support.errors.tree import EngineError, SimulationError

MS = 10**9
PAGE = 16


def ints(*values):
    return np.array(values, np.int64)


def steps_of(
    base=5 * MS, request=MS // 10, context=1000, token=MS // 100, past=50, parts=((1, 1),)
):
    """Times of an engine: a step takes ``base``, and more for what it works on.

    Each part of a step takes a share of it.
    """
    batches, contexts = ints(1, 4, 16, 64, 256), ints(0, 128, 1024, 8192)
    tokens, pasts = ints(2, 64, 512, 4096), ints(0, 1024, 8192)
    decode = base + batches[:, None] * (request + contexts[None, :] * context)
    prefill = base + tokens[:, None] * (token + pasts[None, :] * past + tokens[:, None] * past // 2)
    decode, prefill = (
        np.array([whole * part // of for part, of in parts], np.int64)
        for whole in (decode, prefill)
    )
    return StepTimes(batches, contexts, decode, tokens, pasts, prefill)


STAGES = (
    ((1, 1),),
    ((1, 2), (-1, 50), (1, 3)),
    ((1, 5), (1, 9), (1, 3), (1, 9), (1, 4)),
)
"""Shares of the parts of a step in one to three stages; a stage may begin before it receives."""


def random_case(number):
    """Draw a workload, a scheduler, a small cache and the kind of arrivals."""
    rng = np.random.default_rng([11, number])
    count = int(rng.integers(5, 60))
    lengths = f"in=uniform:1-{rng.integers(2, 300)},out=uniform:1-{rng.integers(2, 60)}"
    prefix = f",prefix={rng.integers(16, 120)}" if number % 3 == 0 else ""
    arrivals = (f"poisson:{rng.uniform(1, 60):.2f}", "burst", f"closed:{rng.integers(1, 9)}")
    work = Workload.parse(f"{arrivals[number % 3]},{lengths}{prefix},seed={number}")
    options = SchedulerOptions(
        SCHEDULERS[number % 4 % 3], int(rng.integers(16, 400)), int(rng.integers(1, 12)),
        float(rng.integers(0, 2)) * 150.5,
    )  # fmt: skip
    pages = int(rng.integers(24, 80))
    parts = STAGES[number % 11 % 3] if number % 4 == 1 else STAGES[0]
    pages *= (len(parts) + 1) // 2
    times = replace(steps_of(parts=parts), gain=1.0 if number % 2 else float(rng.uniform(1, 3)))
    users = work.users if work.kind == "closed" else 0
    filled = number % 7 == 3 and not users
    replicas = Replicas((1, 2, 3)[number % 5 % 3], ROUTERS[number % 2])
    pools = (1, 1, 2, 4)[number % 4]
    host_ps = (0, 0, 7 * MS + 3)[number % 8 % 3]
    loop = EngineLoop(times, options, pages, PAGE, users, filled, pools, replicas, host_ps)
    return work.draw(count), loop


def test_the_native_loop_is_the_reference():
    """With preemption, prefixes, speculation, closed loops, full caches, pools, stages, replicas.

    ``scripts/checks/serving_laws.py`` compares 500 workloads.
    """
    assert compare_with_reference(range(84)) > 0


def test_steps_that_run_are_those_of_requests_that_end_as_early():
    """Steps see each token once; requests that a step ends have asked for fewer tokens."""
    preempted = shared = 0
    for number in range(1, 61, 2):  # no speculation
        requests, loop = random_case(number)
        loop = replace(loop, times=steps_of(), users=0, filled=False, replicas=Replicas())
        rng = np.random.default_rng(number)
        ends = rng.integers(1, requests.output_tokens + 1)
        generated = np.zeros(len(requests), np.int64)

        def run_step(parts):
            ended = []
            for place, held, count in parts:
                if count and held + count == requests.input_tokens[place] + generated[place]:
                    generated[place] += 1
                    ended += [place] * bool(generated[place] == ends[place])
            return ended

        reference = ReferenceReplicas(replace(requests, output_tokens=ends), loop)
        ((_, want),) = reference.run()
        np.testing.assert_array_equal(loop.serve_steps(requests, run_step), want.steps)
        np.testing.assert_array_equal(generated, ends)
        preempted += want.preemptions.sum()
        shared += bool(reference.engines[0].prefixes)
    assert preempted and shared


def test_an_error_of_a_step_ends_the_loop():
    requests, loop = random_case(1)
    for error in (EngineError("DIST0605", "no"), KeyboardInterrupt()):

        def fails(parts):
            raise error

        with pytest.raises(type(error)) as caught:
            loop.serve_steps(requests, fails)
        assert str(caught.value) == str(error)


def compare_with_reference(numbers):
    """Compare the runs of random workloads; return the requests that gave up their pages."""
    preempted = 0
    for number in numbers:
        requests, loop = random_case(number)
        reference = ReferenceReplicas(requests, loop)
        pages = loop.pages // loop.times.stages
        places = []
        for engine, (which, got), (expected, want) in zip(
            reference.engines, loop.serve(requests), reference.run(), strict=True
        ):
            np.testing.assert_array_equal(which, expected)
            for name in ("first_ps", "finish_ps", "start_ps", "preemptions", "steps"):
                np.testing.assert_array_equal(
                    getattr(got, name), getattr(want, name), f"{number} {name}"
                )
            np.testing.assert_array_equal(got.requests.arrival_ps, want.requests.arrival_ps)
            preempted += int(got.preemptions.sum())
            assert got.steps[:, 4].max(initial=0) <= pages
            remaining = sum(p.pages for p in engine.prefixes.values())
            assert engine.free + remaining == pages
            if not loop.filled and not got.preemptions.any() and requests.prefix_id.max() < 0:
                assert got.steps[:, 3].sum() == got.requests.input_tokens.sum()
            places += which.tolist()
        assert sorted(places) == list(range(len(requests)))
    return preempted


def test_littles_law():
    """Requests in the engine are the rate times the time that each is in it."""
    work = Workload.parse("poisson:20,in=uniform:16-200,out=uniform:4-60")
    served = serve_requests(work.draw(4000), steps_of(), SchedulerOptions(), 4096, PAGE)
    arrival, finish = seconds(served.requests.arrival_ps), seconds(served.finish_ps)
    span = finish.max() - arrival.min()
    moments = np.linspace(arrival.min(), finish.max(), 20001)
    inside = np.searchsorted(np.sort(arrival), moments) - np.searchsorted(np.sort(finish), moments)
    assert inside.mean() == pytest.approx(4000 / span * (finish - arrival).mean(), rel=0.01)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prompts_alone_are_an_m_d_1_queue(load):
    """The wait is load / (2 (1 - load)) services (Kleinrock 1975, eq. 5.71)."""
    times = steps_of(base=10 * MS, request=0, context=0, token=0, past=0)
    work = Workload.parse(f"poisson:{load * 100},in=64,out=1,seed=4")
    options = SchedulerOptions("prefill_first", tokens=64, requests=1)
    waits = []
    for seed in range(4):
        requests = replace(work, seed=seed).draw(40000)
        served = serve_requests(requests, times, options, 64, PAGE)
        waits.append(float(seconds(served.first_ps - served.requests.arrival_ps).mean()))
    expected = 0.01 * (1 + load / (2 * (1 - load)))
    assert np.mean(waits) == pytest.approx(expected, rel=0.02)


def test_replicas_in_turn_are_servers_of_one_queue():
    """Requests of equal lengths start in order of arrival: at once, or behind the third before."""
    times = steps_of(base=10 * MS, request=0, context=0, token=0, past=0)
    requests = Workload.parse("poisson:270,in=64,out=1").draw(2000)
    options = SchedulerOptions("prefill_first", tokens=64, requests=1)
    parts = served_by(requests, times, options, Replicas(3))
    finish = np.zeros(len(requests), np.int64)
    for which, part in parts:
        finish[which] = part.finish_ps
    expected = []
    for number, arrival in enumerate(requests.arrival_ps.tolist()):
        free = expected[number - 3] if number >= 3 else 0
        expected.append(max(arrival, free) + 10 * MS)
    assert finish.tolist() == expected


def served_by(requests, times, options, replicas, users=0):
    return EngineLoop(times, options, 4096, PAGE, users, replicas=replicas).serve(requests)


@pytest.mark.parametrize("arrivals", ["poisson:100", "closed:30"])
def test_the_fewest_requests_in_flight_wait_less(arrivals):
    """Where lengths differ, and with several replicas; a single one needs no router."""
    work = Workload.parse(f"{arrivals},in=64,out=lognormal:6:1.5")
    times = steps_of(base=10 * MS, request=0, context=0, token=0, past=0)
    options = SchedulerOptions("static", tokens=64, requests=1)
    requests, users = work.draw(3000), work.users

    def wait_s(replicas):
        parts = served_by(requests, times, options, replicas, users)
        waits = [part.start_ps - part.requests.arrival_ps for _, part in parts]
        return seconds(np.concatenate(waits)).mean()

    assert wait_s(Replicas(24, "least_requests")) < 0.8 * wait_s(Replicas(24))
    first, other = (served_by(requests, times, options, Replicas(1, r), users) for r in ROUTERS)
    np.testing.assert_array_equal(first[0][1].finish_ps, other[0][1].finish_ps)


def test_an_unknown_router_is_refused():
    with pytest.raises(SimulationError, match=r"DIST0761.*least_requests"):
        Replicas(2, "least_request")


def test_a_request_alone_takes_the_time_of_its_steps():
    times = steps_of()
    served = serve_requests(
        Workload.parse("burst,in=64,out=3").draw(1), times, SchedulerOptions(), 64, PAGE
    )
    first = int(times.prefill_ps[0, 1, 0])
    decode = [5 * MS + MS // 10 + c * 1000 for c in (64, 65)]
    assert served.first_ps.tolist() == [first]
    assert served.finish_ps.tolist() == [first + sum(decode)]


@pytest.mark.parametrize(("users", "period_ms"), [(1, 42), (2, 42), (3, 60), (6, 60)])
def test_stages_work_on_as_many_steps_as_there_are_stages(users, period_ms):
    """A step takes 10 + 1 + 20 + 1 + 10 ms, and the second stage one of them every 20 ms.

    So a user alone has a token in the sum of the parts, and three groups one in three times the
    slowest stage. More users share the steps of the groups.
    """
    parts = ((10, 1), (1, 1), (20, 1), (1, 1), (10, 1))
    times = steps_of(base=MS, request=0, context=0, token=0, past=0, parts=parts)
    work = Workload.parse("burst,in=16,out=40")
    served = EngineLoop(times, SchedulerOptions(), 4096, PAGE).serve(work.draw(users))
    for _, group in served:
        begins = group.steps[10:, 0]
        assert set(np.diff(begins).tolist()) <= {period_ms * MS}
    tokens = sum(int(group.steps[:, 2].sum()) for _, group in served)
    assert tokens == users * 39


@pytest.mark.parametrize("lengths", [(256, 256), (512, 64), (100, 700)])
def test_data_parallel_parts_fill_their_caches_together(lengths):
    """Each part has a prompt of its own, and the step takes the time of the longest."""
    times, options = steps_of(), SchedulerOptions("prefill_first", tokens=1024)
    requests = Workload.parse("burst,in=64,out=1").draw(2)
    requests = replace(requests, input_tokens=ints(*lengths))
    served = serve_requests(requests, times, options, 4096, PAGE, pools=2)
    alone = Workload.parse(f"burst,in={max(lengths)},out=1").draw(1)
    expected = serve_requests(alone, times, options, 4096, PAGE)
    assert len(served.steps) == 1
    assert served.finish_ps.tolist() == [int(expected.finish_ps[0])] * 2


def test_a_prompt_has_the_tokens_of_its_part():
    """In steps of as many tokens as a part may have, however many parts there are."""
    requests = Workload.parse("burst,in=600,out=1").draw(1)
    served = serve_requests(requests, steps_of(), SchedulerOptions(tokens=256), 4096, PAGE, pools=4)
    assert served.steps[:, 3].tolist() == [256, 256, 88]


def test_more_users_never_speed_up_a_user():
    rates = []
    for users in (1, 2, 4, 8, 16, 32):
        work = Workload.parse(f"closed:{users},in=128,out=64")
        served = serve_requests(work.draw(400), steps_of(), SchedulerOptions(), 4096, PAGE, users)
        rates.append(1 / summarize([served], ServiceLevels(), window=True).tpot.mean_s)
    assert all(b <= a * 1.01 for a, b in pairwise(rates))


def test_a_shared_prefix_is_computed_once():
    work = Workload.parse("poisson:5,in=128,out=8,prefix=96")
    plain = Workload.parse("poisson:5,in=128,out=8")
    tokens = [
        int(serve_requests(w.draw(50), steps_of(), SchedulerOptions(), 512, PAGE).steps[:, 3].sum())
        for w in (work, plain)
    ]
    assert tokens == [128 + 49 * 32, 50 * 128]


def test_the_same_seed_gives_the_same_requests_at_any_rate():
    work = Workload.parse("poisson:3,in=lognormal:200:0.5,out=uniform:1-90,seed=5")
    a, b, more = work.draw(40), work.at_rate(6).draw(40), work.draw(60)
    np.testing.assert_array_equal(a.input_tokens, b.input_tokens)
    np.testing.assert_array_equal(a.input_tokens, more.input_tokens[:40])
    np.testing.assert_allclose(a.arrival_ps, 2 * b.arrival_ps, atol=2)
    scale = more.arrival_ps[0] / a.arrival_ps[0]
    np.testing.assert_allclose(scale * a.arrival_ps, more.arrival_ps[:40], rtol=1e-9)


@pytest.mark.parametrize("count", [1, 9, 1000])
def test_a_run_offers_its_rate(count):
    """By the last of the arrivals; the others are uniform before it (Kolmogorov and Smirnov)."""
    arrivals = [
        Workload.parse(f"poisson:8,seed={seed}").draw(count).arrival_ps / 1e12 for seed in range(40)
    ]
    for times in arrivals:
        assert times[-1] == pytest.approx(count / 8)
    pooled = np.sort(np.concatenate([times[:-1] for times in arrivals])) / (count / 8)
    steps = np.arange(1, pooled.size + 1) / max(pooled.size, 1)
    assert (np.abs(pooled - steps) < 1.63 / np.sqrt(max(pooled.size, 1))).all()


@pytest.mark.parametrize(
    "text",
    [
        "poisson:-1", "posson:2", "burst,in=uniform:x-3", "closed:2,inn=3", "none.csv", "closed:0",
        "burst,in=uniform:512-16", "burst,out=uniform:0-3", "burst,in=lognormal:100:50",
    ],
)  # fmt: skip
def test_wrong_workloads_are_refused(text):
    with pytest.raises(SimulationError, match="DIST0761"):
        Workload.parse(text).draw(3)


def test_a_trace_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n2,30,4\n0.5,10,2\n")
    requests = Workload.parse(str(path)).draw(0)
    assert requests.arrival_ps.tolist() == [500 * MS, 2000 * MS]
    assert requests.input_tokens.tolist() == [10, 30]


def test_means_are_those_of_a_trace(tmp_path):
    """Not those of the default lengths, which a trace does not use."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n2,30,4\n0.5,10,2\n")
    work = Workload.parse(str(path))
    assert (work.mean_input, work.mean_output) == (20.0, 3.0)
    rng = np.random.default_rng(3)
    for text in ("uniform:16-200", "lognormal:300:0.4"):
        lengths = Lengths.parse(text)
        assert lengths.draw(200_000, rng).mean() == pytest.approx(lengths.mean, rel=0.01)


def test_no_step_of_a_long_run_is_left_out(monkeypatch):
    """Shares of time are of all steps, however many there are."""
    requests = Workload.parse("poisson:20,in=uniform:16-200,out=uniform:4-60").draw(60)
    args = requests, steps_of(), SchedulerOptions(), 4096, PAGE
    whole = serve_requests(*args)
    monkeypatch.setattr(engine_loop, "_STEPS", 7)
    again = serve_requests(*args)
    assert len(whole.steps) > 7
    np.testing.assert_array_equal(again.steps, whole.steps)
    np.testing.assert_array_equal(again.finish_ps, whole.finish_ps)


def test_a_request_that_never_fits_is_refused():
    requests = Workload.parse("burst,in=500,out=4").draw(2)
    with pytest.raises(SimulationError, match=r"DIST0761.*does not fit"):
        serve_requests(requests, steps_of(), SchedulerOptions(), 8, PAGE)


def test_a_trace_of_requests_holds_their_times():
    """Slices of a row never overlap, and those of a request add up to its life."""
    requests = Workload.parse("poisson:40,in=uniform:16-300,out=uniform:1-60").draw(120)
    served = serve_requests(requests, steps_of(), SchedulerOptions(requests=12), 4096, PAGE)
    events = json.loads(request_trace([served, served]))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    life, rows = np.zeros(len(requests)), {}
    for event in slices:
        rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        if "request" in event["args"]:
            life[event["args"]["request"]] += event["dur"]
    np.testing.assert_allclose(life, (served.finish_ps - requests.arrival_ps) / 1e6, rtol=1e-9)
    for spans in rows.values():
        assert all(after[0] >= before[1] - 1e-3 for before, after in pairwise(sorted(spans)))
    steps = [e for e in slices if "decoding" in e["args"]]
    assert len(steps) == len(served.steps) == sum(e["ph"] == "C" and e["pid"] == 2 for e in events)
