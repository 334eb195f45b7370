# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: fair timing, tables, the versions of what was measured."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Protocol

MS = 1e3


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of one call: what runs beside it on the machine does not count.

    All that is measured here runs in one thread, so on an idle machine this is the time it takes.
    """
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(
    measures: Sequence[Callable[[], float]], repeat: int, budget_s: float = 120.0
) -> list[float]:
    """Run all measures in turn, ``repeat`` rounds, and give the smallest value of each.

    No further round is begun after ``budget_s`` seconds.
    """
    best = [float("inf")] * len(measures)
    start = time.monotonic()
    for _ in range(repeat):
        for i, measure in enumerate(measures):
            best[i] = min(best[i], measure())
        if time.monotonic() - start > budget_s:
            break
    return best


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(header)} |")
    print(f"|{'|'.join(['--'] + ['--:'] * (len(header) - 1))}|")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |")
    print(flush=True)


def ms(seconds: float) -> str:
    """Milliseconds, with a digit after the point below ten."""
    value = seconds * MS
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def ratio(theirs: float, ours: float) -> str:
    """How many times faster ours is; below 1 it is slower."""
    value = theirs / ours
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def print_setting(**more: str) -> None:
    """Say on what machine and with which versions the numbers that follow were taken."""
    names = ("apache-tvm", "apache-tvm-ffi")
    versions = {"python": platform.python_version(), **{n: version(n) for n in names}, **more}
    print(f"{platform.machine()}, {os.cpu_count()} cores; ", end="")
    print(", ".join(f"{name} {number}" for name, number in versions.items()), end="\n\n")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def add_rows(options: argparse.ArgumentParser, rows: Sequence[_Named]) -> None:
    """Add the option ``--rows``: names with commas between, by default of all rows."""

    def named(text: str) -> list[_Named]:
        names = text.split(",")
        unknown = sorted(set(names) - {row.name for row in rows})
        if unknown:
            known = ", ".join(row.name for row in rows)
            raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are: {known}")
        return [row for row in rows if row.name in names]

    options.add_argument("--rows", type=named, default=rows, metavar="NAME,NAME", help="rows")


def parser(description: str | None, jax: bool = False) -> argparse.ArgumentParser:
    """Return a parser of the options that the benchmarks have in common."""
    argument_parser = argparse.ArgumentParser(description=description)
    argument_parser.add_argument(
        "--repeat", type=int, default=5, help="rounds; the best one counts"
    )
    if jax:
        argument_parser.add_argument(
            "--jax-python",
            default=sys.executable,
            metavar="PATH",
            help="an interpreter that has jax (the default is the one that runs this)",
        )
    return argument_parser
