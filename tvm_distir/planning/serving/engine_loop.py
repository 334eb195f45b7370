# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the requests of a workload through an engine, by the native event loop.

A replica in pipeline stages has as many groups of requests in flight as stages, as vLLM and SGLang
do: a step of each group passes the stages in order, and a stage works on one step at a time. Each
group takes requests as a replica does, and has its part of the caches.

Routers of replicas: ``round_robin`` sends requests to them in turn; ``least_requests`` sends
a request to the first of those with the fewest requests in flight when it arrives ("join the
shortest queue", Winston 1977).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.support import SimulationError, load_library, nearest

from .batching import SCHEDULERS, SchedulerOptions, StepTimes
from .lengths import Ints, workload_fault
from .workload import Requests

ROUTERS = ("round_robin", "least_requests")
UNIT = 1 << 16
"""Fixed point of the tokens that a request gains in a step."""
RunStep = Callable[[list[tuple[int, ...]]], list[int]]
"""Runs a step, see :meth:`EngineLoop.serve_steps`."""
_FIELDS, _STEP_FIELDS = 7, 6
_STEPS = 1 << 20
"""Steps that there is room for at first."""


@dataclass(frozen=True)
class ServedRequests:
    """Times of the requests of a replica, and the steps that served them.

    Attributes
    ----------
    requests : Requests
        With the arrivals that users of a closed loop have.
    first_ps, finish_ps : int64 arrays (requests,)
        When the first token and the last are there.
    start_ps : int64 array (requests,)
        When the first step works on a request.
    preemptions : int64 array (requests,)
    steps : int64 array (steps, 5)
        Begin, time, requests that decode, tokens of prompts, and pages in use.
    host_ps : int
        What the host takes for a request before it waits for its first step.
    """

    requests: Requests
    first_ps: Ints
    finish_ps: Ints
    start_ps: Ints
    preemptions: Ints
    steps: Ints
    host_ps: int = 0

    def some(self, which: Ints) -> ServedRequests:
        """Return some of the requests, with all steps."""
        names = ("first_ps", "finish_ps", "start_ps", "preemptions")
        columns = {name: getattr(self, name)[which] for name in names}
        return replace(self, requests=self.requests.some(which), **columns)


@dataclass(frozen=True)
class Replicas:
    """Replicas of an engine, which take requests from a router.

    Attributes
    ----------
    count : int
    router : str
        One of :data:`ROUTERS`.
    """

    count: int = 1
    router: str = ROUTERS[0]

    def __post_init__(self) -> None:
        """Refuse an unknown router (SimulationError DIST0761)."""
        if self.router not in ROUTERS:
            problem = f'unknown router "{self.router}"'
            raise workload_fault(problem, "router", nearest(self.router, ROUTERS))


@dataclass(frozen=True)
class EngineLoop:
    """Replicas of an engine that serve requests.

    Attributes
    ----------
    times : StepTimes
    options : SchedulerOptions
        The groups of a replica have the most requests that run at a time together.
    pages, page : int
        Pages of the caches of a replica, and positions of each; of the pages each group of a
        replica has its part.
    users : int
        Users that ask again when they have their answer; 0: requests arrive when they say.
    filled : bool
        Whether requests arrive with full caches, from the devices that filled them.
    pools : int
        Parts of data parallelism. The prompt of a request is in one of them; all take a step
        together.
    replicas : Replicas
    host_ps : int
        What the host takes for a request, from its arrival until the router sends it. Steps go on
        in the meantime.
    """

    times: StepTimes
    options: SchedulerOptions
    pages: int
    page: int
    users: int = 0
    filled: bool = False
    pools: int = 1
    replicas: Replicas = Replicas()
    host_ps: int = 0

    def serve(self, requests: Requests) -> list[tuple[Ints, ServedRequests]]:
        """Return the places of the requests of each group of each replica, and their times.

        Parameters
        ----------
        requests : Requests
            In order of arrival.

        Raises
        ------
        SimulationError
            DIST0761 for a request that the caches do not hold.
        """
        count = len(requests)
        total, capacity = _STEPS, 0
        while (
            total > capacity
        ):  # the run is the same each time, and writes as many steps as have room
            capacity = total
            records = np.zeros(count * _FIELDS, np.int64)
            steps = np.zeros(capacity * _STEP_FIELDS, np.int64)
            total = self._call("serve", requests, records, steps)
        first, finish, preemptions, _, start, arrival, replica = records.reshape(
            count, _FIELDS
        ).T.copy()
        requests = replace(requests, arrival_ps=arrival)
        done = steps.reshape(-1, _STEP_FIELDS)[:total]
        result = []
        for number in range(self.replicas.count * self.times.stages):
            which = np.flatnonzero(replica == number)
            served = ServedRequests(
                requests.some(which), first[which], finish[which], start[which], preemptions[which],
                done[done[:, -1] == number, :-1].copy(), self.host_ps,
            )  # fmt: skip
            result.append((which, served))
        return result

    def serve_steps(self, requests: Requests, run_step: RunStep) -> Ints:
        """Serve requests by steps that run; returns :attr:`ServedRequests.steps` of the replica.

        Parameters
        ----------
        requests : Requests
            In order of arrival.
        run_step : callable
            Runs a step, given three numbers of each request that it works on: its place, the tokens
            in its cache before the step, and the tokens that the step adds. They are followed by
            those of all requests that run, with 0 tokens. Returns the places of the requests that
            end with the token that they generate.

        Raises
        ------
        SimulationError
            As :meth:`serve`.
        """
        steps: list[Sequence[int]] = []
        failures: list[BaseException] = []

        def run(numbers: Sequence[int]) -> list[int]:
            width = _STEP_FIELDS - 1
            steps.append(numbers[:width])
            try:
                return run_step(
                    list(zip(*(numbers[width + k :: 3] for k in range(3)), strict=True))
                )
            except BaseException as failure:  # an interrupt would become a RuntimeError of the FFI
                failures.append(failure)
                raise

        records = np.zeros(len(requests) * _FIELDS, np.int64)
        try:
            self._call("serve_steps", requests, records, np.zeros(0, np.int64), run)
        except Exception as error:
            raise (failures or [error])[0] from None
        return np.array(steps, np.int64)

    def _call(
        self, name: str, requests: Requests, records: Ints, steps: Ints, *more: object
    ) -> int:
        """Call a native loop, which fills ``records`` and ``steps``; return the steps it took."""
        import tvm_ffi

        arrays = (*self._arrays(requests), records, steps)
        total = int(load_library()[name](*map(tvm_ffi.from_dlpack, arrays), *more))
        if total < 0:
            raise too_long(requests, self.pages // self.times.stages * self.page)
        return total

    def _arrays(self, requests: Requests) -> list[Ints]:
        """Return the numbers that the native loop reads."""
        times, options, replicas = self.times, self.options, self.replicas
        pages, most = self.pages // times.stages, max(1, options.requests // times.stages)
        filled = np.full(len(requests), int(self.filled), np.int64)
        numbers = [
            SCHEDULERS.index(options.kind), options.tokens, most, pages, self.page,
            round((options.step_overhead_us or 0.0) * 1e6), round(times.gain * UNIT), self.users,
            self.pools, replicas.count, ROUTERS.index(replicas.router), times.stages, self.host_ps,
        ]  # fmt: skip
        return [
            np.stack([*vars(requests).values(), filled], axis=1).ravel(),
            np.array(numbers, np.int64), times.batches, times.contexts, times.decode_ps.ravel(),
            times.tokens, times.pasts, times.prefill_ps.ravel(),
        ]  # fmt: skip


def too_long(requests: Requests, tokens: int) -> SimulationError:
    """Return the error of a request that caches of so many tokens do not hold."""
    most = int((requests.input_tokens + requests.output_tokens).max())
    return SimulationError(
        "DIST0761", f"a request of up to {most} tokens does not fit in caches of {tokens} tokens",
        location="workload",
        remedy="Use more devices, caches of a narrower type, or shorter requests.",
    )  # fmt: skip


def seconds(time_ps: Ints) -> npt.NDArray[np.float64]:
    """Return picoseconds as seconds."""
    return np.asarray(time_ps / PICOSECONDS, np.float64)
