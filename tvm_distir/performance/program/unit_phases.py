# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decide the phases of each unit of a stage, and the slots that exist once."""

from __future__ import annotations

from tvm_distir.core.plan import BACKWARD, FORWARD, WEIGHT, Schedule

from .stage_kind import BEGIN, COUNT, COUNT_NEXT, END, GATHER, REDUCE, StageKind

UPDATE = "update"
"""Unit behind each micro-batch, where the schedule stashes weights."""


_WORDS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight"}


def unit_word(name: str) -> str:
    """Return the word for a unit: ``forward`` for ``F+``, ``part`` for ``part:0``."""
    return _WORDS.get(name.rstrip("+"), name.partition(":")[0])


def unit_phases(stage_kind: StageKind, schedule: Schedule) -> dict[str, list[str]]:
    """Return the phases of each unit of a stage kind.

    The sums over the whole batch that a loss needs are computed in front of all micro-batches, one
    after the other. The first micro-batch of a stage begins its sums: ``B``, or ``W`` where
    gradients of weights are separate units; the others go on with them: ``B+``, ``W+``. Where a
    distributed optimizer overlaps, the first forward unit ``F`` differs from the others, ``F+``, as
    it gathers weights, and the last backward unit, ``B++`` or ``W++``, reduces gradients. Where the
    schedule stashes weights, each micro-batch begins with those that are there, and ends with a
    separate update.
    """
    splits = schedule.splits_backward
    begin: list[str] = []
    for number in range(stage_kind.counts):
        begin.append(f"{COUNT}:{number}")
        begin.extend([f"{COUNT_NEXT}:{number}"] * (schedule.micro_batches - 1))
    names = {BEGIN: [*begin, BEGIN], FORWARD: ["rows", "forward"], END: [END]}
    if stage_kind.phase(GATHER) is not None:
        names[f"{FORWARD}+"] = names[FORWARD]
        names[FORWARD] = [GATHER, *names[FORWARD]]
    last = WEIGHT if splits else BACKWARD
    if splits:
        names[BACKWARD] = names[f"{BACKWARD}+"] = ["backward"]
    for name, sums in ((last, "accumulate"), (f"{last}+", "accumulate_next")):
        names[name] = ["weight", sums] if splits else ["backward", "weight", sums]
    if stage_kind.phase(REDUCE) is not None:
        before = last if schedule.micro_batches == 1 else f"{last}+"
        names[before if before == last else f"{last}++"] = [*names[before], REDUCE]
    for number in range(len(stage_kind.sums)):
        for name in ("part", "add"):
            names[f"{name}:{number}"] = [f"{name}:{number}"]
    if schedule.stash:
        names[FORWARD] = ["rows", "begin", "forward"]
        names[UPDATE] = ["begin", *names.pop(END)]
    phase_names = {phase.name for phase in stage_kind.phases}
    return {
        name: present
        for name, phases in names.items()
        if (present := [p for p in phases if p in phase_names])
    }


def once_slots(stage_kind: StageKind, schedule: Schedule, unit: str) -> set[int]:
    """Return the slots that are there once, not per micro-batch, as a unit sees them.

    Where the schedule stashes weights, a micro-batch has separate weights, and so has all that is
    computed from them; its sums, and the values that it passes to the next micro-batch, exist once.
    """
    if schedule.stash and unit.rstrip("+") in (FORWARD, BACKWARD, WEIGHT):
        sums = [p.outputs for p in stage_kind.phases if p.name == "accumulate"]
        handed = {target for _, target in stage_kind.carried}
        return handed if unit == FORWARD else handed.union(*sums)
    slots = {*stage_kind.params, *stage_kind.results, *(total for _, total in stage_kind.sums)}
    for phase in stage_kind.phases:
        if phase.name not in ("rows", "forward", "backward", "weight"):
            slots.update(phase.outputs)
    return slots
