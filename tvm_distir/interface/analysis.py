# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Analyze the step of a model: distribute it, simulate it, and gather a report (``analyze``)."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm import ir

from tvm_distir.core.plan import Plan
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.execution import measure as measure_kernels
from tvm_distir.execution import plan_storage
from tvm_distir.hardware import System
from tvm_distir.performance import Program, Result, export, step_flops
from tvm_distir.planning import ANALYSIS_MEMO, BEST, AnalysisOptions, StageMemo, Study, TrainingRun
from tvm_distir.support import (
    Column,
    DataTable,
    Displayed,
    UsageError,
    option_fields,
    parameters_of,
)
from tvm_distir.support.display import units

from .advice import advised, check_advice
from .report.collect import analysis_of, batch_of, error_band
from .report.document import to_dict, to_json
from .report.model import Analysis
from .report.text import to_text
from .report.verdict import to_verdict
from .step_notes import one_device, tokens_of, unused_axes, with_lighter_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FRAME_PIXELS = 700
_OPS = (
    Column("module", "module"),
    Column("phase", "pass"),
    Column("op", "op"),
    Column("count", "count", str),
    Column("time_s", "time", units.duration),
    Column("flops", "FLOPs", units.count),
    Column("bytes_moved", "bytes moved", units.size),
    Column("bound_by", "bound by"),
)


@dataclass(frozen=True)
class AnalysisResult(Displayed):
    """Result of analyzing the step of a model.

    Attributes
    ----------
    study : Study
        The way from the model to the result, with what each stage made.
    report : Analysis
        What reports show.
    """

    study: Study
    report: Analysis

    @property
    def module(self) -> ir.IRModule:
        """Return the distributed module, at level 5, as :func:`.registry.run` takes it."""
        return self.study.local

    @property
    def plan(self) -> Plan:
        """Return the plan of the distributed step."""
        return self.study.step_plan

    @property
    def program(self) -> Program:
        """Return the simulated program."""
        return self.study.program

    @property
    def simulation(self) -> Result:
        """Return the simulated step, as :func:`.simulator.simulate` returns it."""
        return self.study.result

    @property
    def time_s(self) -> float:
        """Return the time of the step in seconds."""
        return self.simulation.time_s

    @property
    def peak_memory_bytes(self) -> int:
        """Return the highest peak memory of a device in bytes."""
        return self.simulation.peak_memory_bytes

    @property
    def timings_s(self) -> Mapping[str, float]:
        """Return the wall-clock seconds of each stage of the analysis."""
        return self.report.timings_s

    @property
    def summary(self) -> str:
        """Return time, bound and memory in a few lines."""
        return to_verdict(self.report)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON of ``tvm-distir analyze``."""
        return to_dict(self.report)

    def to_json(self) -> str:
        """Return the JSON of ``tvm-distir analyze``."""
        return to_json(self.to_dict())

    def to_text(self) -> str:
        """Return the tables that ``tvm-distir analyze`` prints."""
        return to_text(self.report)

    def to_html(self) -> str:
        """Return the page that ``tvm-distir analyze --report`` writes."""
        from .report.html import to_html  # imports Jinja

        return to_html(self.report)

    def _repr_html_(self) -> str:
        """Return the report as a frame of a notebook."""
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{_FRAME_PIXELS}"></iframe>'

    def _headline(self) -> str:
        return self.summary

    def _tables(self) -> list[DataTable]:
        """Return the time by op on a device of the busiest group."""
        rows = [[getattr(op, column.name) for column in _OPS] for op in self.report.ops]
        return [DataTable("Time by op", _OPS, rows)]

    def _draw(self, axes: Axes) -> None:
        self.simulation.plot(axes)


@parameters_of(AnalysisOptions)
def analyze(options: AnalysisOptions) -> AnalysisResult:
    """Distribute a model and predict its step on a system, as ``tvm-distir analyze`` does.

    Of a step in micro-batches a module has the samples of one micro-batch, and a string is loaded
    with them. ``train`` is True, or keywords of :func:`.train_step.train_step`, as
    ``{"optimizer": "adam"}``; ``master`` is True by default on systems of schema version 2.
    ``advice`` is ``bounds`` unless it is given.

    Parameters
    ----------
    {parameters}

    Returns
    -------
    AnalysisResult

    Raises
    ------
    UsageError
        DIST0151 where arguments contradict each other, DIST0152 for a price that is no positive
        number, and for an unknown mode of advice, DIST0155 without a system.
    DistIRError
        What the stages raise. A step that does not fit into memory is no error.

    Examples
    --------
    >>> import tvm_distir as td
    >>> model = "zoo:mlp?layers=2,hidden=64,batch=32"
    >>> result = td.analyze(model, strategy="data_parallel", mesh={"dp": 2}, system="a100")
    >>> print(result.summary.splitlines()[1])
      dp=2 (2 devices), strategy data_parallel, batch 32
    >>> result.time_s == td.simulate(td.export(result.module), "a100").time_s
    True
    """
    if options.plan is not None and options.strategy is not None:
        problem = "a plan and a strategy are both given"
        raise UsageError("DIST0151", problem, location="analyze", remedy="Give one of them.")
    if options.strategy is not None and options.mesh is None:
        remedy = 'Give its axes, as mesh={"dp": 2, "tp": 4}.'
        raise UsageError("DIST0151", "a strategy needs a mesh", location="analyze", remedy=remedy)
    if options.system is None:
        System.required(None)  # raises, before the step is distributed
    check_advice(options.advice)
    run = options.training_run
    options = options.with_seq().on_one_device()
    with gc_paused():
        study = Study.of(
            options.with_skew(),
            exporter=exporter(options.measure, options.allocator),
            memo=ANALYSIS_MEMO if options.reuse else StageMemo(),
        )
        name = "module" if isinstance(options.model, ir.IRModule) else str(options.model)
        result = analyze_study(
            study,
            name=name,
            command=_call(options, name),
            forward=not options.measure,
            run=run,
            balanced=balanced_study(study, options),
        )
        report = advised(result.report, result.study, options.advice, options.measure)
        return replace(result, report=report)


def _call(options: AnalysisOptions, name: str) -> str:
    """Return the call of :func:`analyze` with the options."""
    words = [name if isinstance(options.model, ir.IRModule) else repr(name)]
    if options.plan is not None:
        words.append(repr(options.plan) if isinstance(options.plan, str) else "plan")
    for name, declared in option_fields(AnalysisOptions).items():
        value = getattr(options, name)
        if name != "plan" and value is not None and value != declared.default:
            shown = value.name if isinstance(value, System) else value
            words.append(f"{name}={shown!r}")
    return f"td.analyze({', '.join(words)})"


def exporter(measure: bool, allocator: str | None) -> Callable[[ir.IRModule], Program]:
    """Return the export with measured times, or with the storage of TVM's allocator."""
    make = measure_kernels if measure else export
    if allocator != "tvm":
        return make
    return lambda local: replace(make(local), storage=plan_storage(local))


