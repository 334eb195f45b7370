# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir verify``: run the distributed program and the original, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_distir.planning import StepOptions
from tvm_distir.support import parse_seed

from .options import add_dispatch, add_model_options, asked_by, read_planned_step
from .stages import stopwatch, study_of
from .terminal import print_result, wants_colour, with_warnings

if TYPE_CHECKING:
    from .help import Commands

ENGINES = ("virtual", "threads", "mpi", "torch", "xla")


def add_parser(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "verify",
        help="Verify a distributed model against the original by running both.",
        description="Run the distributed program and the original on the same inputs, and compare.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument(
        "--engine",
        default="virtual",
        metavar="E",
        help=f"Set the engine: {', '.join(ENGINES)} (default: virtual).",
    )
    add_dispatch(parser)
    parser.add_argument(
        "--seed", default="0", metavar="N", help="Set the seed of the random inputs (default: 0)."
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="Sample inputs from {-2..2} and require bitwise equality.",
    )
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="Keep symbolic dims in the program; --dim gives the sizes of the inputs alone.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, run both, compare. A difference is printed as a result, then raised (exit code 70)."""
    step = read_planned_step(arguments, StepOptions)
    seed = parse_seed(arguments.seed)
    watch = stopwatch()
    with watch.stage("load"):
        from tvm_distir.execution import engine, verify
        from tvm_distir.interface.report.document import to_json
        from tvm_distir.interface.report.verification import verdict_dict, verdict_text

        with asked_by("--engine", "DIST0601"), asked_by("--dispatch", "DIST0623"):
            chosen = engine(arguments.engine, arguments.dispatch)
        chosen.check_available()
    sizes: Mapping[str, int] = (step.dims or {}) if arguments.symbolic else {}
    study = study_of(replace(step, dims={}) if arguments.symbolic else step, watch=watch)
    with watch.stage("draw"):
        weights = {} if arguments.exact else study.source.read_weights()
    local = study.local
    with watch.stage("verify"):
        outcome = verify(
            study.step,
            study.step_plan,
            engine=chosen,
            seed=seed,
            exact=arguments.exact,
            weights=weights,
            dist=local,
            dims=sizes,
        )
    if arguments.json:
        print_result(
            to_json(with_warnings(verdict_dict(outcome, str(step.model), watch.timings_s)))
        )
    else:
        print_result(verdict_text(outcome, str(step.model), watch.timings_s, wants_colour()))
    outcome.check()
    return 0
