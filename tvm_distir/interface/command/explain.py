# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir explain``: explain the placement of a value and the cost of alternatives."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.planning import StepOptions, TrainingOptions
from tvm_distir.support import UsageError, option, option_fields

from .check import PROGRAMS, read_hints, read_traces
from .help import get_to_work
from .options import add_model_options, add_options, read_options, read_planned_step
from .stages import study_of
from .terminal import print_answer

_UNSET = (None, False)


@dataclass(frozen=True)
class ExplainOptions:
    """Options of ``explain``.

    Parameters
    ----------
    json : bool
        Print JSON instead of text.
    no_alternatives : bool
        Omit the cost of alternative placements.
    hints : dict, optional
        Say which dim a mesh axis shards, in a folder of traces as that of `check`. May be repeated.
    """

    json: bool = option("explain", default=False, frequent=True)
    no_alternatives: bool = option("explain", default=False, frequent=True)
    hints: dict[str, dict[str, int]] | None = option(
        "explain", "INPUT:AXIS=DIM,...", read_hints, flag="--hint", repeated=True
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    about = "A parameter or variable (lv19), optionally of a function (layer/lv3, layer_1/lv3)."
    parser.add_argument("value", metavar="VALUE", help=about)
    add_options(parser, ExplainOptions)


def run(arguments: argparse.Namespace) -> int:
    """Load, annotate, explain, print; or explain a value of traces."""
    folder, options = Path(arguments.model), read_options(arguments, ExplainOptions)
    is_traced = (folder / PROGRAMS).is_file()
    declared = {**option_fields(StepOptions), **option_fields(TrainingOptions)}.values()
    others = [d.flag for d in declared if getattr(arguments, d.key, None) not in (*_UNSET, d.usual)]
    if others if is_traced else options.hints:
        flag = others[0] if is_traced else "--hint"
        problem = f"{flag} does not apply to {'' if is_traced else 'what is no folder of '}traces"
        raise UsageError("DIST0151", problem, location="tvm-distir explain", remedy="Leave it out.")
    from tvm_distir.interface.explain.explainer import explain

    if is_traced:
        get_to_work()
        programs, reference = read_traces(folder)
        explanation = explain(programs, arguments.value, reference=reference, hints=options.hints)
    else:
        study = study_of(read_planned_step(arguments, StepOptions))
        explanation = explain(
            study.step, study.step_plan, arguments.value,
            system=study.known_system, alternatives=not options.no_alternatives,
        )  # fmt: skip
    print_answer(explanation.to_dict(), explanation.to_text(), arguments.json)
    return 0
