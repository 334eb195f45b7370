# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parts of serving by themselves: options, workloads, lengths of runs, texts, memory."""

from __future__ import annotations

import bisect
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_distir.hardware.systems.system import System
from tvm_distir.planning.serving import serving_run
from tvm_distir.planning.serving.batching import SCHEDULERS, SchedulerOptions, StepTimes
from tvm_distir.planning.serving.engine_loop import ROUTERS, ServedRequests
from tvm_distir.planning.serving.latency import Latency
from tvm_distir.planning.serving.lengths import Lengths
from tvm_distir.planning.serving.levels import (
    ServiceLevels,
    ServiceSummary,
    _halves_agree,
    summarize,
)
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_causes import causes_of
from tvm_distir.planning.serving.serving_report import ServingReport
from tvm_distir.planning.serving.serving_run import ServingSetup, run_deployment
from tvm_distir.planning.serving.size_order import SizeOrder, ranges_of
from tvm_distir.planning.serving.speculation import speculative
from tvm_distir.planning.serving.surface import Surface
from tvm_distir.planning.serving.workload import Requests, Workload, read_trace
from tvm_distir.support.errors.tree import SimulationError

SECOND = 10**12


# Options and workloads -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_options_of_a_scheduler_are_read(kind: str) -> None:
    text = f"{kind}:tokens=1,requests=3,step_overhead_us=0"
    assert SchedulerOptions.parse(text) == SchedulerOptions(kind, 1, 3, 0.0)
    assert SchedulerOptions.parse(f"{kind}:requests=1") == SchedulerOptions(kind, requests=1)
    assert SchedulerOptions.parse(kind) == SchedulerOptions(kind)


@pytest.mark.parametrize(
    "options",
    ["tokens=0", "requests=0", "tokens=-1", "step_overhead_us=-0.5", "tokens=1.5", "token=3", "x"],
)
def test_each_option_of_a_scheduler_is_checked(options: str) -> None:
    """Whatever the others are."""
    for more in ("", "tokens=9,", "requests=9,", "step_overhead_us=9,"):
        with pytest.raises(SimulationError, match="DIST0761"):
            SchedulerOptions.parse(f"continuous:{more}{options}")


def test_each_key_of_a_workload_is_read() -> None:
    work = Workload.parse("poisson:2.5,in=7,out=9,prefix=3,count=11,seed=5")
    assert work == Workload("poisson", 2.5, 0, "7", "9", 3, 5, "", 11)
    assert Workload.parse("closed:4").users == 4 and Workload.parse("burst,in=3").count == 0


@pytest.mark.parametrize(
    "text",
    [
        "burst,in=1,in=1", "burst,seed=1,out=2,seed=1", "burst,length=3", "burst,in", "closed:0",
        "closed:-1", "poisson:0", "poisson:-1", "poisson:inf", "poisson:nan", "poisson:x", "other",
    ],
)  # fmt: skip
def test_wrong_keys_and_numbers_are_refused(text: str) -> None:
    with pytest.raises(SimulationError, match="DIST0761"):
        Workload.parse(text)


