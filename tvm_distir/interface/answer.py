# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Answer what a model does on some devices: the best of the plans that trainers and engines offer.

A few plans are tried, each of which a trainer or a serving engine has under the same name. The
search of :func:`.search` looks at many more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.planning import (
    AnalysisOptions,
    StageMemo,
    Study,
    TrainingOptions,
    serve_analyze,
)
from tvm_distir.support import DistIRError, ModelError, option_fields
from tvm_distir.support.display import units

from .analysis import analyze_study
from .report.figures import band_words, figure_lines, figures
from .report.model import Analysis
from .tried_plans import Answer, TriedPlan, plan_words

DEGREES = (2, 4, 8)
"""Devices of tensor parallelism that are tried, inside of a node."""
SAMPLES_PER_DEVICE = 2
"""Sequences per device of a training step whose batch is not given."""
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256
"""Of a request; at what rate they arrive does not matter for the most that can be served."""
_TOO_LARGE = ("DIST0761", "DIST0801", "DIST0803")
"""A plan does not fit into the devices' memory, or the requests not into what weights leave."""
_REFUSED = ("DIST0233", "DIST0234", "DIST0760", *_TOO_LARGE)
"""A plan is none of the model: a strategy does not know its weights, or cannot divide them."""
_NOT_SERVED = ("DIST0331", "DIST0332")
"""The model has no serving step, or none with as many positions as an engine's steps have."""


def answer(options: AnalysisOptions, devices: int, named: str = "") -> Answer:
    """Try the usual plans of a model on some devices.

    Without ``train`` a decoder is served with caches, requests of ``seq`` tokens. Other models run
    forward, and any model does whose batch, dims or entry are given.

    Parameters
    ----------
    options : AnalysisOptions
        The model, the system, and the options of its step; no plan.
    devices : int
        The number of devices.
    named : str, optional
        The name or path by which commands find the system; its name by default.

    Raises
    ------
    UsageError
        DIST0155 without a system.
    DistIRError
        What the stages raise.
    """
    system = System.required(options.system, "the short answer")
    most = min(devices, system.intra_node.devices_per_node)
    degrees = [n for n in DEGREES if n <= most and devices % n == 0]
    causes: list[tuple[str, DistIRError]] = []
    if not (options.train or options.batch or options.dims or options.entry):
        inputs = options.seq or INPUT_TOKENS
        question = f"serving {inputs:,} tokens in, {OUTPUT_TOKENS} out"
        name = named or system.name
        engines = {
            plan_words("megatron", {"tp": n}, devices // n): partial(
                _served, options, system, name, n, devices // n
            )
            for n in (1, *degrees)
        }
        try:
            return _answer(options, system, devices, question, engines, causes)
        except ModelError as error:
            if error.code not in _NOT_SERVED:
                raise
            if error.code != "DIST0331":
                causes.append(("", error))
    with gc_paused():
        steps = _steps(options, system, named or system.name, devices, degrees)
        question = "training" if options.train else "forward"
        return _answer(options, system, devices, question, steps, causes)


def _answer(
    options: AnalysisOptions, system: System, devices: int, question: str,
    attempts: Mapping[str, Callable[[], TriedPlan]], causes: list[tuple[str, DistIRError]],
) -> Answer:  # fmt: skip
    choices = []
    for plan, attempt in attempts.items():
        try:
            choices.append(attempt())
        except DistIRError as error:
            if error.code not in _REFUSED:
                raise
            causes.append((plan, error))
    choices.sort(key=lambda choice: (not choice.fits, -choice.rate))
    plans: dict[str, list[str]] = {}
    for plan, cause in causes:
        plans.setdefault(str(cause).splitlines()[0], []).append(plan)
    refused = [f"{', '.join(names)}: {text}" if names[0] else text for text, names in plans.items()]
    return Answer(
        str(options.model), system.name, devices, question, system.memory_capacity_bytes,
        tuple(choices), tuple(refused), any(cause.code in _TOO_LARGE for _, cause in causes),
    )  # fmt: skip


