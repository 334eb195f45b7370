# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the requests of a workload through an engine, by the native event loop where it is installed.

Schedulers: ``continuous`` decodes every running request in each step, and fills caches with what
is left of the tokens of a step (Agrawal et al. 2024, "Sarathi-Serve"); ``prefill_first`` fills the
caches of waiting requests in steps of their own, before others go on (Yu et al. 2022, "Orca");
``static`` admits requests when all before have ended.

A replica in pipeline stages has as many groups of requests in flight as stages, as vLLM and SGLang
do: a step of each group passes the stages in order, and a stage works on one step at a time. Each
group takes requests as a replica does, and has its part of the caches.

Routers of replicas: ``round_robin`` sends requests to them in turn; ``least_requests`` sends
a request to the first of those with the fewest requests in flight when it arrives ("join the
shortest queue", Winston 1977).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS, System
from tvm_distir.support import SimulationError, load_library, nearest, reference

from .served_model import ServedModel
from .surface import Surface
from .workload import Ints, Requests, workload_fault

SCHEDULERS = ("continuous", "prefill_first", "static")
ROUTERS = ("round_robin", "least_requests")
UNIT = 1 << 16
"""Fixed point of the tokens that a request gains in a step."""
_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_CONTEXTS = (0, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_TOKENS = (2, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
           8192, 12288, 16384, 32768)  # fmt: skip
_PASTS = (0, 1024, 4096, 16384, 65536)
_FIELDS, _STEP_FIELDS = 7, 6
_STEPS = 1 << 20
"""Steps that there is room for at first."""


@dataclass(frozen=True)
class SchedulerOptions:
    """Scheduler of an engine.

    Attributes
    ----------
    kind : str
        One of :data:`SCHEDULERS`.
    tokens : int
        The most tokens of a step, of each part of data parallelism.
    requests : int
        The most requests that run at a time, of each part.
    step_overhead_us : float, optional
        What the host takes between two steps; None: the constant ``serving_step_us`` of the system.
    """

    kind: str = "continuous"
    tokens: int = 2048
    requests: int = 256
    step_overhead_us: float | None = None

    @property
    def text(self) -> str:
        """Return the scheduler with the limits of a step."""
        return f"{self.kind}:tokens={self.tokens},requests={self.requests}"

    @staticmethod
    def parse(text: str) -> SchedulerOptions:
        """Read ``KIND[:tokens=N,requests=N,step_overhead_us=X]``.

        Raises
        ------
        SimulationError
            DIST0761.
        """
        kind, _, rest = text.partition(":")
        if kind not in SCHEDULERS:
            raise workload_fault(f'unknown scheduler "{kind}"', text, nearest(kind, SCHEDULERS))
        options = SchedulerOptions(kind)
        for item in rest.split(",") if rest else []:
            key, _, value = item.partition("=")
            try:
                if key == "tokens":
                    options = replace(options, tokens=int(value))
                elif key == "requests":
                    options = replace(options, requests=int(value))
                elif key == "step_overhead_us":
                    options = replace(options, step_overhead_us=float(value))
                else:
                    raise ValueError(key)
            except ValueError as error:
                known = "Use tokens=N, requests=N or step_overhead_us=X."
                raise workload_fault(f'"{item}" is no option', text, known) from error
        if min(options.tokens, options.requests) < 1 or (options.step_overhead_us or 0.0) < 0:
            raise workload_fault("an option is not positive", text, "Give positive numbers.")
        return options

    def of_system(self, system: System) -> SchedulerOptions:
        """Return the options with the overhead of a system where none is stated."""
        if self.step_overhead_us is not None:
            return self
        return replace(self, step_overhead_us=system.constant("serving_step_us"))


@dataclass(frozen=True)
class StepTimes:
    """Tables of the times of steps, between which an engine interpolates.

    Attributes
    ----------
    batches, contexts : int64 arrays
        Axes of ``decode_ps``.
    decode_ps : int64 array (2 * stages - 1, batches, contexts)
        Of each part: see :class:`.surface.Surface`.
    tokens, pasts : int64 arrays
        Axes of ``prefill_ps``.
    prefill_ps : int64 array (2 * stages - 1, tokens, pasts)
    gain : float
        Tokens that a request gains by a step that decodes.
    """

    batches: Ints
    contexts: Ints
    decode_ps: Ints
    tokens: Ints
    pasts: Ints
    prefill_ps: Ints
    gain: float = 1.0

    @staticmethod
    def of(surface: Surface) -> StepTimes:
        """Tabulate a surface."""
        axes = [np.array(axis, np.int64) for axis in (_BATCHES, _CONTEXTS, _TOKENS, _PASTS)]
        decode, prefill = (
            evaluate(*(x.ravel() for x in np.meshgrid(a, b, indexing="ij"))).reshape(
                -1, a.size, b.size
            )
            for evaluate, a, b in (
                (surface.decode_parts_ps, axes[0], axes[1]),
                (surface.prefill_parts_ps, axes[2], axes[3]),
            )
        )
        return StepTimes(axes[0], axes[1], decode, axes[2], axes[3], prefill)

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return (len(self.decode_ps) + 1) // 2

    def with_host(self, request_us: float) -> StepTimes:
        """Return the times with those of the host for each request of a step that decodes.

        They are added in the last stage, which samples tokens.
        """
        requests = np.rint(self.batches * request_us * 1e6).astype(np.int64)
        decode = self.decode_ps.copy()
        decode[-1] += requests[:, None]
        return replace(self, decode_ps=decode)


@dataclass(frozen=True)
class Speculation:
    """Speculation of an engine: a draft model proposes tokens, which the model checks.

    Attributes
    ----------
    draft : str
        MODEL string of the draft model; empty: the model itself.
    tokens : int
        Tokens that it proposes in each step.
    acceptance : float
        The probability that a proposed token is accepted.
    """

    draft: str
    tokens: int
    acceptance: float

    def times(self, served: ServedModel, plain: StepTimes) -> StepTimes:
        """Return the times of an engine with speculation, from those of one without.

        Raises
        ------
        SimulationError
            DIST0761 for an acceptance that is no probability, and for stages.
        """
        if plain.stages > 1:
            problem = "the steps of a draft model are not divided over pipeline stages"
            raise workload_fault(problem, "draft_tokens", "Use a plan without stages.")
        target = Surface(served, self.tokens + 1)
        draft = Surface(replace(served, model=self.draft or served.model))
        return speculative(target, draft, self.acceptance, plain)


def speculative(target: Surface, draft: Surface, acceptance: float, plain: StepTimes) -> StepTimes:
    """Return the times of an engine whose draft model proposes tokens that the model checks.

    Parameters
    ----------
    target : Surface
        Of steps of ``new`` tokens of each request, one more than the draft model proposes.
    draft : Surface
    acceptance : float
        The probability that a proposed token is accepted.
    plain : StepTimes
        The times without speculation, whose prompts take as long.

    Raises
    ------
    SimulationError
        DIST0761 for an acceptance that is no probability.

    Notes
    -----
    Tokens per step are ``(1 - a^(k + 1)) / (1 - a)`` (Leviathan et al. 2023, "Fast inference from
    transformers via speculative decoding", eq. 1).
    """
    if not 0 <= acceptance <= 1:
        problem = f"a share of accepted tokens of {acceptance:g} is impossible"
        raise workload_fault(problem, "acceptance", "Give a share from 0 to 1.")
    count = target.new - 1
    pairs = [x.ravel() for x in np.meshgrid(plain.batches, plain.contexts, indexing="ij")]
    duration = target.decode_parts_ps(*pairs) + count * draft.decode_parts_ps(*pairs)
    gain = (
        float(target.new)
        if acceptance == 1
        else ((1 - acceptance ** (count + 1)) / (1 - acceptance))
    )
    return replace(plain, decode_ps=duration.reshape(plain.decode_ps.shape), gain=gain)


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
        times = (self.first_ps, self.finish_ps, self.start_ps, self.preemptions)
        first_ps, finish_ps, start_ps, preemptions = (x[which] for x in times)
        return replace(
            self,
            requests=self.requests.some(which),
            first_ps=first_ps,
            finish_ps=finish_ps,
            start_ps=start_ps,
            preemptions=preemptions,
        )


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


def serve_requests(
    requests: Requests,
    times: StepTimes,
    options: SchedulerOptions,
    pages: int,
    page: int,
    users: int = 0,
    filled: bool = False,
    pools: int = 1,
    host_ps: int = 0,
) -> ServedRequests:
    """Serve requests by one engine; see :func:`serve_by_replicas`."""
    ((_, served),) = serve_by_replicas(
        requests, times, options, pages, page, users, filled, pools, Replicas(), host_ps
    )
    return served


def serve_by_replicas(
    requests: Requests,
    times: StepTimes,
    options: SchedulerOptions,
    pages: int,
    page: int,
    users: int,
    filled: bool,
    pools: int,
    replicas: Replicas,
    host_ps: int = 0,
) -> list[tuple[Ints, ServedRequests]]:
    """Serve requests by replicas of an engine.

    Parameters
    ----------
    requests : Requests
        In order of arrival.
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

    Returns
    -------
    list of (int64 array, ServedRequests)
        Of each group of each replica: the places of its requests, and their times.

    Raises
    ------
    SimulationError
        DIST0761 for a request that the caches do not hold.
    """
    import tvm_ffi

    python = reference("serve")
    if python is not None:
        outcome: list[tuple[Ints, ServedRequests]] = python(
            requests, times, options, pages, page, users, filled, pools, replicas, host_ps
        ).run()
        return outcome
    count, stages = len(requests), times.stages
    pages, most = pages // stages, max(1, options.requests // stages)
    table = np.stack(
        [
            requests.arrival_ps, requests.input_tokens, requests.output_tokens, requests.prefix_id,
            requests.prefix_tokens, np.full(count, int(filled), np.int64),
        ],
        axis=1,
    )  # fmt: skip
    numbers = [
        SCHEDULERS.index(options.kind), options.tokens, most, pages, page,
        round((options.step_overhead_us or 0.0) * 1e6), round(times.gain * UNIT), users, pools,
        replicas.count, ROUTERS.index(replicas.router), stages, host_ps,
    ]  # fmt: skip
    arrays = [
        table.ravel(), np.array(numbers, np.int64), times.batches, times.contexts,
        times.decode_ps.ravel(), times.tokens, times.pasts, times.prefill_ps.ravel(),
    ]  # fmt: skip
    total, room = _STEPS, 0
    while total > room:  # the run is the same each time, and writes as many steps as have room
        room = total
        records = np.zeros(count * _FIELDS, np.int64)
        steps = np.zeros(room * _STEP_FIELDS, np.int64)
        tensors = (tvm_ffi.from_dlpack(a) for a in (*arrays, records, steps))
        total = int(load_library()["serve"](*tensors))
    if total < 0:
        raise too_long(requests, pages * page)
    first, finish, preemptions, _, start, arrival, replica = records.reshape(
        count, _FIELDS
    ).T.copy()
    requests = replace(requests, arrival_ps=arrival)
    done = steps.reshape(-1, _STEP_FIELDS)[:total]
    result = []
    for number in range(replicas.count * stages):
        which = np.flatnonzero(replica == number)
        served = ServedRequests(
            requests.some(which), first[which], finish[which], start[which], preemptions[which],
            done[done[:, -1] == number, :-1].copy(), host_ps,
        )  # fmt: skip
        result.append((which, served))
    return result


def too_long(requests: Requests, tokens: int) -> SimulationError:
    """Return the error of a request that caches of so many tokens do not hold."""
    most = int((requests.input_tokens + requests.output_tokens).max())
    return SimulationError(
        "DIST0761",
        f"a request of up to {most} tokens does not fit in caches of {tokens} tokens",
        place="workload",
        remedy="Use more devices, caches of a narrower type, or shorter requests.",
    )


def seconds(time_ps: Ints) -> npt.NDArray[np.float64]:
    """Return picoseconds as seconds."""
    return np.asarray(time_ps / PICOSECONDS, np.float64)
