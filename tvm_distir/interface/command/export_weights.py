# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir export-weights``: write trained weights to a safetensors file."""

from __future__ import annotations

import argparse

from tvm_distir.support import UsageError

from .outputs import Outputs
from .terminal import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="A checkpoint of `tvm-distir run --job` or of a session, a folder of checkpoints, of "
        "which the last is read, or another file of weights.",
    )
    parser.add_argument(
        "-o", dest="out", metavar="FILE", required=True, help="Write to a .safetensors file."
    )


def run(arguments: argparse.Namespace) -> int:
    """Open the checkpoint, write the file."""
    if not arguments.out.endswith(".safetensors"):
        problem = f'"{arguments.out}" does not end with .safetensors'
        raise UsageError("DIST0152", problem, location="-o", remedy="Use this extension.")
    outputs = Outputs({"CHECKPOINT": arguments.checkpoint})
    target = outputs.reserve(arguments.out, "-o")
    from tvm_distir.execution import export_weights, open_weights

    weights = open_weights(arguments.checkpoint)
    outputs.add(target, lambda path: export_weights(weights, path))
    outputs.commit()
    print_result(f"{len(weights)} arrays in {arguments.out}\n")
    return 0
