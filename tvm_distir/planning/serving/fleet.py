# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the fewest devices that serve a rate of requests within service levels.

For each system, plan of a replica and scheduler the replicas are as few as keep the levels. They
are found by doubling and bisection from a lower bound, the rate over what a replica can serve, as
more replicas are taken to keep what fewer keep. With devices apart, those that fill caches are the
fewest that keep the TTFT, on which the others have no influence, and those that decode are the
fewest that then keep all levels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from tvm_distir.hardware import System
from tvm_distir.planning.weight_types import with_weights

from .batching import SchedulerOptions
from .fleet_result import FleetChoice, FleetResult
from .lengths import workload_fault
from .levels import ServiceLevels, ServiceSummary
from .serving_choices import CutChoice
from .serving_engine import ServingEngine
from .serving_run import ServingSetup, run_deployment
from .serving_search import SCHEDULERS, searched_workload
from .serving_trials import ServingTrials
from .speculation import Speculation
from .workload import POISSON, Workload

_DOUBLINGS = 4
_NEVER = f"levels break with {1 << _DOUBLINGS} times the least replicas, too"


class FleetTrials(ServingTrials):
    """State of a search for the fewest devices of a system."""

    def fewest(self, disaggregated: bool) -> list[FleetChoice]:
        """Return the fewest devices of each plan, with its best scheduler; the rest is cut."""
        best: dict[str, FleetChoice] = {}
        engines = []
        for engine in (e.with_options(o) for e in self._engines for o in self.options):
            single = ServingSetup(engine, router=self.router)
            plan = self._plan_text(single)
            choice = self._replicas(single, best.get(plan))
            if choice is not None:
                best[plan] = choice
            if self._capacity_per_s(single):
                engines.append(engine)
        return [*best.values(), *(self._apart(engines) if disaggregated else [])]

    def _replicas(self, single: ServingSetup, known: FleetChoice | None) -> FleetChoice | None:
        """Return the fewest replicas, if they have fewer devices than the known choice."""
        capacity = self._capacity_per_s(single)
        why = self._cut(single, capacity) if capacity else "its caches do not hold the requests"
        if not why:
            least = math.ceil(self.work.rate / capacity)
            devices = least * single.devices
            if known is not None and devices >= known.devices:
                why = f"at least {devices} devices, {known.devices} are enough"
            else:
                sized = self._bisected(single, False, self.levels, least)
                if sized is None:
                    why = _NEVER
                elif known is None or sized[0].devices < known.devices:
                    return self._choice(*sized)
                else:
                    why = f"{sized[0].devices} devices, {known.devices} are enough"
        name = self._name(single).replace(" x 1", "", 1)
        self.result.cuts.append(CutChoice(name, why))
        return None

    def _bisected(
        self, setup: ServingSetup, fills: bool, levels: ServiceLevels, least: int
    ) -> tuple[ServingSetup, ServiceSummary] | None:
        """Return the fewest replicas that keep levels, or of those that fill caches."""

        def kept(count: int) -> tuple[ServingSetup, ServiceSummary] | None:
            sized = replace(setup, replicas=count)
            if fills:
                sized = replace(setup, prefill_replicas=count)
            capacity = sized.capacity_per_s(self.work, self._capacities)
            summary, _ = run_deployment(sized, self.work, levels, capacity)
            return None if summary.broken(levels) or summary.overloaded else (sized, summary)

        low, high, best = least - 1, least, kept(least)
        while best is None:
            if high >= least << _DOUBLINGS:
                return None
            low, high = high, 2 * high
            best = kept(high)
        while high - low > 1:
            middle = (low + high) // 2
            fewer = kept(middle)
            low, high = (middle, high) if fewer is None else (low, middle)
            best = best if fewer is None else fewer
        return best

    def _apart(self, engines: Sequence[ServingEngine]) -> list[FleetChoice]:
        """Return the fewest devices with prefill and decode apart, by the plans that decode."""
        result: list[FleetChoice] = []
        groups: dict[tuple[str, str], list[ServingEngine]] = {}
        for engine in engines:
            key = str(engine.served.system.kernels), engine.served.kv_dtype
            groups.setdefault(key, []).append(engine)
        for group in groups.values():
            filler = self._filler(group)
            for engine in group if filler is not None else ():
                if filler is None or engine.options != self.options[0]:
                    continue
                setup = replace(filler, engine=engine)
                sized = self._bisected(setup, False, self.levels, self._least(engine, True))
                if sized is not None:
                    result.append(self._choice(*sized))
                else:
                    self.result.cuts.append(CutChoice(self._name(setup), _NEVER))
        return result

    def _filler(self, engines: Sequence[ServingEngine]) -> ServingSetup | None:
        """Return a deployment with the fewest devices that fill caches and keep the TTFT."""
        levels, best = replace(self.levels, tpot_s=None, e2e_s=None), None
        for engine in engines:
            if engine.speculation is not None:
                continue
            setup = ServingSetup(engine, self._least(engine, True), engine, 1, self.router)
            sized = self._bisected(setup, True, levels, self._least(engine, False))
            if sized is not None and (best is None or sized[0].fillers < best.fillers):
                best = sized[0]
        return best

    def _least(self, engine: ServingEngine, decodes: bool) -> int:
        """Return the fewest replicas that serve the rate, of those that decode or fill caches."""
        key = engine, decodes, not decodes
        if key not in self._capacities:
            self._capacities[key] = engine.capacity_per_s(self.work, decodes, not decodes)
        return max(1, math.ceil(self.work.rate / self._capacities[key]))

    def _choice(self, setup: ServingSetup, summary: ServiceSummary) -> FleetChoice:
        return FleetChoice(
            self.system.name, self._plan_text(setup), setup.scheduler_text, setup.devices,
            setup.usd_per_hour, summary, setup,
        )  # fmt: skip


