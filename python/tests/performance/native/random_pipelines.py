# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random pipelines of random functions: as units on ranks, and as a flat task graph."""

from __future__ import annotations

import random

import numpy as np

from tests.performance.native.random_maps import STREAMS, Flat, random_function, random_functions
from tvm_distir.core.plan.schedules.pipeline_actions import BACKWARD, FORWARD, WEIGHT
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.performance.event_loop.function_summaries import FREE, IS_FREE, SETTLED
from tvm_distir.performance.event_loop.rank_programs import (
    COPY,
    RECV,
    RUN,
    SEND,
    SEND_STREAM,
    RankPrograms,
)

X, Y, KEPT, GRAD, DX, LEFT, SLOTS = range(7)
SHAPES = {FORWARD: ([X], [Y, KEPT]), BACKWARD: ([KEPT, GRAD], [DX, LEFT]), WEIGHT: ([LEFT], [])}
"""Slots that a phase reads, and writes."""


def random_schedule(rng: random.Random) -> Schedule:
    """Any kind, up to 6 ranks and 12 micro-batches."""
    kind = rng.choice(["gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"])
    ranks, chunks = rng.randint(2, 6), rng.randint(2, 3)
    if kind == "interleaved":
        return Schedule(kind, ranks, ranks * rng.randint(1, 3), chunks)
    return Schedule(kind, ranks, rng.randint(1, 12))


class Pipeline:
    """Stages with functions of their own, and messages between neighbours that take a time."""

    def __init__(self, rng: random.Random, host: bool) -> None:
        self.schedule = random_schedule(rng)
        self.functions = random_functions(rng, rng.randint(1, 2), host, 6)
        self.stages = self.schedule.stage_count
        self.phase = {
            (phase, stage): random_function(
                rng, self.functions, len(reads), len(writes), host, rng.randint(3, 12)
            )
            for phase, (reads, writes) in SHAPES.items()
            for stage in range(self.stages)
        }
        self.link = [[rng.randint(0, 60) for _ in range(2)] for _ in range(self.stages)]

    def peer(self, phase, stage):
        """The stage that reads what a phase makes, or none."""
        other = stage + {FORWARD: 1, BACKWARD: -1, WEIGHT: self.stages}[phase]
        return other if 0 <= other < self.stages else None

    def classes(self, maps, stage):
        """How late each slot may be: what goes from stage to stage may come whenever."""
        matches = {X: FREE, GRAD: FREE}
        for phase, (reads, writes) in SHAPES.items():
            maps.open(self.phase[phase, stage], [matches[slot] for slot in reads])
            for slot, origin in zip(
                writes, maps.result_sources(self.phase[phase, stage]), strict=True
            ):
                whence = matches[reads[origin]] if origin >= 0 else SETTLED
                matches[slot] = FREE if origin == IS_FREE else whence
        return matches

    def units(self, maps) -> RankPrograms:
        """The arrays; each stage has a template per phase."""
        micros = self.schedule.micro_batches + 1
        kinds, places, steps, begin, edges, number = [], [], [], [0], [], {}
        rank_of = self.schedule.rank_of
        for stage in range(self.stages):
            self.classes(maps, stage)
            base = stage * SLOTS * micros
            for phase, (reads, writes) in SHAPES.items():
                before = self.peer({FORWARD: BACKWARD, BACKWARD: FORWARD}.get(phase, phase), stage)
                if before is not None and rank_of[before] != rank_of[stage]:
                    edge = 2 * before + (phase == BACKWARD)
                    slot = X if phase == FORWARD else GRAD
                    steps.append([RECV, edge, base + slot * micros, 1, 0])
                steps.append([RUN, len(kinds), base, 0, 0])
                after = self.peer(phase, stage)
                if after is not None:
                    value = base + (Y if phase == FORWARD else DX) * micros
                    slot = X if phase == FORWARD else GRAD
                    to = after * SLOTS * micros + slot * micros
                    same = rank_of[after] == rank_of[stage]
                    edge = 2 * stage + (phase == BACKWARD)
                    sent = [SEND, edge, value, 1, SEND_STREAM]
                    steps.append([COPY, value, 1, to, 1] if same else sent)
                kinds.append(self.phase[phase, stage])
                places += [(slot * micros, 1) for slot in (*reads, *writes)]
                number[phase, stage] = len(begin) - 1
                begin.append(len(steps))
            for side, phase in enumerate((FORWARD, BACKWARD)):
                after = self.peer(phase, stage)
                edges.append([0 if after is None else rank_of[after], self.link[stage][side]])
        programs = [
            [(number[unit.phase, self.stage(rank, unit)], unit.micro) for unit in units]
            for rank, units in enumerate(self.schedule.orders)
        ]
        ints = lambda single: np.array(single, np.int64)  # noqa: E731
        return RankPrograms(
            ints(kinds), ints(places).ravel(), ints(steps), ints(begin),
            np.cumsum([0, *map(len, programs)]), ints([row for local in programs for row in local]),
            ints(edges), self.stages * SLOTS * micros, micros,
        )  # fmt: skip

    def stage(self, rank, unit):
        """Stage of a unit of a rank."""
        local = [stage for stage, single in enumerate(self.schedule.rank_of) if single == rank]
        return local[unit.chunk]

    def flat(self) -> tuple[Flat, list[list[int]]]:
        """The task graph, and per rank and unit in order the tasks of its ops."""
        flat, value, later = Flat(), {}, []
        matches = []
        for rank, units in enumerate(self.schedule.orders):
            for unit in units:
                stage, micro = self.stage(rank, unit), unit.micro
                reads, writes = SHAPES[unit.phase]
                args = []
                for slot in reads:
                    if (stage, slot, micro) not in value:  # made later: an empty task stands for it
                        gate = flat.task(0, -1, [])
                        later.append((gate, (stage, slot, micro)))
                        value[stage, slot, micro] = gate
                    args.append(value[stage, slot, micro])
                first = len(flat.ops)
                function = self.phase[unit.phase, stage]
                created = flat.call(self.functions, function, args, rank)
                matches.append(flat.ops[first:])
                value |= {(stage, slot, micro): single for slot, single in zip(writes, created)}
                after = self.peer(unit.phase, stage)
                if after is None:
                    continue
                sent = created[0]
                if self.schedule.rank_of[after] != rank:
                    side = int(unit.phase == BACKWARD)
                    sent = flat.task(self.link[stage][side], STREAMS * rank + 3, [sent])
                target = (after, X if unit.phase == FORWARD else GRAD, micro)
                value["sent", target] = sent
                value.setdefault(target, sent)
        for gate, target in later:
            if value.get(("sent", target), -1) >= 0:
                flat.waits.append((gate, value["sent", target]))
        return flat, matches


def starts_of(maps, units: RankPrograms) -> list:
    """Starts of the ops of each run, ranks in turn."""
    ran = maps.run(units)
    _, steps, _ = units.runs()
    result, at = [], 0
    for kind in units.steps[steps, 1].tolist():
        function = int(units.kind_function[kind])
        ports = 3 + len(maps.ports(function))
        result.append(maps.expand(function, ran.times[None, at : at + ports])[0].tolist())
        at += ports
    return result
