# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve a workload by replicas of an engine, together or with prefill and decode apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tvm_distir.core import PICOSECONDS
from tvm_distir.support import SimulationError

from .batching import (
    ROUTERS,
    Replicas,
    SchedulerOptions,
    ServedRequests,
    Speculation,
    StepTimes,
    serve_by_replicas,
)
from .levels import ServiceLevels, ServiceSummary, summarize
from .served_model import ServedModel
from .surface import StepMemory, Surface
from .workload import CLOSED, POISSON, Ints, Requests, Workload

MEMORY_SHARE = 0.9
"""The share of a device's memory that an engine takes."""
_FIRST_COUNT, _LONGEST, _DOUBLINGS = 240, 12000, 4


@dataclass(frozen=True)
class ServingEngine:
    """Engine of a replica: steps with their times, and the memory for caches.

    Attributes
    ----------
    served : ServedModel
    surface : Surface
    times : StepTimes
    options : SchedulerOptions
    speculation : Speculation, optional
    """

    served: ServedModel
    surface: Surface
    times: StepTimes
    options: SchedulerOptions
    speculation: Speculation | None = None

    @staticmethod
    def of(served: ServedModel, options: SchedulerOptions) -> ServingEngine:
        """Tabulate the steps of a model."""
        surface = Surface(served)
        return ServingEngine(served, surface, StepTimes.of(surface), options)

    def with_options(self, options: SchedulerOptions) -> ServingEngine:
        """Return the engine with another scheduler."""
        return ServingEngine(self.served, self.surface, self.times, options, self.speculation)

    def with_speculation(self, speculation: Speculation) -> ServingEngine:
        """Return the engine with a draft model (DIST0761 for an impossible acceptance)."""
        times = speculation.times(self.served, self.times)
        return ServingEngine(self.served, self.surface, times, self.options, speculation)

    @cached_property
    def memory(self) -> StepMemory:
        """Return the memory of a device."""
        return self.surface.memory(self.options.tokens * self.served.pools)

    @cached_property
    def pages(self) -> int:
        """Return the pages that the rest of the memory holds."""
        share = self.served.system.memory_capacity_bytes * MEMORY_SHARE
        return self.memory.tokens(share) // self.served.page

    def largest_batch(self, workload: Workload) -> int:
        """Return the requests of mean length that the caches hold."""
        tokens = workload.mean_input + workload.mean_output
        most = self.options.requests * self.served.pools
        return min(most, int(self.pages * self.served.page // tokens))

    def serve(
        self, requests: Requests, replicas: Replicas, users: int = 0, filled: bool = False
    ) -> list[tuple[Ints, ServedRequests]]:
        """Serve requests by replicas: of each group the places of its requests, and times."""
        system = self.served.system
        times = self.times.with_host(
            system.constant("serving_request_us"), system.constant("serving_prompt_us")
        )
        options = self.options.of_system(system)
        return serve_by_replicas(
            requests, times, options, self.pages, self.served.page, users, filled,
            self.served.pools, replicas,
        )  # fmt: skip


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
        One of :data:`.batching.ROUTERS`, for the replicas of both.
    """

    engine: ServingEngine
    replicas: int = 1
    prefill: ServingEngine | None = None
    prefill_replicas: int = 0
    router: str = ROUTERS[0]

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        count = self.engine.served.devices * self.replicas
        if self.prefill is not None:
            count += self.prefill.served.devices * self.prefill_replicas
        return count

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

    def serve(self, requests: Requests, users: int = 0) -> list[ServedRequests]:
        """Serve requests, which a router sends to the replicas."""
        replicas = Replicas(self.replicas, self.router)
        if self.prefill is None:
            return [served for _, served in self.engine.serve(requests, replicas, users)]
        fillers = Replicas(self.prefill_replicas, self.router)
        alone = replace(requests, output_tokens=np.ones_like(requests.output_tokens))
        first = np.zeros(len(requests), np.int64)
        start = np.zeros(len(requests), np.int64)
        for which, part in self.prefill.serve(alone, fillers):
            first[which], start[which] = part.first_ps, part.start_ps
        sent = np.rint(self.transfer_s(requests.input_tokens) * PICOSECONDS).astype(np.int64)
        more = requests.output_tokens > 1
        ready = np.where(more, first + sent, first)
        order = np.argsort(ready, kind="stable")
        order = order[more[order]]
        moved = replace(requests, arrival_ps=ready, prefix_id=np.full(len(requests), -1, np.int64))
        result = []
        for which, part in self.engine.serve(moved.some(order), replicas, filled=True):
            places = order[which]
            result.append(
                replace(
                    part,
                    requests=requests.some(places),
                    first_ps=first[places],
                    start_ps=start[places],
                )
            )
        return result

    def transfer_s(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds in which the caches of requests reach the devices that decode.

        The devices of a replica send at once, over the network between nodes; nothing is hidden
        behind the computation.
        """
        assert self.prefill is not None
        pairs = min(self.prefill.served.devices, self.engine.served.devices)
        memory = self.engine.memory
        size = tokens * memory.token_bytes * self.engine.served.devices / pairs
        system = self.engine.served.system
        net, per_node = system.inter_node, system.intra_node.devices_per_node
        rate = net.bandwidth_per_nic_GBps * 1e9 * min(1.0, net.nics_per_node / per_node)
        return np.asarray(net.latency_us * 1e-6 + size / rate)


def run_deployment(
    deployment: ServingSetup,
    workload: Workload,
    levels: ServiceLevels,
    count: int = 0,
    overhead_s: float = 0.0,
) -> tuple[ServiceSummary, list[ServedRequests]]:
    """Serve a workload until it is steady, and summarize it.

    The run is doubled until the halves of its window agree, four times at most.

    Parameters
    ----------
    deployment : ServingSetup
    workload : Workload
    levels : ServiceLevels
    count : int
        Requests of the first run; 0: as the workload needs.
    overhead_s : float
        What the host adds to each request.

    Raises
    ------
    SimulationError
        DIST0761 for a request that the caches do not hold, or users of devices that are apart.
    """
    open_ended = workload.kind in (POISSON, CLOSED) and not workload.count
    if deployment.prefill is not None and workload.kind == CLOSED:
        raise SimulationError(
            "DIST0761",
            "users of a closed loop cannot be served by devices that are apart",
            place="workload",
            remedy="Use poisson:RATE, burst or a trace.",
        )
    users = workload.users if workload.kind == CLOSED else 0
    count = count or workload.count or max(_FIRST_COUNT, 6 * users)
    for attempt in range(_DOUBLINGS + 1):
        served = deployment.serve(workload.draw(count), users)
        summary = summarize(served, levels, window=open_ended, overhead_s=overhead_s)
        if not open_ended or summary.steady or attempt == _DOUBLINGS or 2 * count > _LONGEST:
            break
        count *= 2
    return summary, served


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
