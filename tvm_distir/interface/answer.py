# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Answer what a model does on some devices: the best of the plans that trainers and engines offer.

A few plans are tried, each of which a trainer or a serving engine has under the same name. The
search of :func:`.search` looks at many more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True)
class TriedPlan:
    """A plan that was tried.

    Attributes
    ----------
    strategy : str
    mesh : dict of str to int
        Of a replica, of which there are ``replicas``.
    replicas : int
    rate : float
        What is done per second.
    unit : str
        What is counted: ``tokens/s``, ``samples/s`` or ``requests/s``.
    time_s : float
        Of a step; of an output token per request in serving.
    memory_bytes : int, optional
        The most memory of a device; None where the caches take what weights leave.
    fits : bool
    command : str
        The command that goes deeper.
    details : tuple of str
        Further lines about it.
    """

    strategy: str
    mesh: dict[str, int]
    replicas: int
    rate: float
    unit: str
    time_s: float
    memory_bytes: int | None
    fits: bool
    command: str
    details: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return the plan in a line."""
        mesh = ",".join(f"{axis}={count}" for axis, count in self.mesh.items())
        return f"{self.strategy} on {mesh}" + (f" x {self.replicas}" * (self.replicas > 1))

    @property
    def speed(self) -> str:
        """Return what is done per second, as text."""
        return f"{units.count(self.rate)} {self.unit}"


@dataclass(frozen=True)
class Answer:
    """Plans of a model on some devices, the best first.

    Attributes
    ----------
    model, system, question : str
    devices : int
    capacity_bytes : int
        The memory of a device.
    choices : tuple of TriedPlan
        Those that fit come first, and faster ones before slower ones.
    refused : tuple of str
        Why plans were refused, each cause once.
    is_too_large : bool
        Whether one of the causes is the memory.
    """

    model: str
    system: str
    devices: int
    question: str
    capacity_bytes: int
    choices: tuple[TriedPlan, ...]
    refused: tuple[str, ...] = ()
    is_too_large: bool = False

    @property
    def best(self) -> TriedPlan | None:
        """Return the fastest plan that fits, or None."""
        return next((choice for choice in self.choices if choice.fits), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        unit = self.choices[0].unit if self.choices else None
        return {**asdict(self), "unit": unit, "fits": self.best is not None}

    def to_text(self) -> str:
        """Return the answer as text."""
        lines = [f"{self.model} on {self.devices} x {self.system}: {self.question}"]
        best = self.best
        if best is None:
            capacity = units.size(self.capacity_bytes)
            lines.append(
                f"  DOES NOT FIT: none of the usual plans runs in {capacity} per device"
                if self.choices or self.is_too_large
                else "  none of the usual plans is one of this model and batch"
            )
        else:
            lines.append(f"  fits, best with {best.words}: {best.speed}")
            lines += [f"  {line}" for line in best.details]
        lines.append("")
        for number, choice in enumerate(self.choices, 1):
            memory = "" if choice.memory_bytes is None else f", {units.size(choice.memory_bytes)}"
            verdict = "" if choice.fits else ", does not fit"
            lines.append(f"  {number}  {choice.words}: {choice.speed}{memory}{verdict}")
        lines += [f"  -  {cause}" for cause in self.refused]
        shown = best or next(iter(self.choices), None)
        if shown is not None:
            lines += ["", f"  Details: {shown.command}"]
        return "\n".join(lines) + "\n"


def answer(options: AnalysisOptions, devices: int) -> Answer:
    """Try the usual plans of a model on some devices.

    Without ``train`` a decoder is served with caches, requests of ``seq`` tokens. Other models run
    forward, and any model does whose batch, dims or entry are given.

    Parameters
    ----------
    options : AnalysisOptions
        The model, the system, and the options of its step; no plan.
    devices : int
        The number of devices.

    Raises
    ------
    UsageError
        DIST0155 without a system.
    DistIRError
        What the stages raise.
    """
    system = System.required(options.system)
    most = min(devices, system.intra_node.devices_per_node)
    degrees = [n for n in DEGREES if n <= most and devices % n == 0]
    causes: list[DistIRError] = []
    if not (options.train or options.batch or options.dims or options.entry):
        inputs = options.seq or INPUT_TOKENS
        question = f"serving {inputs:,} tokens in, {OUTPUT_TOKENS} out"
        engines = [_Serving(options, system, tp, devices // tp) for tp in (1, *degrees)]
        try:
            return _answer(options, system, devices, question, engines, causes)
        except ModelError as error:
            if error.code not in _NOT_SERVED:
                raise
            if error.code != "DIST0331":
                causes.append(error)
    with gc_paused():
        steps = _steps(options, system, devices, degrees)
        question = "training" if options.train else "forward"
        return _answer(options, system, devices, question, steps, causes)


def _answer(
    options: AnalysisOptions, system: System, devices: int, question: str,
    attempts: Iterable[Callable[[], TriedPlan]], causes: list[DistIRError],
) -> Answer:  # fmt: skip
    choices = []
    for attempt in attempts:
        try:
            choices.append(attempt())
        except DistIRError as error:
            if error.code not in _REFUSED:
                raise
            causes.append(error)
    choices.sort(key=lambda choice: (not choice.fits, -choice.rate))
    refused = dict.fromkeys(f"{error.code} {error.location}: {error.what}" for error in causes)
    return Answer(
        str(options.model), system.name, devices, question, system.memory_capacity_bytes,
        tuple(choices), tuple(refused), any(error.code in _TOO_LARGE for error in causes),
    )  # fmt: skip


def _steps(
    options: AnalysisOptions, system: System, devices: int, degrees: list[int]
) -> list[_Step]:
    """Return the plans of a step: FSDP or data parallelism, then Megatron-LM's."""
    trains, memo = bool(options.train), StageMemo()
    batch = options.batch
    if trains and batch is None:
        batch = SAMPLES_PER_DEVICE * devices
    recompute = options.recompute or ("auto" if trains else None)
    common = replace(options, batch=batch, recompute=recompute)
    plain = "fsdp" if trains and devices > 1 else "data_parallel"
    inner = "zero:stage=1+megatron:sequence=1" if trains else "data_parallel+megatron"
    plans = [(plain, {"dp": devices}), *((inner, {"dp": devices // n, "tp": n}) for n in degrees)]
    return [
        _Step(replace(common, strategy=strategy, mesh=mesh), system, memo)
        for strategy, mesh in plans
    ]


@dataclass(frozen=True)
class _Step:
    """Attempt at a plan of a step."""

    options: AnalysisOptions
    system: System
    memo: StageMemo

    def __call__(self) -> TriedPlan:
        """Analyze the step."""
        options = self.options
        study = Study.of(options.with_seq(), memo=self.memo)
        command = self._command()
        report = analyze_study(study, name=str(options.model), command=command).report
        rate, unit = _rate(report)
        peak = report.peak_memory_bytes
        memory = f"{units.size(peak)} of {units.size(self.system.memory_capacity_bytes)}"
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

    def _command(self) -> str:
        words = ["tvm-distir", "analyze", str(self.options.model)]
        for kind in (AnalysisOptions, TrainingOptions):
            holder = self.options if kind is AnalysisOptions else self.options.train
            for name, declared in option_fields(kind).items():
                value = getattr(holder, name, declared.default)
                if value != declared.default and name != "advice":
                    words += declared.words(_text(value))
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
    if isinstance(value, bool | list | tuple):
        return value
    return value.name if isinstance(value, System) else str(value)


@dataclass(frozen=True)
class _Serving:
    """Attempt at replicas that serve a decoder."""

    options: AnalysisOptions
    system: System
    tp: int
    replicas: int

    def __call__(self) -> TriedPlan:
        """Serve requests."""
        model, mesh = str(self.options.model), {"tp": self.tp}
        tokens = self.options.seq or INPUT_TOKENS
        workload = f"poisson:1,in={tokens},out={OUTPUT_TOKENS}"
        report = serve_analyze(
            model, "megatron", mesh, self.system, workload, replicas=self.replicas
        )
        summary = report.summary
        words = ["tvm-distir", "serve-analyze", model, "--system", self.system.name]
        words += ["--strategy", "megatron", "--mesh", f"tp={self.tp}", "--workload", workload]
        words += ["--replicas", str(self.replicas)] if self.replicas > 1 else []
        return TriedPlan(
            "megatron", mesh, self.replicas,
            summary.capacity_per_s or summary.requests_per_s, "requests/s",
            report.alone_tpot_s, None, True, shlex.join(words),
            (
                f"a single request: first token after {units.duration(report.alone_ttft_s)}, then "
                f"{units.duration(report.alone_tpot_s)} per token",
            ),
        )  # fmt: skip
