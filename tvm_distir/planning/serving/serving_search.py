# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the way of serving a model that keeps service levels at the highest rate per device.

For each plan of a replica, scheduler and division of the devices, bisection finds the highest rate
of Poisson arrivals, always with the same draws. Choices are cut where a bound proves that they
break a level or cannot exceed the best one so far. The front is that of closed loops: tokens per
second of a user against those of a device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tvm_distir.hardware import System
from tvm_distir.planning.weight_types import with_weights

from .batching import SchedulerOptions
from .lengths import workload_fault
from .levels import ServiceLevels
from .serving_choices import ServingSearchResult
from .serving_trials import ServingTrials
from .speculation import Speculation
from .workload import TRACE, Workload

SCHEDULERS = ("continuous:tokens=512", "continuous:tokens=2048", "continuous:tokens=8192")
"""Schedulers that are tried by default."""


def searched_workload(
    workload: Workload | str, schedulers: Sequence[SchedulerOptions | str]
) -> tuple[Workload, list[SchedulerOptions]]:
    """Read a workload and schedulers; refuse a trace (SimulationError DIST0761)."""
    work = Workload.parse(workload) if isinstance(workload, str) else workload
    if work.kind == TRACE:
        problem = "a trace has its own rate, and the search varies the rate of requests"
        raise workload_fault(problem, work.path, "Give poisson:1 with in= and out=.")
    return work, [SchedulerOptions.parse(s) if isinstance(s, str) else s for s in schedulers]


def search_serving(
    model: str,
    devices: int,
    system: System | str,
    workload: Workload | str,
    levels: ServiceLevels,
    *,
    schedulers: Sequence[SchedulerOptions | str] = SCHEDULERS,
    kv_dtypes: Sequence[str] = ("",),
    weights: Sequence[str] = ("",),
    apart: bool = False,
    speculation: Speculation | None = None,
    front: bool = True,
    bounds: bool = True,
    router: str = "round_robin",
    stages: Sequence[int] = (1,),
) -> ServingSearchResult:
    """Search the way of serving that keeps the levels at the highest rate per device.

    Parameters
    ----------
    model : str
        MODEL string of a decoder.
    devices : int
    system : System or str
    workload : Workload or str
        Lengths and seed; its rate is what the search finds.
    levels : ServiceLevels
    schedulers : sequence of SchedulerOptions or str
    kv_dtypes : sequence of str
        Dtypes of caches to try.
    weights : sequence of str
        Types of weights to try: see :func:`tvm_distir.planning.weight_types.with_weights`.
    apart : bool
        Whether prefill and decode may have devices of their own.
    speculation : Speculation, optional
        A draft model, with which each plan is tried too.
    front : bool
        Whether to compute the front of closed loops.
    bounds : bool
        Whether to cut choices by bounds; False: simulate all.
    router : str
        The router of replicas: see :func:`.serving_report.serve_analyze`.
    stages : sequence of int
        Numbers of pipeline stages of a replica to try.

    Raises
    ------
    SimulationError
        DIST0761 for a workload, scheduler or router that is invalid, and for a trace.
    ModelError
        DIST0331 for a model without a serving step.
    UsageError
        DIST0152 for an unknown type of weights.

    Examples
    --------
    >>> from tvm_distir.planning import ServiceLevels
    >>> result = td.search_serving(
    ...     "zoo:llama?size=tiny", 1, "h100", "poisson:1,in=16,out=4,count=8",
    ...     ServiceLevels(ttft_s=1.0), schedulers=["continuous:tokens=512"], front=False,
    ... )
    >>> result.strategy
    'megatron'
    """
    resolved = System.required(system, "serve")
    work, options = searched_workload(workload, schedulers)
    search = ServingTrials(model, devices, resolved, work, levels, options, bounds, router, stages)
    systems = [with_weights(resolved, kind, model) for kind in weights]
    for quantized, kv_dtype in itertools.product(systems, kv_dtypes):
        search.engines(quantized, kv_dtype, speculation)
    search.rate(apart)
    if front:
        search.front()
    return search.result
