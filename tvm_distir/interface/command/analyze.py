# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir analyze``: predict the step of a model under a plan."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_distir.interface.advice import advised, check_advice
from tvm_distir.interface.registration import is_awaited
from tvm_distir.planning import STAGES, AnalysisOptions, TrainingOptions
from tvm_distir.support import option_fields

from .opt import script
from .options import (
    add_model_options,
    asked_by,
    model_inputs,
    named_by_options,
    read_planned_step,
)
from .outputs import Outputs, add_force
from .stages import stopwatch, study_of
from .terminal import print_analysis, print_message
from .traces import add_trace, reserve_trace, write_trace

if TYPE_CHECKING:
    from tvm import ir

    from tvm_distir.interface.analysis import AnalysisResult
    from tvm_distir.planning import StageMemo, Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser, STAGES, options=AnalysisOptions, required=("system",))
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument("--report", metavar="r.html", help="Write a self-contained HTML report.")
    add_trace(parser)
    about = "Write program, plan, IR levels, report and analysis to DIR."
    parser.add_argument("-o", dest="folder", metavar="DIR", help=about)
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, distribute, export, simulate, write."""
    check_advice(arguments.advice, "--advice")
    step = read_planned_step(arguments, AnalysisOptions)
    outputs = Outputs(model_inputs(step), force=arguments.force)
    from tvm_distir.core.rewriting import gc_paused

    with gc_paused(permanent=is_awaited()):
        return _run(arguments, step, outputs)


def _run(arguments: argparse.Namespace, step: AnalysisOptions, outputs: Outputs) -> int:
    report = outputs.reserve(arguments.report, "--report")
    trace = reserve_trace(arguments.trace, arguments.trace_format, outputs)
    folder = outputs.reserve_folder(arguments.folder, "-o", _FOLDER_FILES)
    levels: dict[str, ir.IRModule] | None = None if folder is None else {}
    result = analyze_step(step, command_line(arguments, step), levels=levels)
    analysis = advised(result.report, result.study, step.advice, step.measure)
    if report is not None or folder is not None:
        from tvm_distir.interface.report.html import to_html

        page = to_html(analysis)
        outputs.add(report, page)
        if folder is not None:
            outputs.add(folder / "report.html", page)
    write_trace(trace, outputs, result.simulation)
    if folder is not None:
        from tvm_distir.interface.report.document import to_dict, to_json
        from tvm_distir.interface.report.text import to_text

        _add_folder(outputs, folder, result.study)
        outputs.add(folder / "analysis.json", to_json(to_dict(analysis)))
        outputs.add(folder / "analysis.txt", to_text(analysis))
    outputs_text = outputs.commit()
    folders = [path for path in (folder, trace.path if trace else None) if path is not None]
    for path in outputs_text:
        if path.parent not in folders:
            print_message(f"wrote {path}")
    for parent in folders:
        count = sum(path.parent == parent for path in outputs_text)
        if count:
            print_message(f"wrote {count} files to {parent}")
    print_analysis(analysis, arguments.json)
    return 0


def analyze_step(
    step: AnalysisOptions,
    command: str = "",
    levels: dict[str, ir.IRModule] | None = None,
    memo: StageMemo | None = None,
) -> AnalysisResult:
    """Load, distribute, export, simulate.

    ``levels`` receives the module after each pass, and ``memo`` the stages for further calls.
    """
    with named_by_options(
        "tokens", "mtbf_hours", "checkpoint_minutes", "restart_minutes", "expert_skew"
    ):
        run = step.training_run
        loaded = step.with_skew()
    watch = stopwatch()
    with watch.stage("load"):
        from tvm_distir.interface.analysis import analyze_study, balanced_study, exporter
        from tvm_distir.planning import StageMemo
    study = study_of(
        loaded,
        watch=watch,
        exporter=exporter(step.measure, step.allocator),
        levels=levels,
        memo=StageMemo() if memo is None else memo,
    )
    with asked_by("--kernels", "DIST0701"):
        result = analyze_study(
            study,
            name=str(step.model),
            command=command,
            forward=not step.measure,
            run=run,
            balanced=balanced_study(study, step),
        )
    for line in result.report.warnings:
        print_message(f"warning: {line}")
    return result


def command_line(arguments: argparse.Namespace, step: AnalysisOptions) -> str:
    """Return the command that repeats the analysis, without its output files."""
    words = ["tvm-distir", "analyze", str(step.model)]
    for options in (AnalysisOptions, TrainingOptions):
        for name, declared in option_fields(options).items():
            if name != "seq":  # it is part of MODEL
                words += declared.words(getattr(arguments, declared.key))
    return shlex.join(words)


_LEVEL_FILES = {
    "annotate": "2-annotated.py",
    "propagate": "3-distributed.py",
    "optimize": "4-legalized.py",
    "lower": "5-local.py",
}
_FOLDER_FILES = (
    "program.json",
    "plan.json",
    "1-global.py",
    *_LEVEL_FILES.values(),
    "report.html",
    "analysis.json",
    "analysis.txt",
)
"""The files in the folder of ``-o``."""


def _add_folder(outputs: Outputs, folder: Path, study: Study) -> None:
    """Add the program, the plan and the TVMScript of each IR level."""
    levels = study.levels or {}
    outputs.add(folder / "program.json", study.program.to_json() + "\n")
    outputs.add(folder / "plan.json", json.dumps(study.step_plan.to_dict(), indent=1) + "\n")
    outputs.add(folder / "1-global.py", script(study.step))
    for name, file in _LEVEL_FILES.items():
        outputs.add(folder / file, script(levels[name]))
