# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir simulate``: predict a step of an exported program on a system."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, replace

from tvm_distir.planning import StepOptions
from tvm_distir.support import option, option_fields

from .help import SYSTEM_HELP
from .options import add_options, asked_by, read_options
from .outputs import Outputs, add_force
from .stages import stopwatch
from .terminal import print_analysis
from .traces import add_trace, reserve_trace, write_trace


@dataclass(frozen=True)
class StreamOptions:
    """Options of ``simulate``.

    Parameters
    ----------
    blocking : bool
        Block the compute stream during collectives without separate start and done.
    contention : bool
        Model link contention between messages and collectives of a pipelined step.
    """

    blocking: bool = option("simulate", default=False, frequent=True)
    contention: bool = option("simulate", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("program", metavar="program.json", help="A program of `analyze -o DIR`.")
    parser.add_argument("--system", required=True, metavar="S", help=SYSTEM_HELP)
    add_options(parser, StreamOptions)
    add_options(parser, StepOptions, names=("allocator", "kernels"))
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    add_trace(parser)
    add_force(parser)


def command_line(arguments: argparse.Namespace) -> str:
    """Return the command that repeats the prediction, without its output files."""
    words = ["tvm-distir", "simulate", arguments.program, "--system", arguments.system]
    for name, declared in option_fields(StreamOptions).items():
        words += declared.words(getattr(arguments, name))
    return shlex.join(words + option_fields(StepOptions)["kernels"].words(arguments.kernels))


def run(arguments: argparse.Namespace) -> int:
    """Load, simulate, print."""
    outputs = Outputs(
        {"PROGRAM": arguments.program, "--system": arguments.system}, force=arguments.force
    )
    trace = reserve_trace(arguments.trace, arguments.trace_format, outputs)
    watch = stopwatch()
    with watch.stage("load"):
        from tvm_distir.hardware import System
        from tvm_distir.interface.report.collect import analysis_of
        from tvm_distir.performance import Program, simulate

        with asked_by("--system", "DIST0701", "DIST0706"):
            system = System.load(arguments.system)
        program = Program.load(arguments.program)
    with watch.stage("simulate"), asked_by("--kernels", "DIST0701"):
        result = simulate(
            program,
            system,
            kernels=arguments.kernels,
            allocator=arguments.allocator or "framework",
            **vars(read_options(arguments, StreamOptions)),
        )
    analysis = analysis_of(result, program, system, arguments.program, command_line(arguments))
    kernels = arguments.kernels or system.kernels
    analysis = replace(analysis, kernels=kernels, timings_s=dict(watch.timings_s))
    write_trace(trace, outputs, result)
    outputs.commit()
    print_analysis(analysis, arguments.json)
    return 0
