# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize served requests: latencies, throughput, and service levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .batching import ServedRequests, seconds

Floats = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 99)
HALVES_AGREE = 0.03
"""The most by which the two halves of a window may differ in steady state, as a share."""


@dataclass(frozen=True)
class ServiceLevels:
    """Service levels: the 90th percentiles that an engine must keep; None: any.

    Attributes
    ----------
    ttft_s : float, optional
        Time to the first token.
    tpot_s : float, optional
        Time per output token after the first.
    e2e_s : float, optional
        Time to the last token.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class Latency:
    """Mean and percentiles of a latency, in seconds."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    @staticmethod
    def of(values: Floats) -> Latency:
        """Summarize values."""
        if not values.size:
            return Latency(0.0, 0.0, 0.0, 0.0)
        percentiles = np.percentile(values, PERCENTILES).tolist()
        return Latency(float(values.mean()), *percentiles)


@dataclass(frozen=True)
class ServiceSummary:
    """Summary of the requests of a window.

    Attributes
    ----------
    requests : int
        Requests in the window.
    window_s, run_s : float
        Length of the window and of the whole run.
    steady : bool or None
        Whether the halves of the window agree; None where all requests are looked at.
    ttft, tpot, e2e, queue : Latency
        Times to the first token, per token after it, to the last token, and until the first step.
    output_tokens_per_s : float
    requests_per_s : float
    goodput_per_s : float
        Requests per second that keep all service levels.
    decoding : float
        Requests that decode, on average over time.
    utilization : float
        Share of the time in which the devices work on a step.
    used_pages, peak_pages : float, int
        Pages in use on average over time, and at most.
    preemptions : int
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

    def broken(self, levels: ServiceLevels) -> list[str]:
        """Return the names of the levels that the 90th percentiles break."""
        pairs = (
            ("TTFT", self.ttft, levels.ttft_s),
            ("TPOT", self.tpot, levels.tpot_s),
            ("e2e", self.e2e, levels.e2e_s),
        )
        return [name for name, latency, most in pairs if most is not None and latency.p90_s > most]


@dataclass(frozen=True)
class RequestLatencies:
    """Latencies of requests, float64 arrays (requests,) in seconds."""

    arrival: Floats
    ttft: Floats
    tpot: Floats
    e2e: Floats
    queue: Floats
    output: Floats

    @staticmethod
    def of(served: Sequence[ServedRequests], overhead_s: float = 0.0) -> RequestLatencies:
        """Join the requests of replicas, in order of arrival."""
        columns: list[list[Floats]] = []
        for part in served:
            arrival, first, finish, start = (
                seconds(x)
                for x in (part.requests.arrival_ps, part.first_ps, part.finish_ps, part.start_ps)
            )
            tokens = part.requests.output_tokens.astype(np.float64)
            tpot = (finish - first) / np.maximum(tokens - 1, 1)
            ttft, e2e = first - arrival + overhead_s, finish - arrival + overhead_s
            columns.append([arrival, ttft, tpot, e2e, start - arrival, tokens])
        joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return RequestLatencies(*(column[order] for column in joined))

    def some(self, which: npt.NDArray[np.bool_]) -> RequestLatencies:
        """Return some of the requests."""
        return RequestLatencies(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def summarize(
    served: Sequence[ServedRequests],
    levels: ServiceLevels,
    *,
    window: bool,
    overhead_s: float = 0.0,
) -> ServiceSummary:
    """Summarize the requests of replicas.

    Parameters
    ----------
    served : sequence of ServedRequests
        Those of each replica.
    levels : ServiceLevels
    window : bool
        Whether only a window is looked at, without the beginning, twice as long as a request
        lives, and without the end; False: all requests.
    overhead_s : float
        What the host adds to each request.
    """
    known = RequestLatencies.of(served, overhead_s)
    end = float((known.arrival + known.e2e).max())
    begin, last = float(known.arrival.min()), float(known.arrival.max())
    low, high = begin, end
    inside = np.ones(known.arrival.size, bool)
    if window:
        life = float(np.median(known.e2e))
        low, high = begin + 2 * life, last - life
        if high - low < life:
            low, high = begin + (last - begin) * 0.3, begin + (last - begin) * 0.9
        inside = (known.arrival >= low) & (known.arrival <= high)
    some = known.some(inside)
    within = np.ones(some.arrival.size, bool)
    for values, most in (
        (some.ttft, levels.ttft_s), (some.tpot, levels.tpot_s), (some.e2e, levels.e2e_s)
    ):  # fmt: skip
        if most is not None:
            within &= values <= most
    span = max(high - low, 1e-12)
    totals = np.zeros(3)
    peak = 0
    for rows in (part.steps for part in served):
        start, time = seconds(rows[:, 0]), seconds(rows[:, 1])
        weight = np.clip(np.minimum(start + time, high) - np.maximum(start, low), 0.0, None)
        totals += [weight.sum(), *(weight @ rows[:, k] for k in (2, 4))]
        peak = max(peak, int(rows[:, 4].max(initial=0)))
    busy, decoding, used = totals / span
    return ServiceSummary(
        requests=int(inside.sum()),
        window_s=span,
        run_s=end - begin,
        steady=_halves_agree(some) if window else None,
        ttft=Latency.of(some.ttft),
        tpot=Latency.of(some.tpot),
        e2e=Latency.of(some.e2e),
        queue=Latency.of(some.queue),
        output_tokens_per_s=float(some.output.sum()) / span,
        requests_per_s=some.arrival.size / span,
        goodput_per_s=float(within.sum()) / span,
        decoding=float(decoding),
        utilization=float(busy) / len(served),
        used_pages=float(used) / len(served),
        peak_pages=peak,
        preemptions=int(sum(part.preemptions.sum() for part in served)),
    )


def _halves_agree(some: RequestLatencies) -> bool:
    """Return whether latencies of the earlier and the later half of requests agree."""
    count = some.arrival.size // 2
    if count < 8:
        return False
    for values in (some.ttft, some.tpot):
        first, second = float(values[:count].mean()), float(values[-count:].mean())
        if abs(first - second) > HALVES_AGREE * max(first, second):
            return False
    return True
