# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir sweep``: predict the steps of many configurations of a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, option, shortened

from .options import (
    TRAINING,
    WorkerOptions,
    add_options,
    asked_by,
    named_by_options,
    read_options,
    read_step,
)
from .resumable import begin, check_resume, outputs_of, settings_of
from .stages import training_keywords
from .terminal import print_message, print_result


def _grid(items: list[str], option: str) -> dict[str, list[str]]:
    """Read columns and their values.

    Raises
    ------
    UsageError
        DIST0152 for another form, no value, or a repeated column.
    """
    result: dict[str, list[str]] = {}
    for item in items:
        name, equals, text = (word.strip() for word in item.partition("="))
        values = [value.strip() for value in text.split(",")]
        problem = None
        if not name or not equals or not all(values):
            problem = f'"{shortened(item)}" is not COLUMN=VALUE,VALUE,...'
        elif name in result:
            problem = f'the column "{shortened(name)}" is given twice'
        if problem is not None:
            raise UsageError(
                "DIST0152", problem, location=option, remedy=f"Write {option} tp=1,2,4."
            )
        result[name] = values
    return result


@dataclass(frozen=True)
class SweepOptions(WorkerOptions):
    """Options of ``sweep`` beside those of the step.

    Parameters
    ----------
    rows : str, optional
        Read the configurations from the rows of a CSV file.
    grid : mapping of str to list of str
        Set the values of a column, e.g. tp=1,2,4; repeat for all combinations.
    tensor : str
        Set the strategy of tp (default: megatron for zoo transformers, or tensor_parallel).
    cuts : str
        Balance stages by number of layers (layers, default) or by work (work).
    decide : str
        Set the cost of placements that strategies leave open: bytes (default) or times.
    row_by_row : bool
        Run every row through the full pipeline, without sharing between similar rows.
    cache : str, optional
        Cache the programs of sampled rows in DIR.
    resume : bool
        Resume from the rows in -o FILE.
    output : str, optional
        Write the rows as they are computed.
    """

    rows: str | None = option("rows", "FILE.csv", frequent=True)
    grid: Mapping[str, list[str]] | None = option(
        "rows", "COLUMN=V,V,...", _grid, repeated=True, frequent=True
    )
    tensor: str = option("plan", "STRATEGY", usual="")
    cuts: str = option("plan", "C", usual="layers")
    decide: str = option("plan", "D", usual="bytes")
    row_by_row: bool = option("run", default=False)
    cache: str | None = option("run", "DIR")
    resume: bool = option("run", default=False)
    output: str | None = option("run", "FILE.csv", flag="-o", frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.set_defaults(registers=True)
    parser.add_argument(
        "model", metavar="MODEL", help="A .onnx or .pt2 file, or zoo:NAME?key=value,..."
    )
    add_options(
        parser,
        StepOptions,
        ("train",),
        names=("dims", "seq", "packed", "system", "stack", "kernels", "quantize"),
        without=("recompute",),
        required=("system",),
    )
    add_options(parser, SweepOptions)


_SETTINGS = (
    *("dim", "packed", "train", "quantize", "tensor", "cuts", "decide"),
    *(declared.key for name, declared in TRAINING.items() if name != "recompute"),
)
"""Options that determine predictions, which a resumed sweep must repeat."""
_PASSED = ("tensor", "cuts", "decide", "resume", "cache", "workers")


def run(arguments: argparse.Namespace) -> int:
    """Predict the rows and write or print them."""
    options, step = read_options(arguments, SweepOptions), read_step(arguments, StepOptions)
    if (options.grid is None) == (options.rows is None):
        both = "--rows and --grid are mutually exclusive" if options.grid else "no --rows or --grid"
        raise UsageError(
            "DIST0151", both, location="tvm-distir sweep", remedy="Give exactly one of them."
        )
    check_resume(options.resume, options.output, "FILE.csv")
    path = outputs_of(step, {"--rows": options.rows}).reserve(options.output, "-o")
    system = begin(step, "--tensor", options.tensor)
    from tvm_distir import __version__
    from tvm_distir.planning import sweep

    values = {"model": step.model, **{name: getattr(arguments, name) for name in _SETTINGS}}
    settings = {**settings_of(values, system, {}), "version": __version__}
    faults = ["DIST0750"] if options.grid else []
    with asked_by("--grid", *faults), named_by_options("cuts", "decide"):
        result = sweep(
            str(step.model),
            options.rows or options.grid or "",
            system,
            train=training_keywords(step, system),
            micro_batches=step.micro_batches or 1,
            dims=step.dims,
            quantize=step.quantize,
            packed=step.packed or (),
            output=path,
            settings=settings,
            structures=not options.row_by_row,
            on_progress=_progress,
            **{name: getattr(options, name) for name in _PASSED},
        )
    if result.checked:
        print_message(_checks(result.checked))
    if path is None:
        print_result(result.to_csv())
    else:
        print_message(f"wrote {path}")
    if result.interrupted:
        raise KeyboardInterrupt
    return 0


def _progress(progress: Any) -> None:
    """Report the progress of the sweep."""
    print_message(str(progress))
    while progress.notes:
        print_message(progress.notes.pop(0))


def _checks(rows: Any) -> str:
    """Return the results of the rows that were also run through the full pipeline."""
    equal = sum(row.equal for row in rows)
    most = [max(abs(row.shares[k]) for row in rows) for k in range(2)]
    differ = f"; at most {most[0]:.2%} in time and {most[1]:.2%} in memory" * (equal < len(rows))
    return f"checked {len(rows):,} rows against the full pipeline: {equal:,} equal{differ}"
