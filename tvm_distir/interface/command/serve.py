# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve``: run a deployed folder in a job of torchrun, Slurm or MPI."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_distir.support import UsageError, nearest, parse_count, parse_number

from .options import asked_by
from .outputs import Outputs
from .terminal import put


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "serve",
        help="Run a folder of `tvm-distir deploy` in a job of torchrun, srun or mpirun.",
        description=(
            "Join the job that torchrun, srun or mpirun started, one process per device, and run a "
            "deployed model in it. Every process opens only its own shards."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="A folder of `tvm-distir deploy`.")
    parser.add_argument(
        "--inputs", metavar="FILE", help="Read the inputs by name from a .npz or .safetensors file."
    )
    parser.add_argument(
        "--steps",
        metavar="FILE",
        help="Run a step per row of the arrays of a .npz or .safetensors file.",
    )
    parser.add_argument(
        "--repeat", default="1", metavar="N", help="Repeat the run or the steps N times."
    )
    parser.add_argument(
        "--checkpoints", metavar="DIR", help="Write the state of a training step to this folder."
    )
    parser.add_argument(
        "--every",
        metavar="N",
        help="Write a checkpoint every N steps (default: after the last step only).",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="Continue from a checkpoint, or from the last one of a folder of checkpoints. Steps "
        "that it has done are skipped.",
    )
    parser.add_argument(
        "--engine",
        default="torch",
        metavar="E",
        help="Set the engine: torch (default), or mpi in a job of mpirun, without PyTorch.",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="Write the kernels and collectives of each rank with their times, for Perfetto.",
    )
    parser.add_argument(
        "--reduce",
        metavar="R",
        help="Reduce in rank order with the same bits everywhere (ordered, the default on CPUs) "
        "or by gloo or NCCL (library, the default on GPUs).",
    )
    parser.add_argument(
        "--check", action="store_true", help="Compare the calls of all ranks before data moves."
    )
    parser.add_argument(
        "--timeout-s",
        default="300",
        metavar="S",
        help="Set the time for which a process waits for another one (default: 300).",
    )
    parser.add_argument(
        "--sharded",
        action="store_true",
        help="Write the outputs of each rank to a file of its own, FILE with -RANK in its name.",
    )
    parser.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        help="Write output0, ... to a .npz file, with a first dim of steps for --steps.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Join the job, run, write the outputs."""
    if arguments.output is not None and not arguments.output.endswith(".npz"):
        raise UsageError(
            "DIST0152",
            f'"{arguments.output}" does not end with .npz',
            place="-o",
            remedy="Use this extension.",
        )
    if arguments.every is not None and arguments.checkpoints is None:
        raise UsageError(
            "DIST0151",
            "it needs the folder of the checkpoints",
            place="--every",
            remedy="Add --checkpoints.",
        )
    repeat = parse_count(arguments.repeat, "--repeat")
    every = 0 if arguments.every is None else parse_count(arguments.every, "--every")
    timeout_s = parse_number(arguments.timeout_s, "--timeout-s")
    from tvm_distir.execution import ServeOptions, check_trace_path, serve

    engine = _engine(arguments, timeout_s)
    engine.check_available()
    paths = {
        name: None if getattr(arguments, name) is None else Path(getattr(arguments, name))
        for name in ("inputs", "steps", "checkpoints", "resume")
    }
    if arguments.trace is not None:
        paths["trace"] = check_trace_path(arguments.trace, "--trace")
    options = ServeOptions(repeat=repeat, every=every, sharded=arguments.sharded, **paths)
    result = serve(Path(arguments.folder), options, engine, _reporter(arguments.steps is not None))
    count = len(result.times_s)
    if count == 0:
        if result.process == 0:
            put(f"{result.processes} processes, all {result.first_step} steps were done before\n")
        return 0
    if arguments.output is not None and (arguments.sharded or result.process == 0):
        _write(arguments, result)
    if result.process == 0:
        put(
            f"{result.processes} processes, {count} step{'s' * (count != 1)}, "
            f"median {result.median_s * 1e3:.1f} ms\n"
        )
    return 0


def _engine(arguments: argparse.Namespace, timeout_s: float) -> Any:
    """Return the engine of a job.

    Raises
    ------
    UsageError
        DIST0151 for options of the engine torch beside another one, DIST0152 for an engine that
        runs in no job.
    """
    from tvm_distir.execution import MpiEngine, TorchEngine

    if arguments.engine == "torch":
        with asked_by("--reduce", "DIST0601"):
            return TorchEngine(timeout_s, arguments.reduce, arguments.check)
    if arguments.engine != "mpi":
        raise UsageError(
            "DIST0152",
            f'no job runs with the engine "{arguments.engine}"',
            place="--engine",
            remedy=nearest(arguments.engine, ("torch", "mpi")),
        )
    if arguments.reduce is not None or arguments.check:
        raise UsageError(
            "DIST0151",
            "it is an option of the engine torch; mpi reduces in rank order and compares all calls",
            place="--check" if arguments.reduce is None else "--reduce",
            remedy="Leave it out.",
        )
    return MpiEngine(timeout_s)


def _reporter(has_steps: bool) -> Callable[[int, int, Mapping[int, Any]], None]:
    """Return what prints the scalars of each step, on process 0."""

    def report(process: int, step: int, outputs: Mapping[int, Any]) -> None:
        scalars = [f"output{i} {float(a):.6g}" for i, a in outputs.items() if a.size == 1]
        if has_steps and process == 0 and scalars:
            put(f"step {step}: {', '.join(scalars)}\n")

    return report


def _write(arguments: argparse.Namespace, result: Any) -> None:
    import numpy as np

    path = Path(arguments.output)
    if arguments.sharded:
        if result.rank is None:
            return
        path = path.with_name(f"{path.stem}-{result.rank}{path.suffix}")
    inputs = {name: getattr(arguments, name.strip("-")) for name in ("--inputs", "--steps")}
    outputs = Outputs({"FOLDER": arguments.folder, **inputs})
    target = outputs.promise(str(path), "-o")
    named = {
        f"output{i}": arrays[-1] if arguments.steps is None else np.stack(arrays)
        for i, arrays in result.outputs.items()
    }

    def write(place: str) -> None:
        with open(place, "wb") as file:
            np.savez(file, allow_pickle=False, **named)

    outputs.add(target, write)
    outputs.commit()