def balanced_study(study: Study, options: AnalysisOptions) -> Study | None:
    """Return the study of the step whose experts are loaded evenly, where they are not."""
    return None if options.expert_skew is None else replace(study, model=options.model)


def analyze_study(
    study: Study,
    *,
    name: str,
    command: str,
    forward: bool = True,
    run: TrainingRun | None = None,
    balanced: Study | None = None,
) -> AnalysisResult:
    """Run all stages of a study, and gather what reports show.

    Parameters
    ----------
    study : Study
    name : str
        What reports call the model.
    command : str
        What gives the same analysis again.
    forward : bool
        Whether a step that waits for communication is compared with that of one device, where it
        is no training step.
    run : TrainingRun, optional
        The run of the steps.
    balanced : Study, optional
        The step that needs the FLOPs of the model alone, where experts are loaded unevenly.

    Raises
    ------
    UsageError
        DIST0151 for a run on tokens, of which the model has none.
    """
    run, tokens = run or TrainingRun(), tokens_of(study)
    if run.tokens is not None and tokens is None:
        problem = "the run is on tokens, and the model has no input of tokens"
        raise UsageError("DIST0151", problem, location="tokens", remedy="Leave it out.")
    warnings = unused_axes(study.step_plan) if study.step_plan.rules else ()
    result = study.result
    run.checkpoint_interval_s(len(result.devices))  # refuses what never ends
    if forward and study.is_planned and study.training() is None:
        with study.watch.stage("simulate"):
            warnings += one_device(study, result)
    system = study.known_system
    assert system is not None
    kernels, trained = system.kernels, study.training() is not None
    if study.kernels is not None:
        kernels = str(getattr(study.kernels, "name", study.kernels)).partition(",")[0]
    stack = None if study.pinned_stack is None else study.pinned_stack.name
    software = kernels if stack in (None, BEST) else str(stack)
    report = replace(
        analysis_of(result, study.program, system, name, command),
        strategy=study.strategy,
        batch=None if study.source.is_text else batch_of(study.program),
        tokens=tokens,
        flops=step_flops((balanced or study).forward, (balanced or study).step),
        kernels=kernels,
        plan=study.step_plan.to_dict(),
        warnings=warnings,
        notes=(*study.weight_notes, *study.group_notes, *study.stack_notes),
        stack=stack,
        band=error_band(result, study.program, system, software, trained),
        timings_s=dict(study.watch.timings_s),
    )
    return AnalysisResult(study, with_lighter_weights(replace(report, run=run), study))
