# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the units and messages of a pipeline rank in order, with their tensors.

An *instance* is a tensor that units pass to each other; number 0 represents all tensors that exist
from the beginning to the end.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.core.plan import BACKWARD, FETCH, FORWARD, RUN, SEND, STORE, WEIGHT, RankStep
from tvm_distir.performance.program.pipeline_program import Edge, PipelineProgram
from tvm_distir.performance.program.stage_kind import BEGIN, END
from tvm_distir.performance.program.unit_phases import UPDATE, once_slots

from .stage_actions import StageAction
from .stage_units import Stages

Ints = npt.NDArray[np.int64]

ALWAYS = 0
FOREVER = 1 << 62
"""The value in place of the event that reads an instance last."""


@dataclass(frozen=True)
class RankEvent:
    """Event on a rank.

    Attributes
    ----------
    name : str
        The name of the unit; ``send`` or ``recv`` for a message; ``store`` or ``fetch`` for a
        stash, which is copied to the host's memory, or back.
    stage, micro : int
        The micro-batch is -1 of what is done once.
    unit : StageAction, optional
    ids : int64 array
        Instances of the unit's buffers, or of what the message carries, or the stash.
    """

    name: str
    stage: int
    micro: int
    unit: StageAction | None
    ids: Ints


@dataclass(frozen=True)
class _Ports:
    """A unit's slots, and which of them are there once, as arrays."""

    inputs: Ints
    input_once: npt.NDArray[np.bool_]
    outputs: Ints
    output_once: npt.NDArray[np.bool_]
    refs: Ints