def test_a_trace_has_requests_with_tokens(tmp_path: Path) -> None:
    path, head = tmp_path / "trace.csv", "arrival_s,input_tokens,output_tokens\n"
    for rows in ("", "0,0,5\n", "0,5,0\n", "0,5,5\n1,5,0\n"):
        path.write_text(head + rows)
        with pytest.raises(SimulationError, match=r"DIST0761 .*no requests, or empty ones"):
            read_trace(str(path))
    path.write_text(head + "2,1,4\n0.5,3,1\n")
    requests = read_trace(str(path))
    assert requests.arrival_ps.tolist() == [SECOND // 2, 2 * SECOND]
    assert (requests.input_tokens.tolist(), requests.output_tokens.tolist()) == ([3, 1], [1, 4])


# Times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 4])
def test_a_step_of_speculation_gains_the_tokens_that_are_accepted(
    acceptance: float, count: int
) -> None:
    """The token after the first ``k`` accepted ones, for all ``k``: the sum of ``a^k``."""
    batches, contexts = np.array([1, 4]), np.array([0, 100, 300])
    plain = StepTimes(batches, contexts, np.ones((1, 2, 3)), batches, contexts, np.ones((1, 2, 3)))
    target = SimpleNamespace(new=count + 1, decode_parts_ps=lambda b, c: (b * 1000 + c)[None])
    draft = SimpleNamespace(decode_parts_ps=lambda b, c: (7 * b + c)[None])
    times = speculative(target, draft, acceptance, plain)
    assert times.gain == pytest.approx(sum(acceptance**k for k in range(count + 1)))
    for row, batch in enumerate(batches):
        for column, context in enumerate(contexts):
            expected = 1000 * batch + context + count * (7 * batch + context)
            assert times.decode_ps[0, row, column] == expected
    assert times.prefill_ps is plain.prefill_ps


@pytest.mark.parametrize("acceptance", [-0.1, 1.1])
def test_no_share_of_tokens_is_refused(acceptance: float) -> None:
    with pytest.raises(SimulationError, match="DIST0761 acceptance"):
        speculative(SimpleNamespace(new=2), None, acceptance, None)


@pytest.mark.parametrize("begins", [[], [5], [2, 3, 4], [7, 60, 61, 90]])
@pytest.mark.parametrize("step", [1, 4])
def test_ranges_begin_where_programs_change(begins: list[int], step: int) -> None:
    """Found from samples, one in each range at least, and again from known ones or wrong ones."""
    order = SizeOrder(None, step, 1)

    def kind(size: int, before: int) -> str:
        return str(bisect.bisect(begins, size // step))

    samples = [(step * size, 10 * size) for size in (1, *begins, 40, 99)]
    ranges = ranges_of(order, samples, kind, 0, None)
    assert ranges.begins == [step * begin for begin in begins]
    sizes = np.arange(1, 120) * step
    assert [ranges.kinds[k] for k in ranges.of(sizes)] == [kind(int(size), 0) for size in sizes]
    for guess in (begins, [begin + 1 for begin in begins], [50]):
        known = SimpleNamespace(order=order, begins=[step * begin for begin in guess])
        assert ranges_of(order, samples, kind, 0, known).begins == ranges.begins


def test_a_change_with_the_tokens_in_caches_begins_no_range() -> None:
    """The ranges behind it are found all the same."""
    samples = [(1, 0), (2, 500), (4, 500), (9, 500)]
    kinds = {False: "few", True: "many"}
    ranges = ranges_of(
        SizeOrder(None, 1, 1), samples, lambda n, c: kinds[c > 100] + str(n >= 6), 0, None
    )
    assert ranges.begins == [6]


def waves(*levels: float, size: int = 400) -> np.ndarray:
    """Values around levels one after the other, with a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.01, len(levels) * size)
    return np.repeat(levels, size) + noise


def test_halves_agree_where_no_mean_moves() -> None:
    still, moved = waves(1, 1), waves(1, 2)
    assert _halves_agree(still, still) and not _halves_agree(moved, still)
    assert not _halves_agree(still, moved) and not _halves_agree(still, waves(2, 1))
    assert not _halves_agree(still[:3], still[:3])  # too few to tell
    wild = np.random.default_rng(1).exponential(1.0, 200) ** 3
    assert _halves_agree(wild, wild)  # within what sections differ by


# Runs ------------------------------------------------------------------------------------------


class Server:
    """Serves any number of requests at once, each in the same time."""

    replicas, prefill = 1, None

    def __init__(self, life_s: float, batch: int = 4) -> None:
        self.life_ps, self.counts = round(life_s * SECOND), []
        self.engine = SimpleNamespace(largest_batch=lambda workload: batch)

    def serve(self, requests: Requests, users: int = 0) -> list[ServedRequests]:
        self.counts.append(len(requests))
        first = requests.arrival_ps + self.life_ps // 10
        return [
            ServedRequests(
                requests, first, requests.arrival_ps + self.life_ps, requests.arrival_ps,
                np.zeros(len(requests), np.int64), np.zeros((0, 5), np.int64), 0,
            )
        ]  # fmt: skip


@pytest.mark.parametrize("life_s", [0.5, 300.0])
def test_a_run_is_as_long_as_several_requests_live_and_hardly_longer(life_s: float) -> None:
    """400 requests at 5 per second take 80 s; 300 s of life need eight of them."""
    server = Server(life_s)
    work = Workload.parse("poisson:5,in=8,out=8")
    summary, served = run_deployment(server, work, ServiceLevels(), math.inf)
    last_s = int(served[0].requests.arrival_ps[-1]) / SECOND
    lives = serving_run._LIVES * life_s
    assert last_s >= lives and summary.steady
    assert server.counts[-1] <= max(server.counts[0], 2.5 * 5 * lives)
    assert server.counts == sorted(set(server.counts))
    if life_s < 1:
        assert len(server.counts) == 1


@pytest.mark.parametrize(("text", "count"), [("burst", serving_run._BURST), ("burst,count=9", 9)])
def test_a_run_of_a_known_length_is_served_once(text: str, count: int) -> None:
    server = Server(1.0)
    run_deployment(server, Workload.parse(text), ServiceLevels())
    assert server.counts == [count]


def test_an_overloaded_run_lasts_while_full_batches_come_and_go() -> None:
    work = Workload.parse("poisson:5,in=8,out=8")
    counts = {}
    for batch in (1, 10**4):
        counts[batch] = serving_run._first_count(Server(1.0, batch), work, True, ServiceLevels())
        assert counts[batch] >= serving_run._LIVES * batch
        assert counts[batch] >= serving_run._first_count(
            Server(1.0, batch), work, False, ServiceLevels()
        )
    assert counts[1] < counts[10**4] == serving_run._LIVES * 10**4


def setup(**changes: object) -> ServingSetup:
    def engine(devices: int, name: str, tokens: int, draft: object = None) -> SimpleNamespace:
        served = SimpleNamespace(devices=devices, plan_text=name)
        options = SchedulerOptions(tokens=tokens)
        return SimpleNamespace(served=served, options=options, speculation=draft)

    apart = changes.pop("apart", False)
    draft = SimpleNamespace(tokens=3) if changes.pop("draft", False) else None
    if apart:
        changes |= {"prefill": engine(4, "p", 64), "prefill_replicas": 3}
    return ServingSetup(engine(2, "d", 32, draft), **changes)


def test_devices_are_those_of_all_replicas() -> None:
    assert [setup().devices, setup(replicas=3).devices] == [2, 6]
    assert setup(replicas=5, apart=True).devices == 5 * 2 + 3 * 4


def test_the_text_of_a_plan_names_what_is_not_usual() -> None:
    usual, other = ROUTERS
    assert setup().plan_text == "d x 1"
    assert setup(replicas=2, router=usual).plan_text == "d x 2"
    assert setup(router=other).plan_text == "d x 1"  # there is nothing to choose
    assert setup(replicas=2, router=other).plan_text == f"d x 2 ({other})"
    assert setup(router=other, apart=True).plan_text == f"prefill p x 3, decode d x 1 ({other})"
    assert setup(replicas=2, draft=True).plan_text == "d x 2, 3 draft tokens"
    both = setup(apart=True).scheduler_text
    assert both.startswith("prefill ") and "tokens=64" in both and "decode" in both
    assert "decode" not in setup().scheduler_text


# Reports ---------------------------------------------------------------------------------------


def summary_of(**changes: object) -> ServiceSummary:
    known = Latency(1.0, 1.0, 2.0, 4.0, 0.1, 0.4)
    latencies = {name: known for name in ("ttft", "tpot", "e2e", "queue")}
    numbers = {
        "requests": 9, "window_s": 1.0, "run_s": 2.0, "steady": True, "output_tokens_per_s": 1.0,
        "requests_per_s": 1.0, "goodput_per_s": 1.0, "decoding": 1.0, "utilization": 0.5,
        "used_pages": 1.0, "peak_pages": 1, "preemptions": 0,
    }  # fmt: skip
    return ServiceSummary(**{**latencies, **numbers, **changes})


def report(**changes: object) -> list[str]:
    summary = summary_of(**changes)
    made = ServingReport(
        "m", "s", "p", "w", "c", 2, summary, ServiceLevels(ttft_s=1.5, tpot_s=9.0), 1, 1, 1, 0.1,
        0.01, None, (), (),
    )  # fmt: skip
    return made.text().splitlines()


def test_overload_is_the_first_line() -> None:
    lines = report(overloaded=True, offered_per_s=7.0, capacity_per_s=3.0)
    assert lines[0].startswith("overloaded: 7 requests/s arrive, and 3.000 can be served")
    assert any("(not steady: TTFT" in line for line in lines)
    assert report()[1].startswith("m on 2 devices of s: p")
    assert any("(steady)" in line for line in report())
    assert any("(all requests)" in line for line in report(steady=None))


def test_sampling_errors_are_shares_of_percentiles_where_they_are_known() -> None:
    """0.1 of 2 s and 0.4 of 4 s."""
    (line,) = [line for line in report() if "sampling" in line]
    assert line.count("p90 5.0 %, p99 10.0 %") == 2
    for name in ("ttft", "tpot"):
        partly = report(**{name: Latency(1.0, 1.0, 2.0, 4.0, 0.1, None)})
        (line,) = [line for line in partly if "sampling" in line]
        assert f"{name.upper()} p90 5.0 %, p99 unknown" in line
    for hidden in ({"steady": None}, {"overloaded": True}):
        assert not any("sampling" in line for line in report(**hidden))


def test_levels_are_broken_by_90th_percentiles() -> None:
    assert any(line.endswith("broken levels: TTFT") for line in report())
    calm, asked = Latency(1.0, 1.0, 1.5, 4.0), "TTFT p90 <= 1500 ms and TPOT p90 <= 9000 ms."
    assert report()[0] == f"2 devices of s break TTFT of {asked}"
    assert report(ttft=calm)[0] == f"2 devices of s keep {asked}"
    assert not any("broken" in line for line in report(ttft=calm))
    assert any("broken levels: TTFT" in line for line in report(ttft=calm, overloaded=True))


def test_a_summary_counts_by_hand() -> None:
    """Two requests, 2 s and 4 s long, in steps whose times and pages are known."""
    ints = lambda *values: np.array(values, np.int64)  # noqa: E731
    s = SECOND
    requests = Requests(ints(0, s), ints(8, 8), ints(5, 1), ints(-1, -1), ints(0, 0))
    steps = np.array([[0, s, 0, 16, 2], [s, 2 * s, 1, 0, 4], [4 * s, s, 1, 0, 1]], np.int64)
    part = ServedRequests(
        requests, ints(s, 5 * s), ints(2 * s, 5 * s), ints(0, 2 * s), ints(0, 1), steps, 0
    )
    summary = summarize([part], ServiceLevels(e2e_s=3.0), window=False)
    assert (summary.requests, summary.run_s, summary.preemptions) == (2, 5.0, 1)
    assert (summary.ttft.mean_s, summary.e2e.mean_s) == (2.5, 3.0)
    assert summary.queue.mean_s == 0.5 and summary.tpot.mean_s == pytest.approx(0.25 / 2)
    assert summary.output_tokens_per_s == pytest.approx(6 / 5)
    assert summary.goodput_per_s == pytest.approx(1 / 5)
    assert summary.utilization == pytest.approx(4 / 5) and summary.peak_pages == 4
    assert summary.decoding == pytest.approx(3 / 5)
    assert summary.used_pages == pytest.approx((2 + 8 + 1) / 5)


@pytest.mark.parametrize(
    ("levels", "alone_s", "changes", "cause", "advice"),
    [
        ({"ttft_s": 1.0}, (0.1, 0.1), {"overloaded": True, "offered_per_s": 6.0,
                                       "capacity_per_s": 2.0}, "3 times as fast", "3 times the"),
        ({"ttft_s": 1.5}, (1.6, 0.1), {}, "a prompt alone takes 1600 ms", "a larger tp"),
        ({"ttft_s": 1.5}, (0.1, 0.1), {}, "for 100% of the time", "add replicas"),
        ({"ttft_s": 1.5}, (0.1, 0.1), {"queue": Latency(0.0, 0.0, 0.0, 0.0)}, "share steps",
         "raise the tokens"),
        ({"tpot_s": 1.5}, (0.1, 1.6), {}, "for one request takes 1600.0 ms", "narrower type"),
        ({"tpot_s": 1.5}, (0.1, 0.1), {}, "take 50% of the time per token", "lower the tokens"),
        ({"tpot_s": 1.5}, (0.1, 0.1), {"tpot": Latency(0.5, 1.0, 2.0, 4.0)}, "1 requests decode",
         "lower the requests"),
        ({}, (0.1, 0.1), {"preemptions": 3}, "3 requests gave up", "float8"),
        ({"e2e_s": 1.5}, (0.1, 0.1), {}, "time to the last token", "lower the time per token"),
    ],
)  # fmt: skip
def test_each_cause_has_its_advice(
    levels: dict[str, float],
    alone_s: tuple[float, float],
    changes: dict[str, object],
    cause: str,
    advice: str,
) -> None:
    """Percentiles are 2 s; steps that decode take 0.5 s of the mean of 1 s."""
    causes, advised = causes_of(
        SimpleNamespace(), ServiceLevels(**levels), summary_of(**changes), *alone_s, 0.5
    )
    assert len(causes) == len(advised) == 1
    assert cause in causes[0] and advice in advised[0]


def test_uniform_lengths_have_both_ends_and_nothing_beyond() -> None:
    drawn = Lengths.parse("uniform:3-5").draw(1000, np.random.default_rng(0))
    assert sorted(set(drawn.tolist())) == [3, 4, 5]


@pytest.mark.parametrize(("dense", "few"), [(0, 2), (2, 4)])
def test_layers_repeat_behind_those_without_experts(dense: int, few: int) -> None:
    """At least two of the layers that repeat remain; each of the others is a period."""
    model = f"zoo:deepseek?size=tiny,layers=9,dense_layers={dense}"
    served = ServedModel(model, "megatron", {"tp": 1}, System.load("dgx-h100"))
    assert served.repeated is not None
    least, more, times = served.repeated
    assert (least.layers, more.layers, times) == (few, few + 1, (9 - few,))


def test_memory_of_a_decoder_is_counted_by_hand() -> None:
    """Two layers of 64 wide, 8 heads, 4 of keys and values, 96 inside, and 512 words; float32."""
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    weights = 4 * (2 * layer + 2 * 512 * 64 + 64)
    served = ServedModel("zoo:llama3?size=tiny", "megatron", {"tp": 1}, System.load("dgx-h100"))
    memory = Surface(served).memory(64)
    assert memory.token_bytes == 2 * 2 * 4 * (64 // 8) * 4  # keys and values of two layers
    assert weights <= memory.weight_bytes <= weights + 64  # and positions of the step
    assert memory.workspace_bytes >= 4 * 64 * (64 + 96)