def search_fleet(
    model: str,
    systems: Sequence[System | str],
    workload: Workload | str,
    levels: ServiceLevels,
    *,
    rate_per_s: float | None = None,
    devices: int = 8,
    schedulers: Sequence[SchedulerOptions | str] = SCHEDULERS,
    kv_dtypes: Sequence[str] = ("",),
    weights: Sequence[str] = ("",),
    disaggregated: bool = False,
    speculation: Speculation | None = None,
    router: str = "round_robin",
    stages: Sequence[int] = (1,),
) -> FleetResult:
    """Find the fewest devices, and dollars, that serve a rate within levels.

    Parameters
    ----------
    model : str
        MODEL string of a decoder.
    systems : sequence of System or str
        Systems to try, each by itself.
    workload : Workload or str
        Poisson arrivals, such as ``poisson:50,in=1024,out=256``.
    levels : ServiceLevels
    rate_per_s : float, optional
        The rate, where it is not that of the workload.
    devices : int
        The devices of the largest replica; replicas have divisors of them.
    disaggregated : bool
        Whether prefill and decode may have devices of their own.
    schedulers, kv_dtypes, weights, speculation, router, stages
        As :func:`.serving_search.search_serving` has them.

    Raises
    ------
    SimulationError
        DIST0761 for arrivals without a rate, and for a scheduler or router that is invalid.
    ModelError
        DIST0331 for a model without a serving step.

    Examples
    --------
    >>> from tvm_distir.planning import ServiceLevels
    >>> result = td.search_fleet(
    ...     "zoo:llama?size=tiny", ["h100", "h200"], "poisson:900,in=16,out=4,count=400",
    ...     ServiceLevels(ttft_s=1.0), devices=1, schedulers=["continuous:tokens=512"],
    ... )
    >>> [choice.system for choice in result.choices]
    ['h100', 'h200']
    """
    work, options = searched_workload(workload, schedulers)
    if work.kind != POISSON:
        problem = f"{work.kind} arrivals have no rate that devices could serve"
        raise workload_fault(problem, "workload", "Give poisson:RATE with in= and out=.")
    work = work if rate_per_s is None else work.at_rate(rate_per_s)
    result = FleetResult(model, work, levels)
    for named in systems:
        system = System.required(named, "serve")
        trials = FleetTrials(model, devices, system, work, levels, options, True, router, stages)
        for kind, kv_dtype in itertools.product(weights, kv_dtypes):
            trials.engines(with_weights(system, kind, model), kv_dtype, speculation)
        result.choices += trials.fewest(disaggregated)
        result.cuts += [
            CutChoice(f"{system.name}: {cut.plan}", cut.why) for cut in trials.result.cuts
        ]
    result.choices.sort(key=result.cost)
    return result
