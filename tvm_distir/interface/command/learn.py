# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir learn``: compare a trace with its prediction, and fit the system to it."""

from __future__ import annotations

import argparse
import json

from tvm_distir.planning import STAGES, StepOptions
from tvm_distir.support import parameter_texts

from .options import add_help_strategies, add_options, model_inputs, read_planned_step
from .outputs import Outputs, add_force
from .terminal import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.set_defaults(registers=True)
    about = "Traces of torch.profiler of a step, .json or .json.gz, of one rank or of several."
    parser.add_argument("traces", metavar="TRACE", nargs="+", help=about)
    help_of_model = parameter_texts(StepOptions)["model"]
    parser.add_argument("--model", metavar="MODEL", required=True, help=help_of_model)
    add_options(parser, StepOptions, STAGES, required=("system",))
    add_help_strategies(parser)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument(
        "-o", dest="output", metavar="FILE", help="Write the fitted system to FILE."
    )
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, predict, align, fit, write."""
    step = read_planned_step(arguments, StepOptions)
    traces = {f"TRACE {number}": path for number, path in enumerate(arguments.traces, 1)}
    outputs = Outputs({**model_inputs(step), **traces}, force=arguments.force)
    target = outputs.reserve(arguments.output, "-o")
    from tvm_distir.hardware import to_data
    from tvm_distir.planning import learn

    source = f"tvm-distir learn, {', '.join(arguments.traces)}"
    result = learn(arguments.traces, **vars(step), source=source)
    outputs.add(target, json.dumps(to_data(result.system), indent=1) + "\n")
    outputs.commit()
    document = {"schema_version": 1, **result.to_dict()}
    print_result(json.dumps(document, indent=1) + "\n" if arguments.json else result.to_text())
    return 0
