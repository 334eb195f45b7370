# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Advice that was tried: the changed step is made and simulated, as the given one was."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tvm_distir.support import DistIRError, InternalError, UsageError

from .advice_changes import LEAST, Change, changes_of
from .exporting import exported
from .stages import StagedModel, Stopwatch, load_work, run_passes

CHOICES = ("bounds", "quick", "full")
MOST_TRIED = 4
"""How many changed plans are tried without being asked."""
MOST_OPS = 1200
"""How many ops their programs have in all, if they have as many as the given one."""
MOST_UNITS = 4096
"""How many units the schedule has of a program that is simulated again without being asked."""


def add_advice(parser: argparse.ArgumentParser) -> None:
    """Add ``--advice``."""
    parser.add_argument(
        "--advice",
        metavar="HOW",
        default="quick",
        help="how changes are judged: bounds (by formula), quick (the default: simulated, a few "
        "of them), or full (all of them)",
    )


def check_advice(arguments: argparse.Namespace) -> None:
    """Refuse (DIST0152) another way of judging."""
    if arguments.advice not in CHOICES:
        raise UsageError(
            "DIST0152",
            f'"{arguments.advice}" is no way of judging advice',
            place="--advice",
            remedy=f"Use {', '.join(CHOICES)}.",
        )


def advised(
    analysis: Any,
    work: StagedModel,
    program: Any,
    arguments: argparse.Namespace,
    axes: dict[str, int] | None,
) -> Any:
    """The analysis with the changes that were tried, and the words of those that were not.

    Parameters
    ----------
    analysis : Analysis
    work : StagedModel
        What was analysed, with ``source``.
    program : Program
    arguments, axes
        Of the command; see :func:`.analysing.analyse`.
    """
    if arguments.advice == "bounds":
        return analysis
    watch = Stopwatch()
    with watch.stage("advice"):
        found, untried = _judged(analysis, work, program, arguments, axes)
    timings_s = {**analysis.timings_s, **watch.timings_s}
    return replace(analysis, trials=found, untried=untried, timings_s=timings_s)


def _judged(
    analysis: Any,
    work: StagedModel,
    program: Any,
    arguments: argparse.Namespace,
    axes: dict[str, int] | None,
) -> tuple[tuple[Any, ...], tuple[tuple[str, str], ...]]:
    """Changes that were tried, and the words of those that were not with what they are for."""
    most = _most(program) if arguments.advice == "quick" else math.inf
    if arguments.measure:  # of changed plans every kernel would be timed
        most = 0
    found: list[Any] = []
    if most:
        found += _priced(analysis, work.system, program, arguments)
    untried: list[tuple[str, str]] = []
    count = fitted = 0
    for change in changes_of(arguments, axes, analysis):
        if change.part == "fit" and fitted:
            continue
        if count >= most:
            untried.append((change.part, change.words))
            continue
        trial = _tried(change, analysis, work, program, arguments, axes)
        count += 1
        if trial is not None:
            found.append(trial)
            fitted += trial.fits is not False
    return tuple(found), tuple(untried)


def _most(program: Any) -> int:
    """How many plans are tried without being asked; by the program's size, not by a clock."""
    if program.staged is not None:
        schedule = program.staged.schedule
        if len(schedule.rank_of) * schedule.micro_batches > MOST_UNITS:
            return 0
    ops = sum(len(fn.ops) for fn in program.functions.values())
    return min(MOST_TRIED, MOST_OPS // max(1, ops))


def _priced(
    analysis: Any, system: Any, program: Any, arguments: argparse.Namespace
) -> Iterator[Any]:
    """The same program with other kernels, and with other links."""
    from tvm_distir.performance import profile_names

    spent = analysis.spent_s
    whole_s = sum(spent.values())
    shares = {part: took_s / whole_s if whole_s > 0 else 0.0 for part, took_s in spent.items()}
    part = "memory" if shares["memory"] >= shares["launch"] else "launch"
    if shares[part] >= LEAST:
        names = [n for n in profile_names() if n != (arguments.kernels or system.kernels)]
        tried = [
            _trial(analysis, part, f"--kernels {name}", again)
            for name in names
            if (again := _simulated(program, system, arguments, kernels=name)) is not None
        ]
        yield from sorted(tried, key=lambda one: one.time_s)[:1]
    if shares["communication"] >= LEAST:
        near, far = system.intra_node, system.inter_node
        faster = replace(
            system,
            intra_node=replace(near, bandwidth_GBps=2 * near.bandwidth_GBps),
            inter_node=replace(far, bandwidth_per_nic_GBps=2 * far.bandwidth_per_nic_GBps),
        )
        again = _simulated(program, faster, arguments)
        if again is not None:
            yield _trial(
                analysis, "communication", "--system with links of twice the bandwidth", again
            )


def _simulated(
    program: Any, system: Any, arguments: argparse.Namespace, kernels: str | None = None
) -> Any:
    """Result; None where it is refused."""
    from tvm_distir.performance import simulate

    profile = kernels or arguments.kernels
    return _unless_refused(
        lambda: simulate(program, system, kernels=profile, allocator=arguments.allocator)
    )


def _unless_refused(make: Callable[[], Any]) -> Any:
    """What is made; None where it is refused, which is no advice. A bug is one here too."""
    try:
        return make()
    except InternalError:
        raise
    except DistIRError:
        return None


def _trial(analysis: Any, part: str, words: str, result: Any, per: int = 1) -> Any:
    """What a change gains; ``per`` times as many samples are in a step."""
    from tvm_distir.interface.report.model import Trial

    peak, capacity = result.peak_memory_bytes, analysis.capacity_bytes
    return Trial(
        part=part,
        change=words,
        time_s=result.time_s,
        gain=per * analysis.time_s / result.time_s if result.time_s > 0 else 1.0,
        samples=per,
        devices=len(result.devices),
        peak_memory_bytes=peak,
        fits=None if capacity is None else peak <= capacity,
    )


def _tried(
    change: Change,
    analysis: Any,
    work: StagedModel,
    given: Any,
    arguments: argparse.Namespace,
    axes: dict[str, int] | None,
) -> Any:
    """Make and simulate the changed step; None where it is refused."""
    asked = argparse.Namespace(**{**vars(arguments), **change.options})
    cut = analysis.pipeline is not None  # a strategy may say of how many samples a part is
    again = "batch" in change.options or (cut and "strategy" in change.options)

    def make() -> Any:
        source = None if again else work.source
        made = load_work(asked, change.axes or axes, Stopwatch(), source=source)
        return exported(run_passes(made, Stopwatch(), keep=False), asked)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is tried, not of what was asked for
        program = _unless_refused(make)
        result = None if program is None else _simulated(program, work.system, asked)
    if result is None:
        return None
    return _trial(analysis, change.part, change.words, result, _times_as_many(program, given))


def _times_as_many(program: Any, given: Any) -> int:
    """How often as many samples a program has as the given one; a fixed batch is a micro-batch."""
    from tvm_distir.interface.report.collect import batch_of

    samples, before = batch_of(program), batch_of(given)
    return samples // before if samples and before else 1
