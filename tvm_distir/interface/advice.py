# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate advice: changed steps are built and simulated as the given step was."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_distir.support import REFUSALS, Stopwatch, check_choice

from .advice_changes import LEAST, Change, changes_of

if TYPE_CHECKING:
    from tvm_distir.hardware import System
    from tvm_distir.interface.report.model import Analysis, TriedChange
    from tvm_distir.performance import Profile, Program, Result
    from tvm_distir.planning import Study

CHOICES = ("bounds", "quick", "full")
MOST_TRIED = 4
"""Number of changed plans that quick advice simulates."""
MOST_OPS = 1200
"""Total ops of the changed programs, if each has as many as the given program."""
MOST_UNITS = 4096
"""Most phases in the schedule of a program that quick advice simulates again."""


def check_advice(how: str, location: str = "advice") -> None:
    """Refuse an unknown mode of advice (DIST0152)."""
    check_choice(how, "advice mode", CHOICES, location)


def advised(report: Analysis, study: Study, how: str, measured: bool) -> Analysis:
    """Return the analysis with the changes that were tried, and the texts of the others.

    Parameters
    ----------
    report : Analysis
        The analyzed step.
    study : Study
        How it was made.
    how : str
        One of :data:`CHOICES`.
    measured : bool
        Whether its kernels were timed: nothing is tried, since each kernel would be timed again.
    """
    if how == "bounds":
        return report
    watch = study.watch
    with watch.stage("advice"):
        most = 0 if measured else _most(study.program) if how == "quick" else math.inf
        trials, untried = _judged(report, study, most)
    return replace(report, trials=trials, untried=untried, timings_s=watch.timings_s)


def _judged(
    analysis: Analysis, study: Study, most: float
) -> tuple[tuple[TriedChange, ...], tuple[tuple[str, str], ...]]:
    """Return the changes that were tried, and the part and text of each of the others."""
    trials: list[TriedChange] = list(_with_other_hardware(analysis, study)) if most else []
    untried: list[tuple[str, str]] = []
    count = fitted = 0
    for change in changes_of(study, analysis):
        if change.part == "fit" and fitted:
            continue
        if count >= most:
            untried.append((change.part, change.words))
            continue
        trial = _tried(change, analysis, study)
        count += 1
        if trial is not None:
            trials.append(trial)
            fitted += trial.fits is not False
    return tuple(trials), tuple(untried)


def _most(program: Program) -> int:
    """Return the default number of tried plans, by the program's size."""
    if program.staged is not None:
        schedule = program.staged.schedule
        if len(schedule.rank_of) * schedule.micro_batches > MOST_UNITS:
            return 0
    ops = sum(len(fn.ops) for fn in program.functions.values())
    return min(MOST_TRIED, MOST_OPS // max(1, ops))


def _with_other_hardware(analysis: Analysis, study: Study) -> Iterator[TriedChange]:
    """Simulate the same program with other kernels, and with other links."""
    from tvm_distir.hardware import System
    from tvm_distir.performance import Profile

    system, step_s = System.required(study.known_system), analysis.spent_s
    total_s = sum(step_s.values())
    shares = {part: took_s / total_s if total_s > 0 else 0.0 for part, took_s in step_s.items()}
    part = "memory" if shares["memory"] >= shares["launch"] else "launch"
    if shares[part] >= LEAST:
        profiles = map(Profile.load, Profile.resolve(study.kernels or system.kernels).alternatives)
        serves = _appends_to_caches(study.program)
        tried = [
            _trial(analysis, part, f"--kernels {profile.name}", resimulated)
            for profile in profiles
            if (serves or not profile.joined)  # kernels of serving engines
            and (resimulated := _simulated(study, system, profile)) is not None
        ]
        yield from sorted(tried, key=lambda trial: trial.time_s)[:1]
    if shares["communication"] >= LEAST:
        resimulated = _simulated(study, _with_faster_links(system), study.kernels)
        if resimulated is not None:
            yield _trial(
                analysis, "communication", "--system with twice the link bandwidth", resimulated
            )


def _with_faster_links(system: System) -> System:
    """Return a system with twice the bandwidth between all devices."""
    near, far = system.intra_node, system.inter_node
    return replace(
        system,
        intra_node=replace(near, bandwidth_GBps=2 * near.bandwidth_GBps),
        inter_node=replace(far, bandwidth_per_nic_GBps=2 * far.bandwidth_per_nic_GBps),
        graph=system.graph and system.graph.scaled(2),
        stages=tuple(map(_with_faster_links, system.stages)),
    )


def _appends_to_caches(program: Program) -> bool:
    """Return whether a step is one of a serving engine, which has caches of keys and values."""
    from tvm_distir.core.ir.operators import KV_APPEND_OP

    return any(op.op == KV_APPEND_OP for fn in program.functions.values() for op in fn.ops)


def _simulated(study: Study, system: System, kernels: Profile | str | None) -> Result | None:
    """Simulate the same program; return None if it is refused."""
    from tvm_distir.performance import simulate

    options = {**study.passed_to("simulate"), "kernels": kernels}
    return _unless_refused(lambda: simulate(study.program, system, **options))


def _unless_refused(make: Callable[[], Result]) -> Result | None:
    """Return the result of a call, or None if it is refused; bugs are raised."""
    with contextlib.suppress(*REFUSALS):
        return make()
    return None


def _trial(analysis: Analysis, part: str, words: str, result: Result, per: int = 1) -> TriedChange:
    """Return the gain of a change; ``per`` times as many samples are in a step."""
    from tvm_distir.interface.report.model import TriedChange

    return TriedChange(
        part=part,
        change=words,
        time_s=result.time_s,
        gain=per * analysis.time_s / result.time_s if result.time_s > 0 else 1.0,
        samples=per,
        devices=len(result.devices),
        peak_memory_bytes=result.peak_memory_bytes,
        fits=None if analysis.capacity_bytes is None else result.fits,
    )


def _tried(change: Change, analysis: Analysis, study: Study) -> TriedChange | None:
    """Build and simulate the changed step; return None if it is refused."""
    is_pipelined = analysis.pipeline is not None  # a strategy may say of how many samples a part is
    reloads = "batch" in change.options or (is_pipelined and "strategy" in change.options)
    changed = replace(
        study,
        model=study.model if reloads else study.source,
        levels=None,
        watch=Stopwatch(),
        **change.options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is tried, not of what was asked for
        result = _unless_refused(lambda: changed.result)
    if result is None:
        return None
    samples = _times_as_many(changed.program, study.program)
    return _trial(analysis, change.part, change.words, result, samples)


def _times_as_many(program: Program, current: Program) -> int:
    """Return the ratio of a program's samples to the given program's."""
    from tvm_distir.interface.report.collect import batch_of

    samples, before = batch_of(program), batch_of(current)
    return samples // before if samples and before else 1
