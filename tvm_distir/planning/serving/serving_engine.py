# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the engine of a replica: its steps, its memory, and the rate it serves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.planning.lighter_weights import lighter_kinds, remedy_of
from tvm_distir.planning.weight_types import with_weights
from tvm_distir.support import SimulationError

from .batching import SchedulerOptions, StepTimes
from .engine_loop import EngineLoop, Replicas, ServedRequests, too_long
from .lengths import Ints
from .levels import ServiceLevels, summarize
from .served_model import ServedModel
from .speculation import Speculation
from .step_memory import StepMemory
from .surface import Surface
from .workload import Requests, Workload

MEMORY_SHARE = 0.9
"""The share of a device's memory that an engine takes."""
_SATURATED_LIVES = 8
"""Lives of requests in a run that measures how many can be served."""


@dataclass(frozen=True, eq=False)
class EngineMemory:
    """Memory of an engine, which is known without the times of its steps.

    Attributes
    ----------
    served : ServedModel
    surface : Surface
    options : SchedulerOptions
    """

    served: ServedModel
    surface: Surface
    options: SchedulerOptions

    @staticmethod
    def of_model(served: ServedModel, options: SchedulerOptions) -> EngineMemory:
        """Return the memory of an engine of a model, whose steps are not tabulated."""
        return EngineMemory(served, Surface(served), options)

    @cached_property
    def memory(self) -> StepMemory:
        """Return the memory of a device."""
        return self.surface.memory(self.options.tokens * self.served.pools)

    @cached_property
    def pages(self) -> int:
        """Return the pages that the rest of the memory holds."""
        share = self.served.system.memory_capacity_bytes * MEMORY_SHARE
        if not self.surface.least_memory().tokens(share):  # the weights alone fill the memory
            return 0
        return self.memory.tokens(share) // self.served.page

    def largest_batch(self, workload: Workload) -> int:
        """Return the requests of mean length that the caches hold."""
        tokens = workload.mean_input + workload.mean_output
        most = self.options.requests * self.served.pools
        return min(most, int(self.pages * self.served.page // tokens))

    def with_room(self, workload: Workload) -> EngineMemory:
        """Return the memory, where the caches hold a request of mean length.

        Raises
        ------
        SimulationError
            DIST0761, which names the types of weights that leave room for one.
        """
        if self.largest_batch(workload) < 1:
            tokens = self.pages // self.served.stages * self.served.page
            error = too_long(workload.at_once(2 * _SATURATED_LIVES), tokens)
            remedy = remedy_of(self.lighter_kinds(workload)) + error.remedy
            raise SimulationError(error.code, error.what, location=error.location, remedy=remedy)
        return self

    def lighter_kinds(self, workload: Workload) -> list[str]:
        """Return the types of weights that leave room for a request of mean length."""
        system, kinds = self.served.system, []
        for kind in lighter_kinds(system):
            served = replace(self.served, system=with_weights(system, kind))
            if EngineMemory.of_model(served, self.options).largest_batch(workload) >= 1:
                kinds.append(kind)
        return kinds

    def with_times(self) -> ServingEngine:
        """Return the engine, whose steps are tabulated."""
        return ServingEngine(self.served, self.surface, self.options, StepTimes.of(self.surface))


@dataclass(frozen=True, eq=False)
class ServingEngine(EngineMemory):
    """Engine of a replica: steps with their times, and the memory for caches.

    Attributes
    ----------
    times : StepTimes
    speculation : Speculation, optional
    """

    times: StepTimes
    speculation: Speculation | None = None

    @staticmethod
    def of(served: ServedModel, options: SchedulerOptions) -> ServingEngine:
        """Tabulate the steps of a model."""
        return EngineMemory.of_model(served, options).with_times()

    def with_options(self, options: SchedulerOptions) -> ServingEngine:
        """Return the engine with another scheduler."""
        return replace(self, options=options)

    def with_speculation(self, speculation: Speculation) -> ServingEngine:
        """Return the engine with a draft model (DIST0761 for an impossible acceptance)."""
        times = speculation.times(self.served, self.times)
        return replace(self, times=times, speculation=speculation)

    def serve(
        self, requests: Requests, replicas: Replicas, users: int = 0, filled: bool = False
    ) -> list[tuple[Ints, ServedRequests]]:
        """Serve requests by replicas: of each group the places of its requests, and times."""
        system = self.served.system
        host_ps = 0 if filled else round(system.constant("serving_prompt_us") * 1e6)
        loop = EngineLoop(
            self.times.with_host(system.constant("serving_request_us") / self.served.pools),
            self.options.of_system(system), self.pages, self.served.page, users, filled,
            self.served.pools, replicas, host_ps,
        )  # fmt: skip
        return loop.serve(requests)

    def capacity_per_s(
        self, workload: Workload, filled: bool = False, alone: bool = False
    ) -> float:
        """Return the most requests per second that a replica can serve.

        They are those of a closed loop with twice the users that the engine works on at a time. A
        queue of an open loop with more arrivals grows without end. Users begin at once, and again
        one by one: requests of equal lengths stay as far apart as they began, and take pages of the
        caches at the same time or one after another.

        Parameters
        ----------
        workload : Workload
            Lengths, prefixes and seed.
        filled, alone : bool
            Whether requests arrive with full caches, and whether their caches are filled only.
        """
        users = 2 * max(1, self.largest_batch(workload))
        requests = workload.at_once(_SATURATED_LIVES * users)
        most, share = 0.0, 1.0
        if alone:
            requests = requests.of_one_token()
        if filled:  # requests of one token have it already
            more = np.flatnonzero(requests.output_tokens > 1)
            if not more.size:
                return math.inf
            requests, share = requests.some(more), more.size / len(requests)
        for _ in range(2):
            served = [part for _, part in self.serve(requests, Replicas(), users, filled)]
            most = max(most, summarize(served, ServiceLevels(), window=True).requests_per_s)
            positions = np.arange(len(requests)) * (PICOSECONDS / max(most, 1e-6))
            requests = replace(requests, arrival_ps=np.rint(positions).astype(np.int64))
        return most / share


Capacities = dict[tuple[ServingEngine, bool, bool], float]
"""What engines can serve, filled caches or answers of one token alone: see capacity_per_s."""
