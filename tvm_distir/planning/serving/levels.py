# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize served requests: latencies, throughput, and service levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS

from .engine_loop import ServedRequests, seconds
from .latency import PERCENTILES, QUANTILE, SECTIONS, Latency
from .lengths import workload_fault
from .steady_window import Floats, complete_cycles

HALVES_AGREE = 0.03
"""The most by which the two halves of a window may differ in steady state, as a share."""
_BEYOND = 100
"""Requests beyond a percentile that are enough to estimate it."""


@dataclass(frozen=True)
class ServiceLevels:
    """Service levels: the percentiles that an engine must keep; None: any.

    Attributes
    ----------
    ttft_s : float, optional
        Time to the first token.
    tpot_s : float, optional
        Time per output token after the first.
    e2e_s : float, optional
        Time to the last token.
    percentile : int
        One of :data:`PERCENTILES`.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: int = 90

    def __post_init__(self) -> None:
        """Refuse a percentile that is not estimated (SimulationError DIST0761)."""
        if self.percentile not in PERCENTILES:
            known = f"Use one of {', '.join(map(str, PERCENTILES))}."
            raise workload_fault(f"no percentile {self.percentile}", "percentile", known)

    @property
    def fewest(self) -> int:
        """Return the requests that the percentile needs."""
        return 100 * _BEYOND // (100 - self.percentile)

    @property
    def text(self) -> str:
        """Return the levels in words; empty without any."""
        rows = (
            ("TTFT", self.ttft_s, 1e3, "ms"),
            ("TPOT", self.tpot_s, 1e3, "ms"),
            ("e2e", self.e2e_s, 1.0, "s"),
        )
        texts = [f"{n} p{self.percentile} <= {v * k:g} {u}" for n, v, k, u in rows if v is not None]
        return " and ".join(texts)

    def kept(self, latencies: Sequence[Floats]) -> npt.NDArray[np.bool_]:
        """Return which requests keep all levels, from their TTFT, TPOT, time and further ones."""
        good = np.ones(latencies[0].size, bool)
        for values, most in zip(latencies, (self.ttft_s, self.tpot_s, self.e2e_s), strict=False):
            if most is not None:
                good &= values <= most
        return good


@dataclass(frozen=True)
class ServiceSummary:
    """Summary of the requests of a window.

    Attributes
    ----------
    requests : int
        Requests that arrive in the window; where there are more than can be served, that start.
    window_s, run_s : float
        Length of the window and of the whole run.
    steady : bool or None
        Whether the halves of the window agree; None where all requests are looked at.
    ttft, tpot, e2e, queue : Latency
        Times to the first token, per token after it, to the last token, and until the first step.
    output_tokens_per_s : float
    requests_per_s : float
        Requests that end, per second.
    goodput_per_s : float
        Requests per second that keep all service levels.
    decoding : float
        Requests that decode, on average over time.
    utilization : float
        Share of the time in which the devices work on a step.
    used_pages, peak_pages : float, int
        Pages in use on average over time, and at most.
    preemptions : int
    offered_per_s : float, optional
        Requests that arrive, per second; None where they do not arrive by themselves (closed loops
        and bursts).
    capacity_per_s : float, optional
        The most requests per second that can be served: as many as a closed loop in which requests
        always wait.
    overloaded : bool
        Whether more requests are offered than can be served. Queues then grow as long as requests
        arrive, and the times that depend on them (TTFT, e2e, queue) with the length of the run.
    """

    requests: int
    window_s: float
    run_s: float
    steady: bool | None
    ttft: Latency
    tpot: Latency
    e2e: Latency
    queue: Latency
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    decoding: float
    utilization: float
    used_pages: float
    peak_pages: int
    preemptions: int
    offered_per_s: float | None = None
    capacity_per_s: float | None = None
    overloaded: bool = False

    def broken(self, levels: ServiceLevels) -> list[str]:
        """Return the names of the levels that their percentiles break.

        In overload the times that grow with the run break any level.
        """
        rows = (
            ("TTFT", self.ttft, levels.ttft_s, self.overloaded),
            ("TPOT", self.tpot, levels.tpot_s, False),
            ("e2e", self.e2e, levels.e2e_s, self.overloaded),
        )
        return [
            name
            for name, latency, most, grows in rows
            if most is not None and (grows or latency.at(levels.percentile) > most)
        ]


@dataclass(frozen=True)
class RequestTimes:
    """Times of requests in seconds, float64 arrays (requests,), and the tokens of their answers."""

    arrival: Floats
    start: Floats
    first: Floats
    finish: Floats
    output: Floats
    host: Floats

    @staticmethod
    def of(served: Sequence[ServedRequests]) -> RequestTimes:
        """Join the requests of replicas, in order of arrival."""
        tables = [
            np.stack(
                [
                    *map(
                        seconds,
                        (part.requests.arrival_ps, part.start_ps, part.first_ps, part.finish_ps),
                    ),
                    part.requests.output_tokens.astype(np.float64),
                    np.full(len(part.requests), part.host_ps / PICOSECONDS),
                ]
            )
            for part in served
        ]
        table = np.concatenate(tables, axis=1)
        return RequestTimes(*table[:, np.argsort(table[0], kind="stable")])

    def some(self, which: npt.NDArray[np.bool_]) -> RequestTimes:
        """Return some of the requests."""
        return RequestTimes(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @property
    def latencies(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return TTFT, TPOT, the times to the last token, and those in the queue."""
        return (
            self.first - self.arrival,
            (self.finish - self.first) / np.maximum(self.output - 1, 1),
            self.finish - self.arrival,
            self.start - self.arrival - self.host,
        )


