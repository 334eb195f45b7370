# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir run``: run a deployed folder, by itself or in a job of processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tvm_distir.support import UsageError, option_fields

from .array_files import add_arrays, check_array_file
from .job import JobRunOptions, RunOptions, run_job
from .options import add_options, asked_by, read_options
from .outputs import Outputs
from .terminal import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("folder", metavar="FOLDER", help="A folder of `tvm-distir deploy`.")
    add_options(parser, RunOptions)
    parser.add_argument(
        "--job",
        action="store_true",
        help="Join the job that torchrun, srun or mpirun started, with one process per device; "
        "each opens only its own shards.",
    )
    names = [name for name in option_fields(JobRunOptions) if name not in _OWN]
    add_options(parser.add_argument_group("with --job"), JobRunOptions, names=names)


_OWN = tuple(option_fields(RunOptions))
_OF_REQUESTS = ("inputs", "engine", "requests", "output", "reduce", "check", "timeout_s")


def _refuse(arguments: argparse.Namespace, known: Sequence[str], problem: str, remedy: str) -> None:
    """Refuse options whose fields are not known (UsageError DIST0151)."""
    for name, declared in option_fields(JobRunOptions).items():
        if name not in known and declared.words(getattr(arguments, declared.key)):
            problem = f"{declared.flag} {problem}"
            raise UsageError("DIST0151", problem, location="tvm-distir run", remedy=remedy)


def run(arguments: argparse.Namespace) -> int:
    """Load, run, write the outputs."""
    if arguments.requests:
        _refuse(arguments, _OF_REQUESTS, "is no option of --requests", "Leave it out.")
    if arguments.job:
        return run_job(arguments.folder, read_options(arguments, JobRunOptions))
    _refuse(arguments, _OWN, "needs --job", "Add --job, or leave it out.")
    return _run_here(arguments.folder, read_options(arguments, RunOptions))


def _run_here(folder: str, options: RunOptions) -> int:
    """Run the folder with an engine of this process, or one that starts its own."""
    if options.output is None:
        raise UsageError(
            "DIST0151", "the outputs need a file", location="-o", remedy="Add -o y.npz."
        )
    check_array_file(options.output)
    reads = {"FOLDER": folder, "--inputs": options.inputs, "--requests": options.requests}
    outputs = Outputs(reads)
    target = outputs.reserve(str(options.output), "-o")

    from tvm_distir.execution import (
        PromptFile,
        check_trace_path,
        engine,
        load,
        open_weights,
        serve_prompts,
    )

    with asked_by("--engine", "DIST0601"):
        chosen = engine(options.engine or "threads")
    if options.trace is not None:
        chosen.trace = check_trace_path(options.trace, "--trace")
        with asked_by("--trace", "DIST0605"):
            chosen.check_trace()
    chosen.check_available()
    inputs = open_weights(options.inputs) if options.inputs else {}
    if options.requests is not None:
        file = PromptFile.read(options.requests)
        named = serve_prompts(folder, file, inputs, engine=chosen).arrays()
    else:
        named = {f"output{i}": array for i, array in enumerate(load(folder).run(inputs, chosen))}
    add_arrays(outputs, target, named)
    outputs.commit()
    print_result(
        "".join(f"{name}: {array.dtype}{list(array.shape)}\n" for name, array in named.items())
    )
    return 0
