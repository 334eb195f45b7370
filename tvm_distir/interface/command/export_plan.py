# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir export-plan``: write a plan as code or configuration of another framework."""

from __future__ import annotations

import argparse

from tvm_distir.planning import StepOptions
from tvm_distir.support import check_choice

from .options import add_model_options, model_inputs, read_planned_step
from .outputs import Outputs
from .stages import study_of
from .terminal import print_result

FORMATS = ("dtensor", "jax", "megatron", "torchtitan", "deepspeed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    parser.add_argument(
        "--form", required=True, metavar="FORMAT", help=f"Choose the format: {', '.join(FORMATS)}."
    )
    parser.add_argument("-o", dest="out", metavar="FILE", help="Write to a file (default: stdout).")


def run(arguments: argparse.Namespace) -> int:
    """Load, plan, write."""
    check_choice(arguments.form, "format", FORMATS, "--form")
    step = read_planned_step(arguments, StepOptions)
    outputs = Outputs(model_inputs(step))
    target = outputs.reserve(arguments.out, "-o")
    study = study_of(step)
    from tvm_distir.planning import export_plan

    text = export_plan(study.step, study.step_plan, arguments.form)
    if target is None:
        print_result(text)
        return 0
    outputs.add(target, text)
    outputs.write()
    return 0
