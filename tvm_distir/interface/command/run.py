# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir run``: run a deployed folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tvm_distir.support import UsageError

from .options import asked_by
from .outputs import Outputs
from .terminal import put


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "run",
        help="Run a folder of `tvm-distir deploy`.",
        description="Run a deployed model on inputs from a file, with the TVM runtime only.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="A folder of `tvm-distir deploy`.")
    parser.add_argument(
        "--inputs", metavar="FILE", help="Read the inputs by name from a .npz or .safetensors file."
    )
    parser.add_argument(
        "--engine",
        default="threads",
        metavar="E",
        help="Set the engine: virtual, threads (default), processes, mpi or torch.",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="Write the kernels and collectives of each rank with their times, for Perfetto; of "
        "the engines threads, mpi and torch.",
    )
    parser.add_argument(
        "-o",
        dest="output",
        required=True,
        metavar="FILE",
        help="Write output0, output1, ... to a .npz or .safetensors file.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, run, write the outputs."""
    if not arguments.output.endswith((".npz", ".safetensors")):
        raise UsageError(
            "DIST0152",
            f'"{arguments.output}" ends with neither .npz nor .safetensors',
            place="-o",
            remedy="Use one of these extensions.",
        )
    outputs = Outputs({"FOLDER": arguments.folder, "--inputs": arguments.inputs})
    target = outputs.promise(arguments.output, "-o")
    import numpy as np

    from tvm_distir.execution import check_trace_path, engine, load, open_weights
    from tvm_distir.execution.deployment import safetensors

    with asked_by("--engine", "DIST0601"):
        chosen = engine(arguments.engine)
    if arguments.trace is not None:
        chosen.trace = check_trace_path(arguments.trace, "--trace")
        with asked_by("--trace", "DIST0605"):
            chosen.check_trace()
    chosen.check_available()
    inputs = open_weights(arguments.inputs) if arguments.inputs else {}
    arrays = load(arguments.folder).run(inputs, chosen)
    named = {f"output{i}": array for i, array in enumerate(arrays)}

    def write(path: str) -> None:
        if arguments.output.endswith(".npz"):
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **named)
        else:
            described = {name: (array.shape, str(array.dtype)) for name, array in named.items()}
            safetensors.write(Path(path), described, named.__getitem__)

    outputs.add(target, write)
    outputs.commit()
    put("".join(f"{name}: {array.dtype}{list(array.shape)}\n" for name, array in named.items()))
    return 0
