# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir verify``: run the distributed program and the original, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_distir.planning import StepOptions
from tvm_distir.support import option, parse_seed, warn

from .options import (
    add_dispatch,
    add_model_options,
    add_options,
    asked_by,
    read_options,
    read_planned_step,
)
from .stages import stopwatch, study_of
from .terminal import print_result, wants_colour, with_warnings


@dataclass(frozen=True)
class VerifyOptions:
    """Options of ``verify``.

    Parameters
    ----------
    engine : str
        Set the engine: virtual, threads, mpi, torch, xla (default: virtual).
    seed : int
        Set the seed of the random inputs (default: 0).
    exact : bool
        Sample inputs from {-2..2} and require bitwise equality.
    symbolic : bool
        Keep symbolic dims in the program; --dim gives the sizes of the inputs alone.
    json : bool
        Print JSON instead of text.
    """

    engine: str = option("build", "E", usual="virtual", frequent=True)
    seed: int = option("run", "N", parse_seed, usual="0", frequent=True)
    exact: bool = option("run", default=False, frequent=True)
    symbolic: bool = option("run", default=False, frequent=True)
    json: bool = option("run", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    add_options(parser, VerifyOptions, ("build",))
    add_dispatch(parser)
    add_options(parser, VerifyOptions, ("run",))


def run(arguments: argparse.Namespace) -> int:
    """Load, run both, compare. A difference is printed as a result, then raised (exit code 70)."""
    step = read_planned_step(arguments, StepOptions)
    options = read_options(arguments, VerifyOptions)
    watch = stopwatch()
    with watch.stage("load"):
        from tvm_distir.execution import engine, verify
        from tvm_distir.interface.report.document import to_json
        from tvm_distir.interface.report.verification import verdict_dict, verdict_text

        with asked_by("--engine", "DIST0601"), asked_by("--dispatch", "DIST0623"):
            chosen = engine(options.engine, arguments.dispatch)
        chosen.check_available()
    sizes: Mapping[str, int] = (step.dims or {}) if options.symbolic else {}
    study = study_of(replace(step, dims={}) if options.symbolic else step, watch=watch)
    with watch.stage("draw"):
        weights = {} if options.exact else study.source.read_weights()
    local = study.local
    for note in study.weight_notes:
        warn(f"{note}; both programs compute in 16 bits")
    with watch.stage("verify"):
        outcome = verify(
            study.step, study.step_plan, engine=chosen, seed=options.seed, exact=options.exact,
            weights=weights, dist=local, dims=sizes,
        )  # fmt: skip
    if options.json:
        print_result(
            to_json(with_warnings(verdict_dict(outcome, str(step.model), watch.timings_s)))
        )
    else:
        print_result(verdict_text(outcome, str(step.model), watch.timings_s, wants_colour()))
    outcome.check()
    return 0
