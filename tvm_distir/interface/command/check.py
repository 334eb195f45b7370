# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir check``: check a program that others distributed against one of a single device."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.support import UsageError, option, parse_count, parse_seed, shortened

from .options import add_options, read_options
from .stages import stopwatch
from .terminal import print_result

EXECUTION = "execution"
PROGRAMS, REFERENCE = "programs.json", "reference.json"


def _seed(text: str, _option: str) -> int:
    return parse_seed(text)


def _method(text: str, flag: str) -> str:
    if text not in (EXECUTION, "rules"):
        problem = f'"{shortened(text)}" is no method'
        remedy = f"Write {flag} rules, or {flag} {EXECUTION}."
        raise UsageError("DIST0152", problem, location=flag, remedy=remedy)
    return text


def _hints(items: list[str], flag: str) -> dict[str, dict[str, int]]:
    """Read ``INPUT:AXIS=DIM,AXIS=DIM``; raises UsageError DIST0152 for another text."""
    hints: dict[str, dict[str, int]] = {}
    for item in items:
        name, colon, text = item.rpartition(":")
        pairs = [pair.partition("=")[::2] for pair in text.split(",")]
        if not colon or not name or not all(axis and dim.isdigit() for axis, dim in pairs):
            problem = f'"{shortened(item)}" is not INPUT:AXIS=DIM,AXIS=DIM'
            raise UsageError(
                "DIST0152", problem, location=flag, remedy=f"Write {flag} x:dp=0,tp=1."
            )
        hints.setdefault(name, {}).update({axis: int(dim) for axis, dim in pairs})
    return hints


def _counts(items: list[str], flag: str) -> tuple[int, ...]:
    return tuple(parse_count(item, flag) for item in items)


@dataclass(frozen=True)
class CheckOptions:
    """Options of ``check``.

    Parameters
    ----------
    hints : dict, optional
        Say which dim a mesh axis shards, where sizes leave a choice; the first axis is the major
        one. May be repeated.
    micro_batches : tuple of int
        Set a number of micro-batches, to know the values of one of them. May be repeated.
    by : str
        Run the ranks (``execution``, the default), or derive their values at full size by the
        sharding rules (``rules``).
    seed : int
        Set the seed of the random inputs (default: 0).
    json : bool
        Print JSON instead of text.
    """

    hints: dict[str, dict[str, int]] | None = option(
        "run", "INPUT:AXIS=DIM,...", _hints, flag="--hint", repeated=True, frequent=True
    )
    micro_batches: tuple[int, ...] = option(
        "run", "N", _counts, default=(), repeated=True, frequent=True
    )
    by: str = option("run", "METHOD", _method, default=EXECUTION, frequent=True)
    seed: int = option("run", "N", _seed, usual="0", frequent=True)
    json: bool = option("run", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    about = f"A folder with the traces {PROGRAMS} and {REFERENCE}, as tvm.ir.save_json writes them."
    parser.add_argument("folder", metavar="FOLDER", help=about)
    add_options(parser, CheckOptions)


def run(arguments: argparse.Namespace) -> int:
    """Read the traces and check. A fault is printed as a result, then raised (exit code 1)."""
    options = read_options(arguments, CheckOptions)
    folder = Path(arguments.folder)
    with stopwatch().stage("check"):
        from tvm_distir.execution import check
        from tvm_distir.models import read_relax

        programs, reference = (read_relax(folder / name, {}) for name in (PROGRAMS, REFERENCE))
        report = check(
            programs,
            reference,
            hints=options.hints,
            micro_batches=options.micro_batches,
            seed=options.seed,
            by=options.by,
        )
    print_result((report.to_json() if options.json else str(report)) + "\n")
    report.check()
    return 0
