# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Try plans, schedulers and replicas that serve a workload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tvm_distir.hardware import PICOSECONDS, System
from tvm_distir.models import serving_step
from tvm_distir.planning.lighter_weights import remedy_of
from tvm_distir.support import REFUSALS, SimulationError

from .batching import SchedulerOptions
from .engine_loop import Replicas
from .levels import ServiceLevels, ServiceSummary
from .served_model import ServedModel
from .serving_choices import CutChoice, FrontPoint, RatedChoice, ServingSearchResult
from .serving_engine import Capacities, EngineMemory, ServingEngine
from .serving_report import report_of
from .serving_run import ServingSetup, most_requests_per_s, run_deployment
from .speculation import Speculation
from .workload import CLOSED, Workload

_STEPS = 7
"""Bisections of a rate: it is known to 1/128 of its bound."""
_DRAWN = 512
_USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServingTrials:
    """State of a search."""

    def __init__(
        self,
        model: str,
        devices: int,
        system: System,
        work: Workload,
        levels: ServiceLevels,
        options: Sequence[SchedulerOptions],
        bounds: bool,
        router: str,
        stages: Sequence[int],
    ) -> None:
        self.model, self.devices, self.system, self.work = model, devices, system, work
        self.levels, self.options, self.bounds = levels, options, bounds
        ServedModel(model, "", {"tp": 1}, system).check_lengths(work)
        self.router = Replicas(router=router).router
        self.stages = stages
        self.result = ServingSearchResult()
        self._engines: list[ServingEngine] = []
        self._capacities: Capacities = {}
        self._best: tuple[float, ServingSetup] | None = None

    def engines(self, system: System, kv_dtype: str, speculation: Speculation | None) -> None:
        """Tabulate the plans of a replica that are possible, without speculation and with it."""
        for strategy, mesh in self._plans():
            served = ServedModel(self.model, strategy, mesh, system, kv_dtype)
            name = served.plan_text + self._types(served)
            try:
                memory = EngineMemory.of_model(served, self.options[0])
                if memory.largest_batch(self.work) < 1:
                    size = memory.surface.least_memory().weight_bytes / 2**30
                    why = f"memory: {size:.1f} GiB of weights leave no room for a request"
                    remedy = remedy_of(memory.lighter_kinds(self.work)).rstrip(" .")
                    why += f"; {remedy}" if remedy else ""
                    self.result.cuts.append(CutChoice(name, why))
                    continue
                engine = memory.with_times()
            except REFUSALS as error:
                self.result.cuts.append(CutChoice(name, str(error)))
                continue
            self._engines.append(engine)
            if speculation is not None and served.stages == 1:
                self._engines.append(engine.with_speculation(speculation))

    def _types(self, served: ServedModel) -> str:
        """Return the types that a plan does not state: of weights, by their profile, and caches."""
        kernels, kv_dtype = served.system.kernels, served.kv_dtype
        weights = f", {kernels}" if kernels != self.system.kernels else ""
        return weights + (f", caches {kv_dtype}" if kv_dtype else "")

    def _plan_text(self, deployment: ServingSetup) -> str:
        return deployment.plan_text + self._types(deployment.engine.served)

    def _idle(self, deployment: ServingSetup) -> str:
        idle = self.devices - deployment.devices
        return f" ({idle} of {self.devices} devices idle)" if idle else ""

    def _name(self, deployment: ServingSetup) -> str:
        return f"{self._plan_text(deployment)}; {deployment.scheduler_text}"

    def _plans(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield strategies and meshes of a replica of a divisor of the devices, or a power of two.

        Requests are not divided over parts of a replica by data parallelism: the parts do the work
        of as many replicas, which do not wait for each other's steps.
        """
        config, _ = serving_step(ServedModel(self.model, "", {"tp": 1}, self.system).text(1, 1, 0))
        for count, stages in itertools.product(range(1, self.devices + 1), self.stages):
            if (self.devices % count and count & (count - 1)) or count % stages:
                continue
            rest = count // stages
            before, mesh = (["pipeline"], {"pp": stages}) if stages > 1 else ([], {})
            for parts in range(1, rest + 1 if config.experts else 2):
                if rest % parts == 0:
                    words = [*before, *["expert_parallel"] * (parts > 1)]
                    words += ["megatron"] * (parts < rest or parts == 1)
                    sizes = {"ep": parts, "tp": rest // parts}
                    more = {k: n for k, n in sizes.items() if n > 1 or (parts == 1 and k == "tp")}
                    yield "+".join(words), {**mesh, **more}

    def rate(self, apart: bool) -> None:
        """Find the highest rates, of the choices with the highest bounds first."""
        pending = []
        for deployment in self._deployments(apart):
            bound = most_requests_per_s(deployment, self.work)
            pending.append((bound, deployment))
        pending.sort(key=lambda row: -row[0])
        for bound, deployment in pending:
            why = self._cut(deployment, bound) if self.bounds else ""
            if not why:
                capacity = self._capacity_per_s(deployment)
                bound = min(bound, capacity)
                why = self._cut(deployment, bound) if self.bounds else ""
            if why:
                name = self._name(deployment) + self._idle(deployment)
                self.result.cuts.append(CutChoice(name, why))
                continue
            rate, summary = self._highest(deployment, bound, capacity)
            self.result.choices.append(
                RatedChoice(
                    self._plan_text(deployment) + self._idle(deployment),
                    deployment.scheduler_text, self.devices, rate, bound, summary,
                )
            )  # fmt: skip
            if summary is not None and (self._best is None or rate / self.devices > self._best[0]):
                self._best = rate / self.devices, deployment
                work = self.work.at_rate(rate)
                self.result.best = report_of(deployment, work, self.levels, summary)
                self.result.strategy = deployment.engine.served.strategy
                self.result.mesh = deployment.engine.served.mesh
        self.result.choices.sort(key=lambda choice: -choice.per_device)

    def _capacity_per_s(self, deployment: ServingSetup) -> float:
        """Return what a deployment can serve; 0 where its caches do not hold a request."""
        try:
            return deployment.capacity_per_s(self.work, self._capacities)
        except SimulationError:
            return 0.0

    def _deployments(self, apart: bool) -> Iterator[ServingSetup]:
        known = [e.with_options(o) for e in self._engines for o in self.options]
        for engine in known:
            replicas = self.devices // engine.served.devices
            yield ServingSetup(engine, replicas, router=self.router)
        if not apart:
            return
        for filler, engine in itertools.product(known, known):
            same_system = filler.served.system is engine.served.system
            if (
                filler.served.kv_dtype != engine.served.kv_dtype
                or not same_system
                or filler.speculation
            ):
                continue
            for count in range(1, self.devices):
                rest = self.devices - count * filler.served.devices
                if rest > 0 and rest % engine.served.devices == 0:
                    replicas = rest // engine.served.devices
                    yield ServingSetup(engine, replicas, filler, count, self.router)

    def _cut(self, deployment: ServingSetup, bound: float) -> str:
        """Return the bound that proves that a choice is not the best; empty if there is none."""
        levels, engine = self.levels, deployment.engine
        inputs = self.work.draw(_DRAWN).input_tokens
        if levels.tpot_s is not None:
            least = float(engine.surface.decode_ps(np.array([1]), np.array([0]))[0])
            least /= PICOSECONDS * engine.times.gain
            if least > levels.tpot_s:
                return f"TPOT of one user is {least * 1e3:.1f} ms at least"
        if levels.ttft_s is not None and not self.work.prefix_tokens:
            filler = deployment.prefill or engine
            prompt = max(2, int(np.percentile(inputs, 10)))
            host_us = filler.served.system.constant("serving_prompt_us")
            least = filler.surface.prefill_s(prompt) + host_us * 1e-6
            if least > levels.ttft_s:
                return f"TTFT of a prompt alone is {least * 1e3:.0f} ms at least"
        per_device = bound / self.devices
        if self._best is not None and per_device <= self._best[0]:
            return f"at most {per_device:.3f} requests/s/device, {self._best[0]:.3f} are reached"
        return ""

    def _highest(
        self, deployment: ServingSetup, bound: float, capacity: float
    ) -> tuple[float, ServiceSummary | None]:
        """Return the highest rate that keeps the levels, and its summary."""
        low, high, best = 0.0, bound, None
        for _ in range(_STEPS if bound else 0):
            rate = float(f"{(low + high) / 2:.4g}")
            work = self.work.at_rate(rate)
            try:
                summary, _ = run_deployment(deployment, work, self.levels, capacity)
            except SimulationError:
                return 0.0, None
            if summary.broken(self.levels) or summary.overloaded:
                high = rate
            else:
                low, best = rate, summary
        return low, best

    def front(self) -> None:
        """Compute the front of closed loops, by plans of a replica."""
        points = []
        for engine in self._engines:
            for users in _USERS:
                if users > engine.largest_batch(self.work):
                    break
                work = replace(self.work, kind=CLOSED, users=users)
                deployment = ServingSetup(engine.with_options(SchedulerOptions(tokens=2048)))
                summary, _ = run_deployment(deployment, work, ServiceLevels(percentile=50))
                if summary.tpot.mean_s > 0:
                    points.append(
                        FrontPoint(
                            deployment.plan_text.replace(" x 1", "", 1)
                            + self._types(engine.served),
                            users,
                            1 / summary.tpot.mean_s,
                            summary.output_tokens_per_s / deployment.devices,
                            summary.ttft.p50_s,
                        )
                    )
        best = 0.0
        for point in sorted(points, key=lambda p: (-p.per_user, -p.per_device)):
            if point.per_device > best:
                best = point.per_device
                self.result.front.append(point)