def _steps(
    options: AnalysisOptions, system: System, named: str, devices: int, degrees: list[int]
) -> dict[str, Callable[[], TriedPlan]]:
    """Return the attempts at plans of a step: FSDP or data parallelism, then Megatron-LM's."""
    trains, memo = bool(options.train), StageMemo()
    batch = options.batch
    if trains and batch is None:
        batch = SAMPLES_PER_DEVICE * devices
    recompute = options.recompute or ("auto" if trains else None)
    common = replace(options, batch=batch, recompute=recompute)
    plain = "fsdp" if trains and devices > 1 else "data_parallel"
    inner = "zero:stage=1+megatron:sequence=1" if trains else "data_parallel+megatron"
    plans = [(plain, {"dp": devices}), *((inner, {"dp": devices // n, "tp": n}) for n in degrees)]
    return {
        plan_words(strategy, mesh): partial(
            _analyzed, replace(common, strategy=strategy, mesh=mesh), system, named, memo
        )
        for strategy, mesh in plans
    }


def _analyzed(options: AnalysisOptions, system: System, named: str, memo: StageMemo) -> TriedPlan:
    """Analyze a plan of a step."""
    study, command = Study.of(options.with_seq(), memo=memo), _command(options, named)
    report = analyze_study(study, name=str(options.model), command=command).report
    rate, unit = _rate(report)
    peak = report.peak_memory_bytes
    memory = f"{units.size(peak)} of {units.size(system.memory_capacity_bytes)}"
    return TriedPlan(
        str(options.strategy), dict(options.mesh or {}), 1,
        rate, unit, report.time_s, peak, report.fits is not False, command,
        (
            f"{units.duration(report.time_s)} per step of {report.batch} samples, "
            f"bound by {report.bound_by}; {memory} per device",
            *figure_lines(report),
            *filter(None, [band_words(report)]),
        ),
    )  # fmt: skip


def _command(options: AnalysisOptions, named: str) -> str:
    words = ["tvm-distir", "analyze", str(options.model)]
    for kind in (AnalysisOptions, TrainingOptions):
        holder = options if kind is AnalysisOptions else options.train
        for name, declared in option_fields(kind).items():
            value = getattr(holder, name, declared.default)
            if value != declared.default and name != "advice":
                words += declared.words(named if name == "system" else _text(value))
    return shlex.join(words)


def _rate(report: Analysis) -> tuple[float, str]:
    """Return what a step does per second: tokens, or samples where it reads none."""
    step = figures(report)
    if step.tokens_per_s:
        return step.tokens_per_s, "tokens/s"
    if step.samples_per_s:
        return step.samples_per_s, "samples/s"
    return 1 / report.time_s, "steps/s"


def _text(value: Any) -> Any:
    """Return the value of an option as the command takes it."""
    if isinstance(value, TrainingOptions):
        return True
    if isinstance(value, dict):
        return ",".join(f"{key}={count}" for key, count in value.items())
    return value if isinstance(value, bool | list | tuple) else str(value)


def _served(
    options: AnalysisOptions, system: System, named: str, tp: int, replicas: int
) -> TriedPlan:
    """Serve requests of a decoder by replicas."""
    model, mesh = str(options.model), {"tp": tp}
    tokens = options.seq or INPUT_TOKENS
    workload = f"poisson:1,in={tokens},out={OUTPUT_TOKENS}"
    report = serve_analyze(
        model, "megatron", mesh, system, workload, replicas=replicas,
        weights=options.quantize or "",
    )  # fmt: skip
    summary = report.summary
    words = ["tvm-distir", "serve-analyze", model, "--system", named]
    words += ["--strategy", "megatron", "--mesh", f"tp={tp}", "--workload", workload]
    words += ["--quantize", options.quantize] if options.quantize else []
    words += ["--replicas", str(replicas)] if replicas > 1 else []
    return TriedPlan(
        "megatron", mesh, replicas,
        summary.capacity_per_s or summary.requests_per_s, "requests/s",
        report.alone_tpot_s, None, True, shlex.join(words),
        (
            f"a single request: first token after {units.duration(report.alone_ttft_s)}, then "
            f"{units.duration(report.alone_tpot_s)} per token",
        ),
    )  # fmt: skip
