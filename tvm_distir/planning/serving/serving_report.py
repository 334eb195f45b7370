# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Analyze a way of serving: what it gives, what breaks its levels, what to change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tvm_distir.hardware import System
from tvm_distir.planning.weight_types import weights_line, with_weights

from .batching import SchedulerOptions
from .engine_loop import ServedRequests
from .lengths import workload_fault
from .levels import ServiceLevels, ServiceSummary
from .served_model import ServedModel
from .serving_causes import causes_of
from .serving_engine import EngineMemory, ServingEngine
from .serving_run import ServingSetup, run_deployment
from .speculation import Speculation
from .workload import Workload


@dataclass(frozen=True)
class ServingReport:
    """Report of a way of serving.

    Attributes
    ----------
    model, system, plan, workload, scheduler : str
    devices : int
    summary : ServiceSummary
    levels : ServiceLevels
    weights : str
        The type of quantized weights in words; empty where they are not quantized.
    weight_bytes, cache_tokens, largest_batch : int
        Of a device; tokens that the caches of a replica hold; requests of mean length in them.
    alone_ttft_s, alone_tpot_s : float
        The latencies of a single request of mean length.
    usd_per_million_tokens : float, optional
        Cost of a million output tokens, where the system has a price.
    causes, advice : tuple of str
    served : sequence of ServedRequests
        The requests of each replica, from which :func:`.request_trace` is written.
    setup : ServingSetup, optional
        What was analyzed.
    """

    model: str
    system: str
    plan: str
    workload: str
    scheduler: str
    devices: int
    summary: ServiceSummary
    levels: ServiceLevels
    weight_bytes: int
    cache_tokens: int
    largest_batch: int
    alone_ttft_s: float
    alone_tpot_s: float
    usd_per_million_tokens: float | None
    causes: tuple[str, ...]
    advice: tuple[str, ...]
    weights: str = ""
    served: Sequence[ServedRequests] = field(default=(), repr=False, compare=False)
    setup: ServingSetup | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text()

    @property
    def broken(self) -> list[str]:
        """Return the levels that are broken."""
        return self.summary.broken(self.levels)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it, without the requests and the setup."""
        plain = asdict(replace(self, served=(), setup=None))
        return {
            **{key: value for key, value in plain.items() if key not in ("served", "setup")},
            "broken": self.broken,
            "verdict": self.verdict,
            "tokens_per_s_per_device": self.summary.output_tokens_per_s / self.devices,
            "tokens_per_s_per_user": _rate(self.summary.tpot.mean_s),
        }

    @property
    def verdict(self) -> str:
        """Return the answer as a sentence; empty without levels, unless there is overload."""
        s = self.summary
        if s.overloaded:
            return (
                f"overloaded: {s.offered_per_s or 0.0:.6g} requests/s arrive, and "
                f"{s.capacity_per_s or 0.0:.3f} can be served; the queue grows without end"
            )
        where = f"{self.devices} devices of {self.system}"
        if self.broken:
            return f"{where} break {' and '.join(self.broken)} of {self.levels.text}."
        return f"{where} keep {self.levels.text}." if self.levels.text else ""

    def text(self) -> str:
        """Return the report as text, the verdict first."""
        s = self.summary
        steady = {True: "steady", False: "not steady", None: "all requests"}[s.steady]
        run = f"{s.requests} requests in {s.window_s:.1f} s of a run of {s.run_s:.1f} s"
        if s.overloaded:
            steady = "not steady: TTFT, e2e and queue grow with the run"
        lines = [
            *([self.verdict] if self.verdict else []),
            f"{self.model} on {self.devices} devices of {self.system}: {self.plan}",
            f"  workload {self.workload}, scheduler {self.scheduler}",
            *([f"  {self.weights}"] if self.weights else []),
            f"  {run} ({steady})",
            "",
            "                mean       p50       p90       p99",
        ]
        for name, latency, unit in (
            ("TTFT ms", s.ttft, 1e3),
            ("TPOT ms", s.tpot, 1e3),
            ("e2e s", s.e2e, 1.0),
            ("queue ms", s.queue, 1e3),
        ):
            values = (latency.mean_s, latency.p50_s, latency.p90_s, latency.p99_s)
            lines.append(f"  {name:<10}" + "".join(f"{value * unit:10.2f}" for value in values))
        lines += [*self._errors(), ""]
        cost = self.usd_per_million_tokens
        lines += [
            f"  {s.output_tokens_per_s:.0f} output tokens/s: "
            f"{s.output_tokens_per_s / self.devices:.1f} per device, "
            f"{_rate(s.tpot.mean_s):.1f} per user"
            + (f"; {cost:.2f} $ per million" if cost is not None else ""),
            f"  {s.requests_per_s:.3f} requests/s, of which {s.goodput_per_s:.3f} keep all levels"
            + (f"; {s.capacity_per_s:.3f} can be served" if s.capacity_per_s else ""),
            f"  devices work {s.utilization:.0%} of the time; {s.decoding:.1f} requests decode on "
            "average",
            f"  caches hold {self.cache_tokens:,} tokens, {self.largest_batch} requests at most; "
            f"{s.preemptions} preemptions",
            f"  a single request: TTFT {self.alone_ttft_s * 1e3:.1f} ms, "
            f"TPOT {self.alone_tpot_s * 1e3:.2f} ms",
        ]
        if self.broken:
            lines += ["", f"  broken levels: {', '.join(self.broken)}"]
        lines += [f"  why: {cause}" for cause in self.causes]
        lines += [f"  advice: {change}" for change in self.advice]
        return "\n".join(lines)

    def _errors(self) -> list[str]:
        """Return the line of the sampling errors of percentiles, if they are known."""
        s = self.summary
        if s.steady is None or s.overloaded:
            return []
        parts = []
        for name, latency in (("TTFT", s.ttft), ("TPOT", s.tpot)):
            pairs = (
                (f"p{k}", latency.at(k), error)
                for k, error in ((90, latency.p90_error_s), (99, latency.p99_error_s))
            )
            parts.append(
                f"{name} "
                + ", ".join(
                    f"{k} unknown (too few requests)"
                    if error is None
                    else f"{k} {100 * error / value if value else 0.0:.1f} %"
                    for k, value, error in pairs
                )
            )
        return [f"  sampling errors (95 %): {'; '.join(parts)}"]


def _rate(time_s: float) -> float:
    return 1 / time_s if time_s > 0 else 0.0


def serve_analyze(
    model: str,
    strategy: str,
    mesh: Mapping[str, int],
    system: System | str,
    workload: Workload | str,
    *,
    scheduler: SchedulerOptions | str = "continuous",
    levels: ServiceLevels | None = None,
    replicas: int = 1,
    kv_dtype: str = "",
    weights: str = "",
    prefill_mesh: Mapping[str, int] | None = None,
    prefill_replicas: int = 1,
    draft: str = "",
    draft_tokens: int = 0,
    acceptance: float = 0.0,
    router: str = "round_robin",
    prefill_scheduler: SchedulerOptions | str = "",
    prefill_system: System | str = "",
) -> ServingReport:
    """Predict how a model is served.

    Parameters
    ----------
    model : str
        MODEL string of a decoder of the zoo, or of a ``config.json``.
    strategy, mesh
        The plan of a replica.
    system : System or str
    workload : Workload or str
        Such as ``poisson:2,in=1024,out=256``; see :mod:`.workload`.
    scheduler : SchedulerOptions or str
        Such as ``continuous:tokens=2048,requests=256``; see :mod:`.batching`.
    levels : ServiceLevels, optional
    replicas : int
        Engines behind a router.
    kv_dtype : str
        The dtype of caches.
    weights : str
        The type of weights: see :func:`tvm_distir.planning.weight_types.with_weights`.
    prefill_mesh : mapping of str to int, optional
        Mesh of devices apart, that fill caches only.
    prefill_replicas : int
    draft : str
        MODEL string of a draft model, for speculation.
    draft_tokens : int
        Tokens that it proposes in each step.
    acceptance : float
        The probability that a proposed token is accepted.
    router : str
        ``round_robin``: requests go to the replicas in turn; ``least_requests``: to the replica
        with the fewest requests in flight.
    prefill_scheduler : SchedulerOptions or str
        The scheduler of the devices that only fill caches; empty: ``scheduler``.
    prefill_system : System or str
        Their system; empty: ``system``.

    Raises
    ------
    SimulationError
        DIST0760 for a plan whose steps cannot be predicted, DIST0761 for a workload, scheduler,
        router or acceptance that is invalid, for requests that the caches do not hold, and for
        ``prefill_scheduler`` or ``prefill_system`` without ``prefill_mesh``.

    Examples
    --------
    >>> report = td.serve_analyze(
    ...     "zoo:llama?size=tiny", "megatron", {"tp": 2}, "h100",
    ...     "poisson:2,in=16,out=4,count=8",
    ... )
    >>> report.summary.requests
    8
    """
    resolved = System.required(system, "serve")
    resolved = with_weights(resolved, weights, model)
    work = Workload.parse(workload) if isinstance(workload, str) else workload
    options, filling = (
        SchedulerOptions.parse(text) if isinstance(text, str) else text
        for text in (scheduler, prefill_scheduler or scheduler)
    )
    requested = levels or ServiceLevels()
    served = ServedModel(model, strategy, mesh, resolved, kv_dtype)
    served.check_lengths(work)
    engine = EngineMemory.of_model(served, options).with_room(work).with_times()
    if draft_tokens:
        engine = engine.with_speculation(Speculation(draft, draft_tokens, acceptance))
    filler = None
    if prefill_mesh is not None:
        filling_system = resolved
        if prefill_system:
            filling_system = with_weights(System.required(prefill_system, "serve"), weights, model)
        filler = ServingEngine.of(
            ServedModel(model, strategy, prefill_mesh, filling_system, kv_dtype), filling
        )
    elif prefill_system or prefill_scheduler:
        problem = "a system or a scheduler of devices apart has no devices"
        raise workload_fault(problem, "prefill_mesh", "Give a prefill_mesh (--prefill-mesh).")
    deployment = ServingSetup(engine, replicas, filler, prefill_replicas if filler else 0, router)
    summary, parts = run_deployment(deployment, work, requested)
    report = report_of(deployment, work, requested, summary)
    text = workload if isinstance(workload, str) else work.text
    return replace(report, workload=text, served=parts)


def report_of(
    deployment: ServingSetup, work: Workload, levels: ServiceLevels, summary: ServiceSummary
) -> ServingReport:
    """Return the report of a deployment that has served a workload."""
    engine = deployment.engine
    inputs = max(2, round(work.mean_input))
    alone_ttft_s, alone_tpot_s = deployment.alone_s(work)
    cost, hourly = None, deployment.usd_per_hour
    if hourly is not None and summary.output_tokens_per_s > 0:
        cost = hourly / 3600 / summary.output_tokens_per_s * 1e6
    groups = deployment.replicas * engine.served.stages
    decode_s = engine.surface.decode_s(max(1, round(summary.decoding / groups)), inputs)
    causes, advice = causes_of(deployment, levels, summary, alone_ttft_s, alone_tpot_s, decode_s)
    return ServingReport(
        model=engine.served.model,
        system=deployment.system_text,
        plan=deployment.plan_text,
        workload=work.text,
        scheduler=deployment.scheduler_text,
        devices=deployment.devices,
        summary=summary,
        levels=levels,
        weights=weights_line(engine.served.system.kernels),
        weight_bytes=engine.memory.weight_bytes,
        cache_tokens=engine.pages * engine.served.page,
        largest_batch=engine.largest_batch(work),
        alone_ttft_s=alone_ttft_s,
        alone_tpot_s=alone_tpot_s,
        usd_per_million_tokens=cost,
        causes=tuple(causes),
        advice=tuple(advice),
        setup=deployment,
    )