class RankEvents:
    """The events of a rank, without their times.

    Parameters
    ----------
    staged : PipelineProgram
    stages : Stages
    rank : int
    steps : sequence of RankStep
        The steps of the rank, in order.

    Attributes
    ----------
    events : list of RankEvent
    before : list of int
        The number of events before each step.
    makers : list of (int, int)
        The number of each event that makes instances, and the buffer, or slot, that is the first of
        them.
    first : list of int
        The first instance of each maker.
    sizes, categories : lists of int
        The size and category of each instance.
    last : int64 array
        The event that reads each instance last.
    """

    def __init__(
        self, staged: PipelineProgram, stages: Stages, rank: int, steps: Sequence[RankStep]
    ) -> None:
        self.staged, self.stages, self.rank = staged, stages, rank
        self.rank_of = staged.schedule.rank_of
        self.rank_stages = [k for k, owner in enumerate(self.rank_of) if owner == rank]
        self.events: list[RankEvent] = []
        self.before: list[int] = []
        self.makers: list[tuple[int, int]] = [(-1, -1)]
        self.first: list[int] = [ALWAYS]
        self.sizes, self.categories = [0], [0]
        self.last: Ints = np.full(1024, -1, np.int64)
        self._leaving: dict[tuple[int, str], list[Edge]] = {}
        self._arriving: dict[tuple[int, str], list[Edge]] = {}
        for edge in staged.edges:
            self._leaving.setdefault((edge.source[0], edge.direction), []).append(edge)
            self._arriving.setdefault((edge.target[0], edge.direction), []).append(edge)
        self._ports: dict[tuple[int, str], _Ports] = {}
        self._begun: set[tuple[int, str]] = set()
        runs = [step for step in steps if step.kind == RUN]
        self._ends = {(step.stage, step.unit.phase): step.unit.micro for step in runs}
        self._micros: dict[tuple[int, int], Ints] = {}
        self._once = {
            stage: np.full(len(staged.stage_kind_of(stage).slots), ALWAYS, np.int64)
            for stage in self.rank_stages
        }
        splits = staged.schedule.splits_backward
        self._last_phase = WEIGHT if splits else BACKWARD
        self._read(steps)

    def _read(self, steps: Sequence[RankStep]) -> None:
        for stage in self.rank_stages:
            self._unit(stage, BEGIN, -1)
        for step in steps:
            self.before.append(len(self.events))
            if step.kind == RUN:
                self._run(step.stage, step.unit.phase, step.unit.micro)
                continue
            if step.kind in (STORE, FETCH):
                self._move_stash(step.kind, step.stage, step.unit.micro)
                continue
            key = step.stage, "forward" if step.unit.phase == FORWARD else "backward"
            if step.kind == SEND:
                for edge in self._leaving.get(key, ()):
                    self._send(edge, step.unit.micro)
            else:
                for edge in self._arriving.get(key, ()):
                    self._receive(edge, step.unit.micro)
        for number in range(len(self.staged.sums)):
            self._sum(number)
        for stage in self.rank_stages:
            self._unit(stage, END, -1)
        for stage in self.rank_stages:
            stage_kind, names = self.staged.stage_kind_of(stage), self.staged.stages[stage].results
            resident = [slot for slot, name in zip(stage_kind.results, names, strict=True) if name]
            self.last[self._once[stage][resident]] = FOREVER
        self.last[ALWAYS] = FOREVER
        self.last = self.last[: len(self.sizes)]

    def _run(self, stage: int, phase: str, micro: int) -> None:
        """Run a unit of the schedule, and pass on the values that stay on the rank."""
        stage_kind, stash = self.staged.stage_kind_of(stage), self.staged.schedule.stash
        name = phase
        if (stage, phase) in self._begun:
            ends = self._ends[stage, phase] == micro
            suffixes = ("++", "+") if ends else ("+",)
            names = (f"{phase}{suffix}" for suffix in suffixes)
            name = next((n for n in names if n in self.stages.units(stage)), phase)
        self._begun.add((stage, phase))
        once = self._once[stage]
        if phase == FORWARD and stash:
            params = list(stage_kind.params)
            self._slots(stage, micro)[params] = once[params]
        self._unit(stage, name, micro)
        if phase == FORWARD:
            for read, output in stage_kind.carried:
                once[read] = once[output]
        if phase == self._last_phase and stash:
            self._unit(stage, UPDATE, -1)
            for param, result in stage_kind.updated:
                once[param] = once[result]
        direction = {FORWARD: "forward", BACKWARD: "backward"}.get(phase, "")
        for edge in self._leaving.get((stage, direction), ()):
            if edge.target[0] in self._once:
                self._hand_over(edge, micro)

    def _slots(self, stage: int, micro: int) -> Ints:
        """Return the instances in the slots of a micro-batch, or in the slots that exist once."""
        if micro < 0:
            return self._once[stage]
        if (stage, micro) not in self._micros:
            self._micros[stage, micro] = np.full_like(self._once[stage], ALWAYS)
        return self._micros[stage, micro]

    def _ports_of(self, stage: int, unit: StageAction) -> _Ports:
        key = self.staged.stages[stage].role, unit.name
        if key not in self._ports:
            once = once_slots(self.staged.stage_kind_of(stage), self.staged.schedule, unit.name)
            self._ports[key] = _Ports(
                np.array(unit.inputs, np.int64),
                np.array([slot in once for slot in unit.inputs], bool),
                np.array(unit.outputs, np.int64),
                np.array([slot in once for slot in unit.outputs], bool),
                np.array(unit.refs, np.int64),
            )
        return self._ports[key]

    def _unit(self, stage: int, name: str, micro: int) -> None:
        unit = self.stages.units(stage).get(name)
        if unit is None:
            return
        ports = self._ports_of(stage, unit)
        once, micro_slots = self._once[stage], self._slots(stage, micro)
        inputs = np.where(ports.input_once, once[ports.inputs], micro_slots[ports.inputs])
        count = len(unit.inputs)
        first = len(self.sizes)
        self._make(count)
        self.sizes += unit.sizes[count:]
        self.categories += unit.categories[count:]
        ids = np.concatenate((inputs, np.arange(first, len(self.sizes))))
        self._touch(ids)
        out = np.full(ports.refs.size, ALWAYS, np.int64)
        present = ports.refs >= 0
        out[present] = ids[ports.refs[present]]
        once[ports.outputs[ports.output_once]] = out[ports.output_once]
        micro_slots[ports.outputs[~ports.output_once]] = out[~ports.output_once]
        self.events.append(RankEvent(name, stage, micro, unit, ids))

    def _make(self, buffer: int) -> None:
        """Note that the next event makes instances, from a buffer or slot on."""
        self.makers.append((len(self.events), buffer))
        self.first.append(len(self.sizes))

    def maker(self, instance: int) -> tuple[int, int]:
        """Return the event that produced an instance, and its buffer or slot in the unit."""
        position = bisect.bisect_right(self.first, instance) - 1
        number, buffer = self.makers[position]
        return number, buffer + instance - self.first[position]

    def _touch(self, ids: Ints) -> None:
        """Note that the next event reads instances."""
        while len(self.sizes) > self.last.size:
            self.last = np.concatenate((self.last, np.full_like(self.last, -1)))
        self.last[ids] = len(self.events)

    def _hand_over(self, edge: Edge, micro: int) -> None:
        value = self._slots(edge.source[0], micro)[edge.source[1]]
        self._slots(edge.target[0], micro)[edge.target[1]] = value

    def _send(self, edge: Edge, micro: int) -> None:
        ids = self._slots(edge.source[0], micro)[[edge.source[1]]]
        self._touch(ids)
        self.events.append(RankEvent("send", edge.source[0], micro, None, ids))

    def _receive(self, edge: Edge, micro: int) -> None:
        stage, slot = edge.target
        size = self.staged.stage_kind_of(stage).slots[slot].bytes
        ids = np.array([len(self.sizes)], np.int64)
        self._make(slot)
        self.sizes.append(self.stages.framework.lives.rounded(size))
        self.categories.append(self.stages.stage_kind_of(stage, slot))
        self._touch(ids)
        self._slots(stage, micro)[slot] = ids[0]
        self.events.append(RankEvent("recv", stage, micro, None, ids))

    def _move_stash(self, kind: str, stage: int, micro: int) -> None:
        """Record the last read of a stash before it returns as other instances."""
        slots = self._slots(stage, micro)
        stashed = [slot for slot in self.staged.stage_kind_of(stage).stash if slots[slot] != ALWAYS]
        if kind == FETCH:
            for slot, buffer in zip(stashed, slots[stashed].tolist(), strict=True):
                slots[slot] = len(self.sizes)
                self._make(slot)
                self.sizes.append(self.sizes[buffer])
                self.categories.append(self.categories[buffer])
        ids = np.unique(slots[stashed])
        self._touch(ids)
        self.events.append(RankEvent(kind, stage, micro, None, ids))

    def _sum(self, number: int) -> None:
        """Add a sum over stages up, as far as the stages of this rank take part."""

        def run(stage: int, name: str) -> None:
            if stage in self._once:
                self._unit(stage, name, -1)

        def copy(source: tuple[int, int], target: tuple[int, int]) -> None:
            if target[0] in self._once:
                self._once[target[0]][target[1]] = self._once[source[0]][source[1]]

        self.staged.add_up(number, run, copy, self._move)

    def _move(self, edge: Edge) -> None:
        source, target = (end[0] in self._once for end in (edge.source, edge.target))
        if source and target:
            self._hand_over(edge, -1)
        elif source:
            self._send(edge, -1)
        elif target:
            self._receive(edge, -1)
