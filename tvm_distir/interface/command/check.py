# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir check``: check a program that others distributed against one of a single device."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_distir.support import UsageError, check_choice, option, parse_count, parse_seed, shortened
from tvm_distir.support.display import units

from .options import add_options, read_options
from .stages import load_system, stopwatch
from .terminal import print_result

if TYPE_CHECKING:
    from tvm import ir

    from tvm_distir.execution import CheckReport
    from tvm_distir.hardware import System
    from tvm_distir.interface.report.comparison import Comparison

EXECUTION = "execution"
PROGRAMS, REFERENCE = "programs.json", "reference.json"


def _method(text: str, flag: str) -> str:
    check_choice(text, "method", (EXECUTION, "rules"), flag)
    return text


def read_hints(items: list[str], flag: str) -> dict[str, dict[str, int]]:
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
    system : str, optional
        Simulate the ranks on a system, and beside them the reference as a plan with their
        placements distributes it.
    seed : int
        Set the seed of the random inputs (default: 0).
    json : bool
        Print JSON instead of text.
    """

    hints: dict[str, dict[str, int]] | None = option(
        "run", "INPUT:AXIS=DIM,...", read_hints, flag="--hint", repeated=True, frequent=True
    )
    micro_batches: tuple[int, ...] = option(
        "run", "N", _counts, default=(), repeated=True, frequent=True
    )
    by: str = option("run", "METHOD", _method, default=EXECUTION, frequent=True)
    system: str | None = option("run", "S", frequent=True)
    seed: int = option("run", "N", parse_seed, usual="0", frequent=True)
    json: bool = option("run", default=False, frequent=True)


def read_traces(folder: Path) -> tuple[ir.IRModule, ir.IRModule]:
    """Return the programs of the ranks and the reference of a folder."""
    from tvm_distir.models import read_relax

    programs, reference = (read_relax(folder / name, {}) for name in (PROGRAMS, REFERENCE))
    return programs, reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    about = f"A folder with the traces {PROGRAMS} and {REFERENCE}, as tvm.ir.save_json writes them."
    parser.add_argument("folder", metavar="FOLDER", help=about)
    add_options(parser, CheckOptions)


def run(arguments: argparse.Namespace) -> int:
    """Read the traces and check. A fault is printed as a result, then raised (exit code 1)."""
    options = read_options(arguments, CheckOptions)
    folder, watch = Path(arguments.folder), stopwatch()
    system = load_system(options.system, watch)
    with watch.stage("check"):
        from tvm_distir.execution import check

        programs, reference = read_traces(folder)
        report = check(
            programs,
            reference,
            hints=options.hints,
            micro_batches=options.micro_batches,
            seed=options.seed,
            by=options.by,
        )
    document, text = report.to_dict(), str(report) + "\n"
    if system is not None and report.verdict != "deadlock":
        with watch.stage("simulate"):
            comparison = _beside_own(programs, reference, report, system)
        document["comparison"] = comparison.to_dict()
        text += f"\n{comparison}{_ratios(comparison)}\n"
    print_result(json.dumps(document, indent=2) + "\n" if options.json else text)
    report.check()
    return 0


def _beside_own(
    programs: ir.IRModule, reference: ir.IRModule, report: CheckReport, system: System
) -> Comparison:
    """Simulate the ranks, and the reference as this package distributes it on the same mesh."""
    from tvm_distir.execution import distributed_reference
    from tvm_distir.interface.report.comparison import compare
    from tvm_distir.performance import export, simulate

    modules = distributed_reference(reference, report), programs
    results = [simulate(export(mod), system, kernels="torch-eager") for mod in modules]
    return compare(*results, names=("this package", "the ranks"))


def _ratios(comparison: Comparison) -> str:
    sent = [outcome.sent_bytes for outcome in comparison.outcomes]
    times = f"The ranks take {comparison.ratios[1] or 1:.3g} times the time of this package's plan"
    if not sent[0]:
        return f"{times} and send {units.size(sent[1])} where it sends none."
    return f"{times} and send {sent[1] / sent[0]:.3g} times the bytes."
