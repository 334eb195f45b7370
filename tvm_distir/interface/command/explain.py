# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir explain``: explain the placement of a value and the cost of alternatives."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tvm_distir.planning import StepOptions
from tvm_distir.support import option

from .options import add_model_options, add_options, read_planned_step
from .stages import study_of
from .terminal import print_answer


@dataclass(frozen=True)
class ExplainOptions:
    """Options of ``explain``.

    Parameters
    ----------
    json : bool
        Print JSON instead of text.
    no_alternatives : bool
        Omit the cost of alternative placements.
    """

    json: bool = option("explain", default=False, frequent=True)
    no_alternatives: bool = option("explain", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    about = "A parameter or variable (lv19), optionally of a function (layer/lv3, layer_1/lv3)."
    parser.add_argument("value", metavar="VALUE", help=about)
    add_options(parser, ExplainOptions)


def run(arguments: argparse.Namespace) -> int:
    """Load, annotate, explain, print."""
    study = study_of(read_planned_step(arguments, StepOptions))
    from tvm_distir.interface.explain.explainer import explain

    explanation = explain(
        study.step,
        study.step_plan,
        arguments.value,
        system=study.known_system,
        alternatives=not arguments.no_alternatives,
    )
    print_answer(explanation.to_dict(), explanation.to_text(), arguments.json)
    return 0
