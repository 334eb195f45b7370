# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir run``: run a deployed folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .outputs import Outputs
from .terminal import put


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "run",
        help="run a folder that `tvm-distir deploy` wrote",
        description="Run a deployed model on inputs from a file; needs TVM's runtime only.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="what `tvm-distir deploy` wrote")
    parser.add_argument(
        "--inputs", metavar="FILE", help="the inputs by name: a .npz or .safetensors file"
    )
    parser.add_argument(
        "--engine",
        default="threads",
        metavar="E",
        help="virtual, threads (default), processes, mpi",
    )
    parser.add_argument(
        "-o",
        dest="output",
        required=True,
        metavar="FILE",
        help="output0, output1, ... go here: a .npz or .safetensors file",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, run, write the outputs."""
    if not arguments.output.endswith((".npz", ".safetensors")):
        raise UsageError(
            "DIST0152",
            f'"{arguments.output}" ends with neither .npz nor .safetensors',
            place="-o",
            remedy="Name a file of one of these kinds.",
        )
    Outputs().promise(arguments.output, "-o")
    import numpy as np

    from ..deployment import load, open_weights, safetensors
    from ..runtime import engine

    chosen = engine(arguments.engine)
    chosen.check_available()
    inputs = open_weights(arguments.inputs) if arguments.inputs else {}
    outputs = load(arguments.folder).run(inputs, chosen)
    named = {f"output{i}": array for i, array in enumerate(outputs)}
    if arguments.output.endswith(".npz"):
        np.savez(Path(arguments.output), allow_pickle=False, **named)
    else:
        described = {name: (array.shape, str(array.dtype)) for name, array in named.items()}
        safetensors.write(Path(arguments.output), described, named.__getitem__)
    for i, array in enumerate(outputs):
        put(f"output{i}: {array.dtype}{list(array.shape)}\n")
    return 0
