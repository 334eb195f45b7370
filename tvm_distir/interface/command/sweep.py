# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir sweep``: predict the steps of many configurations of a model."""

from __future__ import annotations

import argparse
from typing import Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, shortened

from .options import (
    TRAINING,
    add_jobs,
    add_step_options,
    asked_by,
    named_by_options,
    parse_jobs,
    read_step,
)
from .resumable import begin, check_resume, outputs_of, settings_of
from .stages import training_keywords
from .terminal import put, say


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "sweep",
        help="Predict the step of a model in many configurations.",
        description=(
            "Predict time and memory of the step of a model for each row of a CSV file or all "
            "combinations of a grid: model sizes, parallelism, micro-batches, schedule, "
            "recomputation, ZeRO."
        ),
        allow_abbrev=False,
    )
    parser.set_defaults(registers=True)
    parser.add_argument(
        "model", metavar="MODEL", help="A .onnx or .pt2 file, or zoo:NAME?key=value,..."
    )
    parser.add_argument(
        "--rows", metavar="FILE.csv", help="Read the configurations from the rows of a CSV file."
    )
    parser.add_argument(
        "--grid",
        action="append",
        metavar="COLUMN=V,V,...",
        help="Set the values of a column, e.g. tp=1,2,4; repeat for all combinations.",
    )
    add_step_options(
        parser,
        ("train",),
        names=("dims", "seq", "system", "kernels"),
        without=("recompute",),
        required=("system",),
    )
    parser.add_argument(
        "--tensor",
        metavar="STRATEGY",
        default="",
        help="Set the strategy of tp (default: megatron for zoo transformers, or tensor_parallel).",
    )
    parser.add_argument(
        "--cuts",
        metavar="C",
        default="layers",
        help="Balance stages by number of layers (layers, default) or by work (work).",
    )
    parser.add_argument(
        "--decide",
        metavar="D",
        default="bytes",
        help="Set the cost of placements that strategies leave open: bytes (default) or times.",
    )
    parser.add_argument(
        "--row-by-row",
        action="store_true",
        help="Run every row through the full pipeline, without sharing between similar rows.",
    )
    parser.add_argument("--cache", metavar="DIR", help="Cache the programs of sampled rows in DIR.")
    add_jobs(parser)
    parser.add_argument("--resume", action="store_true", help="Resume from the rows in -o FILE.")
    parser.add_argument(
        "-o", dest="output", metavar="FILE.csv", help="Write the rows as they are computed."
    )
    parser.set_defaults(run=run)


def grid_of(items: list[str] | None) -> dict[str, list[str]]:
    """Read the values of ``--grid``.

    Raises
    ------
    UsageError
        DIST0152 for another form, no value, or a repeated column.
    """
    result: dict[str, list[str]] = {}
    for item in items or []:
        name, equals, text = (word.strip() for word in item.partition("="))
        values = [value.strip() for value in text.split(",")]
        problem = None
        if not name or not equals or not all(values):
            problem = f'"{shortened(item)}" is not COLUMN=VALUE,VALUE,...'
        elif name in result:
            problem = f'the column "{shortened(name)}" is given twice'
        if problem is not None:
            raise UsageError("DIST0152", problem, place="--grid", remedy="Write --grid tp=1,2,4.")
        result[name] = values
    return result


_SETTINGS = (
    *("dim", "train", "tensor", "cuts", "decide"),
    *(declared.key for name, declared in TRAINING.items() if name != "recompute"),
)
"""Options that determine predictions, which a resumed sweep must repeat."""


def run(arguments: argparse.Namespace) -> int:
    """Predict the rows and write or print them."""
    grid, step = grid_of(arguments.grid), read_step(arguments, StepOptions)
    if bool(grid) == (arguments.rows is not None):
        both = "--rows and --grid are mutually exclusive" if grid else "no --rows or --grid"
        raise UsageError(
            "DIST0151", both, place="tvm-distir sweep", remedy="Give exactly one of them."
        )
    check_resume(arguments.resume, arguments.output, "FILE.csv")
    outputs = outputs_of(step, {"--rows": arguments.rows})
    path = outputs.promise(arguments.output, "-o")
    system = begin(step, "--tensor", arguments.tensor)
    from tvm_distir import __version__
    from tvm_distir.planning import sweep

    options = {"model": step.model, **{name: getattr(arguments, name) for name in _SETTINGS}}
    settings = {**settings_of(options, system, {}), "version": __version__}
    with asked_by("--grid", *(["DIST0750"] if grid else [])), named_by_options("cuts", "decide"):
        result = sweep(
            str(step.model),
            grid or arguments.rows,
            system,
            train=training_keywords(step, system),
            micro_batches=step.micro_batches or 1,
            tensor=arguments.tensor,
            cuts=arguments.cuts,
            decide=arguments.decide,
            dims=step.dims,
            output=path,
            resume=arguments.resume,
            settings=settings,
            structures=not arguments.row_by_row,
            cache=arguments.cache,
            on_progress=_progress,
            jobs=parse_jobs(arguments.jobs),
        )
    if result.checked:
        say(_checks(result.checked))
    if path is None:
        put(result.to_csv())
    else:
        say(f"wrote {path}")
    if result.interrupted:
        raise KeyboardInterrupt
    return 0


def _progress(progress: Any) -> None:
    """Report the progress of the sweep."""
    impossible = f", {progress.impossible:,} infeasible" if progress.impossible else ""
    structures = f"; {progress.structures:,} structures" if progress.structures else ""
    say(f"{progress.done:,} of {progress.rows:,} rows{impossible}{structures}")
    while progress.notes:
        say(progress.notes.pop(0))


def _checks(rows: Any) -> str:
    """Return the results of the rows that were also run through the full pipeline."""
    equal = sum(row.equal for row in rows)
    most = [max(abs(row.shares[k]) for row in rows) for k in range(2)]
    differ = f"; at most {most[0]:.2%} in time and {most[1]:.2%} in memory" * (equal < len(rows))
    return f"checked {len(rows):,} rows against the full pipeline: {equal:,} equal{differ}"