def summarize(
    served: Sequence[ServedRequests],
    levels: ServiceLevels,
    *,
    window: bool,
    overloaded: bool = False,
) -> ServiceSummary:
    """Summarize the requests of replicas.

    Parameters
    ----------
    served : sequence of ServedRequests
        Those of each replica.
    levels : ServiceLevels
    window : bool
        Whether only a window of whole cycles is looked at (:func:`.steady_window.complete_cycles`);
        False: all requests.
    overloaded : bool
        Whether the requests that wait grow in number. The window is then one of the requests that
        are worked on, before the last one starts.
    """
    known = RequestTimes.of(served)
    low, high = begin, end = float(known.arrival.min()), float(known.finish.max())
    enters = known.start if overloaded else known.arrival
    inside = ended = np.ones(enters.size, bool)
    if window:
        low, high = complete_cycles(enters, known.finish, 0.0 if overloaded else 1.0)
        inside = (enters >= low) & (enters < high)
        ended = (known.finish > low) & (known.finish <= high)
    latencies = known.some(inside).latencies
    within = levels.kept(latencies)
    if overloaded and (levels.ttft_s or levels.e2e_s) is not None:
        within[:] = False  # of a longer run, fewer requests keep them
    span = max(high - low, 1e-12)
    totals = np.zeros(3)
    peak = 0
    for rows in (part.steps for part in served):
        start, time = seconds(rows[:, 0]), seconds(rows[:, 1])
        weight = np.clip(np.minimum(start + time, high) - np.maximum(start, low), 0.0, None)
        totals += [weight.sum(), *(weight @ rows[:, k] for k in (2, 4))]
        peak = max(peak, int(rows[:, 4].max(initial=0)))
    busy, decoding, used = totals / span
    rate = float(ended.sum()) / span
    ttft, tpot, e2e, queue = (Latency.of(values) for values in latencies)
    return ServiceSummary(
        requests=int(inside.sum()),
        window_s=span,
        run_s=end - begin,
        steady=_halves_agree(*latencies[:2]) if window else None,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        queue=queue,
        output_tokens_per_s=float(known.output[ended].sum()) / span,
        requests_per_s=rate,
        goodput_per_s=rate * float(within.mean()) if within.size else 0.0,
        decoding=float(decoding),
        utilization=float(busy) / len(served),
        used_pages=float(used) / len(served),
        peak_pages=peak,
        preemptions=int(sum(part.preemptions.sum() for part in served)),
        overloaded=overloaded,
    )


def _halves_agree(*latencies: Floats) -> bool:
    """Return whether the means of the earlier and the later half of requests agree.

    They may differ by :data:`HALVES_AGREE`, and by what the means of their sections, which vary at
    random, explain.
    """
    if latencies[0].size < 2 * SECTIONS:
        return False
    for values in latencies:
        halves = np.split(np.array([part.mean() for part in np.array_split(values, SECTIONS)]), 2)
        first, second = (float(half.mean()) for half in halves)
        noise = np.sqrt(sum(half.var(ddof=1) / half.size for half in halves))
        if abs(first - second) > max(HALVES_AGREE * max(first, second), QUANTILE * float(noise)):
            return False
    return True
