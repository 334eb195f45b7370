# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a deployed folder in a job of torchrun, Slurm or MPI: ``tvm-distir run --job``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_distir.support import UsageError, nearest, option, parse_count, parse_number

from .array_files import add_arrays, check_array_file
from .options import asked_by
from .outputs import Outputs
from .terminal import print_result

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tvm_distir.execution import RateSchedule


def _path(text: str, _option: str) -> Path:
    return Path(text)


def _schedule(text: str, location: str) -> RateSchedule:
    from tvm_distir.execution import RateSchedule

    return RateSchedule.read(text, location)


@dataclass(frozen=True)
class RunOptions:
    """Options of ``run``, in a job and by itself.

    Parameters
    ----------
    inputs : Path, optional
        Read the inputs by name from a .npz or .safetensors file.
    engine : str, optional
        Set the engine: virtual, threads (default), mpi or torch; with --job torch (default), or mpi
        in a job of mpirun, without PyTorch.
    trace : str, optional
        Write the kernels and collectives of each rank with their times, for Perfetto; of the
        engines threads, mpi and torch.
    requests : Path, optional
        Generate tokens for the prompts of a .json file by the serving step of a decoder.
    output : Path, optional
        Write output0, output1, ... to a .npz or .safetensors file; --steps adds a first dim of
        steps; --requests writes tokens, steps and times_s.
    """

    inputs: Path | None = option("run", "FILE", _path, frequent=True)
    engine: str | None = option("run", "E", frequent=True)
    trace: str | None = option("run", "FILE.json", frequent=True)
    requests: Path | None = option("run", "FILE.json", _path, frequent=True)
    output: Path | None = option("run", "FILE", _path, flag="-o", frequent=True)


@dataclass(frozen=True)
class JobRunOptions(RunOptions):
    """Options of ``run --job``.

    Parameters
    ----------
    steps : Path, optional
        Run a step per row of the arrays of a .npz or .safetensors file.
    repeat : int
        Repeat the run or the steps N times.
    checkpoints : Path, optional
        Write the state of a training step to this folder.
    every : int
        Write a checkpoint every N steps (default: after the last step only).
    resume : Path, optional
        Continue from a checkpoint, or from the last one of a folder of checkpoints. Steps that it
        has done are skipped. A folder that is no training step runs with its weights.
    losses : Path, optional
        Append the loss of each step to a .csv file.
    rate : RateSchedule, optional
        Set the input `rate` of each step: a number, or constant, linear or cosine with
        peak=R,warmup=N,steps=N,final=R after a colon.
    reduce : str, optional
        Reduce in rank order with the same bits everywhere (ordered, the default on CPUs) or by
        gloo or NCCL (library, the default on GPUs).
    check : bool
        Compare the calls of all ranks before data moves.
    timeout_s : float
        Set the time for which a process waits for another one (default: 300).
    sharded : bool
        Write the outputs of each rank to a file of its own, FILE with -RANK in its name.
    """

    steps: Path | None = option("run", "FILE", _path, frequent=True)
    repeat: int = option("run", "N", parse_count, usual="1")
    checkpoints: Path | None = option("run", "DIR", _path, frequent=True)
    every: int = option("run", "N", parse_count, default=0, frequent=True)
    resume: Path | None = option("run", "DIR", _path, frequent=True)
    losses: Path | None = option("run", "FILE.csv", _path, frequent=True)
    rate: RateSchedule | None = option("run", "R", _schedule)
    reduce: str | None = option("run", "R")
    check: bool = option("run", default=False)
    timeout_s: float = option("run", "S", parse_number, usual="300")
    sharded: bool = option("run", default=False)


def run_job(folder: str, options: JobRunOptions) -> int:
    """Join the job, run, write the outputs; return the exit code."""
    check_array_file(options.output)
    if options.every and options.checkpoints is None:
        problem = "it needs the folder of the checkpoints"
        raise UsageError("DIST0151", problem, location="--every", remedy="Add --checkpoints.")
    from tvm_distir.execution import ServeOptions, check_trace_path, serve

    engine = _engine(options)
    engine.check_available()
    trace = None if options.trace is None else check_trace_path(options.trace, "--trace")
    served = {field.name: getattr(options, field.name) for field in fields(ServeOptions)}
    result = serve(
        Path(folder),
        ServeOptions(**{**served, "trace": trace}),
        engine,
        _reporter(options.steps is not None),
    )
    count = len(result.times_s)
    if count == 0:
        if result.process == 0:
            print_result(
                f"{result.processes} processes, all {result.first_step} steps were done before\n"
            )
        return 0
    if options.output is not None and (options.sharded or result.process == 0):
        _write(folder, options, options.output, result)
    if result.process == 0:
        print_result(
            f"{result.processes} processes, {count} step{'s' * (count != 1)}, "
            f"median {result.median_s * 1e3:.1f} ms\n"
        )
    return 0


def _engine(options: JobRunOptions) -> Any:
    """Return the engine of a job.

    Raises
    ------
    UsageError
        DIST0151 for options of the engine torch beside another one, DIST0152 for an engine that
        runs in no job.
    """
    from tvm_distir.execution import MpiEngine, TorchEngine

    if options.engine in (None, "torch"):
        with asked_by("--reduce", "DIST0601"):
            return TorchEngine(options.timeout_s, options.reduce, options.check)
    if options.engine != "mpi":
        raise UsageError(
            "DIST0152", f'no job runs with the engine "{options.engine}"',
            location="--engine", remedy=nearest(str(options.engine), ("torch", "mpi")),
        )  # fmt: skip
    if options.reduce is not None or options.check:
        raise UsageError(
            "DIST0151",
            "it is an option of the engine torch; mpi reduces in rank order and compares all calls",
            location="--check" if options.reduce is None else "--reduce", remedy="Leave it out.",
        )  # fmt: skip
    return MpiEngine(options.timeout_s)


def _reporter(has_steps: bool) -> Callable[[int, int, Mapping[int, npt.NDArray[np.generic]]], None]:
    """Return what prints the scalars of each step, on process 0."""

    def report(process: int, step: int, outputs: Mapping[int, npt.NDArray[np.generic]]) -> None:
        scalars = [f"output{i} {float(a.item()):.6g}" for i, a in outputs.items() if a.size == 1]
        if has_steps and process == 0 and scalars:
            print_result(f"step {step}: {', '.join(scalars)}\n")

    return report


def _write(folder: str, options: JobRunOptions, path: Path, result: Any) -> None:
    import numpy as np

    if options.sharded:
        if result.rank is None:
            return
        path = path.with_name(f"{path.stem}-{result.rank}{path.suffix}")
    inputs = {name: getattr(options, name[2:]) for name in ("--inputs", "--steps", "--requests")}
    outputs = Outputs({"FOLDER": folder, **inputs})
    target = outputs.reserve(str(path), "-o")
    parts = result.outputs.items()
    named = {f"output{i}": x[-1] if options.steps is None else np.stack(x) for i, x in parts}
    if result.generation is not None:
        named = result.generation.arrays()

    add_arrays(outputs, target, named)
    outputs.commit()
