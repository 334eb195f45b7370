# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve a workload by replicas of an engine, together or with prefill and decode apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.hardware import PICOSECONDS

from .engine_loop import ROUTERS, Replicas, ServedRequests
from .levels import ServiceLevels, ServiceSummary, summarize
from .serving_engine import Capacities, ServingEngine
from .workload import BURST, CLOCK_S, CLOSED, POISSON, Requests, Workload

_REQUESTS, _FEWEST, _MOST_REQUESTS = 4000, 400, 1 << 14
"""Requests of an open run at first, at least, and when it is prolonged."""
_BURST = 240
"""Requests of a burst."""
_TOKENS, _MOST_TOKENS = 1 << 21, 1 << 22
"""Output tokens that limit the requests of an open run at first, and when it is prolonged."""
_MOST_ROUNDS = 1 << 21
"""Requests of all rounds that find when users of devices apart ask, about, each at most."""
_CYCLES, _LIVES = 40, 8
"""Requests of each user of a closed loop, while these are few; lives of requests in a run."""


@dataclass(frozen=True)
class ServingSetup:
    """Replicas of an engine; with a prefill engine, that fills the caches of others.

    Attributes
    ----------
    engine : ServingEngine
        Serves requests, or decodes them.
    replicas : int
    prefill : ServingEngine, optional
    prefill_replicas : int
    router : str
        One of :data:`.engine_loop.ROUTERS`, for the replicas of both.
    """

    engine: ServingEngine
    replicas: int = 1
    prefill: ServingEngine | None = None
    prefill_replicas: int = 0
    router: str = ROUTERS[0]

    @property
    def parts(self) -> list[tuple[ServingEngine, int, str]]:
        """Return the engines with their replicas and phases; that of both phases has no name."""
        if self.prefill is None:
            return [(self.engine, self.replicas, "")]
        return [(self.prefill, self.prefill_replicas, "prefill"),
                (self.engine, self.replicas, "decode")]  # fmt: skip

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.engine.served.devices * self.replicas + self.fillers

    @property
    def fillers(self) -> int:
        """Return the number of devices that only fill caches."""
        return 0 if self.prefill is None else self.prefill.served.devices * self.prefill_replicas

    @property
    def system_text(self) -> str:
        """Return the name of the system, or of both systems."""
        return " and ".join(dict.fromkeys(e.served.system.name for e, _, _ in self.parts))

    @property
    def usd_per_hour(self) -> float | None:
        """Return the dollars of all devices and an hour, where systems have prices."""
        total = 0.0
        for engine, count, _ in self.parts:
            usd = engine.served.system.device.price_per_hour
            if usd is None:
                return None
            total += usd * count * engine.served.devices
        return total

    @property
    def plan_text(self) -> str:
        """Return the plan of a replica and the number of replicas."""
        text = f"{self.engine.served.plan_text} x {self.replicas}"
        if self.router != ROUTERS[0] and max(self.replicas, self.prefill_replicas) > 1:
            text += f" ({self.router})"
        if self.engine.speculation is not None:
            text += f", {self.engine.speculation.tokens} draft tokens"
        if self.prefill is None:
            return text
        return f"prefill {self.prefill.served.plan_text} x {self.prefill_replicas}, decode {text}"

    @property
    def scheduler_text(self) -> str:
        """Return the schedulers."""
        text = self.engine.options.text
        if self.prefill is None or self.prefill.options.text == text:
            return text
        return f"prefill {self.prefill.options.text}, decode {text}"

    def alone_s(self, workload: Workload) -> tuple[float, float]:
        """Return the TTFT and the TPOT of a request of mean length that is alone."""
        tokens, output = (max(1, round(x)) for x in (workload.mean_input, workload.mean_output))
        single = Workload(BURST, input_length=str(tokens), output_length=str(output)).draw(1)
        summary = summarize(self.serve(single), ServiceLevels(), window=False)
        return summary.ttft.mean_s, summary.tpot.mean_s

    def serve(self, requests: Requests, users: int = 0) -> list[ServedRequests]:
        """Serve requests, which a router sends to the replicas.

        Users of a closed loop ask again when they have their answer. With devices apart the times
        of their requests are a fixed point: what happens after a time changes nothing before it, so
        that each round knows at least one arrival more, until no arrival changes.
        """
        if self.prefill is None:
            replicas = Replicas(self.replicas, self.router)
            return [served for _, served in self.engine.serve(requests, replicas, users)]
        if not users or users >= len(requests):
            return self._serve_apart(self.prefill, requests)
        arrival = requests.arrival_ps[:users]
        while True:
            known = replace(requests.some(np.arange(arrival.size)), arrival_ps=arrival)
            served = self._serve_apart(self.prefill, known)
            finish = np.sort(np.concatenate([part.finish_ps for part in served]))
            arrival = np.append(arrival[:users], finish)[: len(requests)]
            if np.array_equal(known.arrival_ps, arrival):
                return served

    def _serve_apart(self, prefill: ServingEngine, requests: Requests) -> list[ServedRequests]:
        """Fill caches, send them, and decode."""
        replicas = Replicas(self.replicas, self.router)
        fillers = Replicas(self.prefill_replicas, self.router)
        first = np.zeros(len(requests), np.int64)
        start = np.zeros(len(requests), np.int64)
        result: list[ServedRequests] = []
        more = requests.output_tokens > 1
        for which, part in prefill.serve(requests.of_one_token(), fillers):
            first[which], start[which], host_ps = part.first_ps, part.start_ps, part.host_ps
            result.append(part.some(np.flatnonzero(~more[which])))
        sent = np.rint(self.transfer_s(requests.input_tokens) * PICOSECONDS).astype(np.int64)
        ready = first + sent
        order = np.argsort(ready, kind="stable")
        order = order[more[order]]
        moved = replace(requests, arrival_ps=ready, prefix_id=np.full(len(requests), -1, np.int64))
        for which, part in self.engine.serve(moved.some(order), replicas, filled=True):
            positions = order[which]
            part = replace(
                part, first_ps=first[positions], start_ps=start[positions], host_ps=host_ps
            )
            result.append(replace(part, requests=requests.some(positions)))
        return result

    def capacity_per_s(self, workload: Workload, known: Capacities | None = None) -> float:
        """Return the most requests per second that can be served.

        Parameters
        ----------
        workload : Workload
        known : dict, optional
            Remembers what the engines of other deployments can serve.
        """
        known = {} if known is None else known
        rates = []
        for engine, count, phase in self.parts:
            key = engine, phase == "decode", phase == "prefill"
            if key not in known:
                known[key] = engine.capacity_per_s(workload, *key[1:])
            rates.append(count * known[key])
        return min(rates)

    def transfer_s(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds in which the caches of requests reach the devices that decode.

        The devices of a replica send at once, over the network between nodes, of two systems that
        of the slower one; nothing is hidden behind the computation.
        """
        assert self.prefill is not None
        pairs = min(self.prefill.served.devices, self.engine.served.devices)
        size = tokens * self.engine.memory.token_bytes * self.engine.served.devices / pairs
        rates, latencies = [], []
        for system in (self.engine.served.system, self.prefill.served.system):
            net, per_node = system.inter_node, system.intra_node.devices_per_node
            rates.append(net.bandwidth_per_nic_GBps * 1e9 * min(1.0, net.nics_per_node / per_node))
            latencies.append(net.latency_us * 1e-6)
        return np.asarray(max(latencies) + size / min(rates))


def run_deployment(
    deployment: ServingSetup,
    workload: Workload,
    levels: ServiceLevels,
    capacity_per_s: float | None = None,
) -> tuple[ServiceSummary, list[ServedRequests]]:
    """Serve a workload until it is steady, and summarize it.

    A run is prolonged until it is as long as several requests live, the halves of its window agree,
    and the sampling errors of the percentile of the levels are small. Where more requests arrive
    than can be served there is no steady state: what is served is measured while requests wait.

    Parameters
    ----------
    deployment : ServingSetup
    workload : Workload
    levels : ServiceLevels
    capacity_per_s : float, optional
        That of the deployment (:meth:`ServingSetup.capacity_per_s`); None: computed where requests
        arrive at a rate.

    Raises
    ------
    SimulationError
        DIST0761 for a request that the caches do not hold, and arrivals over a longer time than the
        clock has.
    """
    open_ended = workload.kind in (POISSON, CLOSED) and not workload.count
    rate = workload.rate_per_s
    if rate and capacity_per_s is None:
        capacity_per_s = deployment.capacity_per_s(workload)
    overloaded = bool(rate and capacity_per_s is not None and rate > capacity_per_s)
    count = _first_count(deployment, workload, overloaded, levels)
    most_requests = max(count, int(min(_MOST_REQUESTS, _MOST_TOKENS / workload.mean_output)))
    if workload.users and deployment.prefill is not None:
        most_requests = min(most_requests, math.isqrt(_MOST_ROUNDS * workload.users))
    if workload.kind == POISSON:
        most_requests = min(most_requests, max(count, _in_clock(workload)))
    while True:
        requests = workload.draw(count)
        served = deployment.serve(requests, workload.users)
        summary = summarize(served, levels, window=open_ended, overloaded=overloaded)
        if overloaded and open_ended and summary.requests_per_s >= (rate or 0.0):
            overloaded, capacity_per_s = False, summary.requests_per_s  # by other draws, it is more
            continue
        life, last = summary.e2e.p50_s, int(requests.arrival_ps[-1]) / PICOSECONDS
        enough = not last or last >= _LIVES * life
        known = all(x.precise(levels.percentile) for x in (summary.ttft, summary.tpot))
        done = overloaded or (summary.steady and enough and known)
        if not open_ended or done or 2 * count > most_requests:
            break
        count = 2 * count if enough else max(2 * count, math.ceil(_LIVES * life * count / last))
        count = min(count, most_requests)
    if rate and capacity_per_s is not None:
        capacity_per_s = max(capacity_per_s, summary.requests_per_s)
        summary = replace(summary, offered_per_s=rate, capacity_per_s=capacity_per_s)
    return summary, served


def _first_count(
    deployment: ServingSetup, workload: Workload, overloaded: bool, levels: ServiceLevels
) -> int:
    """Return the requests of the first run, as many as the percentile of the levels needs."""
    if workload.count or workload.kind == BURST:
        return workload.count or _BURST
    most = int(min(_REQUESTS, max(_FEWEST, _TOKENS // workload.mean_output)))
    if workload.kind == CLOSED:
        return max(_LIVES * workload.users, min(most, max(_FEWEST, _CYCLES * workload.users)))
    most = min(max(most, levels.fewest), _in_clock(workload))
    if overloaded:
        batch = deployment.engine.largest_batch(workload) * deployment.replicas
        return max(most, _LIVES * batch)
    return most


def _in_clock(workload: Workload) -> int:
    """Return the most requests that arrive while there is time, and at least some."""
    return max(_FEWEST // 4, int(min(0.4 * CLOCK_S * workload.rate, 1e15)))


def most_requests_per_s(deployment: ServingSetup, workload: Workload) -> float:
    """Return an upper bound of the requests per second that a deployment can serve.

    Every token takes at least its share of the fastest step, per token, in which it can be: one
    that decodes, or that fills caches, with nothing in the caches before. Each stage works on one
    step at a time, so that the bound of each is one of all.
    """
    engine = deployment.engine
    times, inputs, outputs = engine.times, workload.mean_input, workload.mean_output
    most = max(1, engine.largest_batch(workload))
    batches = np.unique(np.append(times.batches[times.batches <= most], most))
    nothing = np.zeros_like(batches)
    decode = engine.surface.decode_parts_ps(batches, nothing)[::2]
    filling = engine.surface.prefill_parts_ps(
        np.maximum(batches // engine.served.pools, 2), nothing
    )
    steps = np.minimum(decode, filling[::2]) / PICOSECONDS
    decode_s = (steps / batches).min(axis=1) / times.gain
    filler = engine if deployment.prefill is None else deployment.prefill
    tokens = np.minimum(times.tokens, filler.options.tokens)
    spans = filler.surface.prefill_parts_ps(tokens, np.zeros_like(tokens))[::2]
    fill_s = (spans / tokens).min(axis=1) / PICOSECONDS * inputs / filler.served.pools
    if deployment.prefill is not None:
        rate = deployment.replicas / (max(outputs - 1, 0.5) * float(decode_s.max()))
        return min(rate, deployment.prefill_replicas / float(fill_s.max()))
    least_s = np.maximum((outputs - 1) * decode_s, fill_s).max()
    return deployment.replicas / max(float(least_s), 1e-12)
