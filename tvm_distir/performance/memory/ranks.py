# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of the devices of a rank of a pipelined step, or of an entry.

An entry is a stage that runs once (:attr:`.program.Program.as_stages`).
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.core.analysis import live_bytes
from tvm_distir.core.plan import FETCH, RECV, RankStep, Schedule, absences, programs
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.unit_phases import unit_word
from tvm_distir.support import memoized

from .account import (
    GRADIENTS,
    Label,
    LiveBuffer,
    MemoryAccount,
    by_category,
    category_sums,
    holders,
)
from .best_fit import Arenas
from .caching_allocator import CachingAllocator
from .call_variants import CallVariant, MemoryLevel
from .last_uses import deaths_of
from .memory_timeline import LiveBytes
from .rank_events import ALWAYS, RankEvent, RankEvents
from .residents import resident_buffers
from .stage_actions import LastUse, UnitLevels
from .stage_units import Stages
from .steady_state import SteadyState, cut, steady

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankMemory:
    """Memory of the devices of a rank.

    Attributes
    ----------
    peak_bytes : int
        The most live bytes, those of the account.
    accounted : callable giving MemoryAccount
        A function that names what is live at the peak when it is first asked for.
    events : list of RankEvent
        The events of the rank, in order; the events of steady periods are repetitions.
    during, after : int64 arrays (events,)
        Live bytes: the most while each runs, and behind it.
    resident_bytes : int
        There from beginning to end, in whole blocks.
    """

    peak_bytes: int
    accounted: Callable[[], MemoryAccount]
    events: list[RankEvent]
    during: Ints
    after: Ints
    resident_bytes: int

    @functools.cached_property
    def account(self) -> MemoryAccount:
        """Return the account of the memory at the peak."""
        return self.accounted()


class RankMemories:
    """Memory of the ranks of a pipelined step, or of entries, as a framework would run it.

    Parameters
    ----------
    program : Program
    framework : CachingAllocator
    staged : PipelineProgram, optional
        The stages and schedule, where they are not those of the program.
    positions : bool
        Whether blocks are placed, to measure fragmentation.
    """

    def __init__(
        self,
        program: Program,
        framework: CachingAllocator,
        staged: PipelineProgram | None = None,
        positions: bool = True,
    ) -> None:
        self.program, self.framework = program, framework
        self.staged = staged or program.as_stages
        self.stages = Stages(program, self.staged, framework)
        self.levels = UnitLevels(framework, Arenas(framework) if positions else None)
        self._messages: dict[tuple[bool, LastUse], MemoryLevel] = {}
        self._labels: dict[tuple[str, int, int], Label] = {}  # by event's name, stage and buffer

    @functools.cached_property
    def steps(self) -> list[list[RankStep]]:
        """Return the steps of each rank."""
        return programs(self.staged.schedule)

    @memoized
    def of(self, rank: int) -> RankMemory:
        """Measure a rank."""
        measured = (self._measured(*walk) for walk in self.walks(rank, self.steps[rank]))
        return next(memory for memory in measured if memory is not None)

    def walks(
        self, rank: int, steps: Sequence[RankStep], schedule: Schedule | None = None
    ) -> Iterator[tuple[RankEvents, SteadyState | None]]:
        """Yield the events of a rank without periods that seem to repeat, if any; then all events.

        Parameters
        ----------
        rank : int
        steps : sequence of RankStep
        schedule : Schedule, optional
            The schedule of these steps, where it is not that of the stages.
        """
        shorter = cut(steps, schedule or self.staged.schedule)
        if shorter is not None:
            yield RankEvents(self.staged, self.stages, rank, shorter.steps), shorter
        yield RankEvents(self.staged, self.stages, rank, steps), None

    def _measured(self, walk: RankEvents, shorter: SteadyState | None) -> RankMemory | None:
        """Measure a rank from the events of a walk in which periods repeat.

        None where the periods that were left out are not like those around them.
        """
        every_event = np.arange(len(walk.events))
        which = shorter.repeated(walk.before, every_event) if shorter else every_event
        resident = self.resident(walk)
        base = sum(buffer.bytes for buffer in resident)
        deaths = deaths_of(walk)
        levels = [self.level(walk, number, death) for number, death in enumerate(deaths)]
        kinds: dict[int, int] = {}
        table = [(kinds.setdefault(id(level), len(kinds)), level, top) for level, top in levels]
        order = np.array([kind for kind, _, _ in table], np.int64)
        known = {kind: (level, top) for kind, level, top in table}
        rows = [known[kind] for kind in range(len(kinds))]
        numbers = [(level.live, level.peak, n, *level.categories, *level.most) for level, n in rows]
        facts = np.array(numbers, np.int64)[order]
        if shorter is not None and not steady(walk.before, shorter, facts, facts[:, :1]):
            return None
        facts = facts[which]
        live, peak, top = facts[:, :3].T
        after = base + np.cumsum(live)
        before = after - live
        during = before + peak
        at = int(np.argmax(during))
        most = int(during[at])

        @gc_paused()
        def account() -> MemoryAccount:
            position = int(which[at])
            buffers = [*resident, *self._held(walk, deaths, position)]
            categories, mosts = np.hsplit(facts[:, 3:], 2)
            above = (np.cumsum(categories, axis=0) - categories + mosts).max(axis=0).tolist()
            later = shorter.later(walk.before, at) if shorter else 0
            return MemoryAccount(
                "framework",
                most,
                max(0, int((before + top).max()) - most),
                self._moment(walk, deaths, position, later),
                by_category(category_sums(buffers)),
                by_category(map(sum, zip(category_sums(resident), above, strict=True))),
                holders(buffers),
                self._host_bytes(walk),
            )

        events = [walk.events[k] for k in which.tolist()]
        return RankMemory(most, account, events, during, after, base)

    def by_op(self, memory: RankMemory, branches: Mapping[str, str]) -> tuple[Ints, int]:
        """Return the live bytes of an entry while each op runs, and those behind the last.

        Parameters
        ----------
        memory : RankMemory
        branches : mapping of str to str
            The function that runs for each branch, ``function/binding``.
        """
        ((part,),) = (event.unit.parts for event in memory.events if event.unit is not None)
        use = CallVariant(part.function, (), part.given, part.categories)
        during, after = LiveBytes(self.framework, branches).of(use)
        return during + memory.resident_bytes, after + memory.resident_bytes

    def _host_bytes(self, walk: RankEvents) -> int:
        """Return the peak of host memory per device, including stashes in flight."""
        schedule = self.staged.schedule
        sizes = {
            (event.stage, event.micro): sum(walk.sizes[i] for i in event.ids.tolist())
            for event in walk.events
            if event.name == FETCH
        }
        away = absences(schedule, walk.rank)
        rows = [(a.stored, a.fetched, sizes[a.stage, a.micro]) for a in away]
        stored, fetched, size = np.array(rows, np.int64).reshape(-1, 3).T
        live = live_bytes(stored, fetched, size, len(schedule.orders[walk.rank]))
        inputs = (value for _, _, value in self.program.as_stages.inputs(walk.rank))
        return int(live.max(initial=0)) + sum(v.bytes for v in inputs if v.is_on_host)

    def resident(self, walk: RankEvents) -> list[LiveBuffer]:
        """Return inputs of the step, constants of the rank's functions, and buffers of sums."""
        sums = (buffer for stage in walk.rank_stages for buffer in self._sums(stage))
        return [*resident_buffers(self.program, walk.rank, self.framework), *sums]

    def _sums(self, stage: int) -> Iterator[LiveBuffer]:
        """Yield the buffers of sums that backward passes add to."""
        stage_kind = self.staged.stage_kind_of(stage)
        for slot in self.stages.added(stage).values():
            size = self.framework.lives.rounded(stage_kind.slots[slot].bytes)
            yield LiveBuffer(
                Label(self.framework.names.slot(stage_kind, slot), "", ""), GRADIENTS, size
            )

    def level(self, walk: RankEvents, number: int, death: LastUse) -> tuple[MemoryLevel, int]:
        """Return the level of an event, which equal events share, and the bytes of best fit."""
        event = walk.events[number]
        if event.unit is not None:
            return self.levels.level(event.unit, death)
        key = event.name in (RECV, FETCH), death
        if key not in self._messages:
            level = self._messages[key] = self.framework.new()
            if key[0]:
                for category, size in zip(death.categories, death.sizes, strict=True):
                    level.add(category, size)
                level.reach(0)
            level.free(death.buffers, death.categories, death.sizes)
        return self._messages[key], self._messages[key].peak

    def _held(self, walk: RankEvents, deaths: Sequence[LastUse], at: int) -> Iterator[LiveBuffer]:
        """Yield the buffers that are live at the peak, besides resident ones."""
        event, death = walk.events[at], deaths[at]
        inside = set[int]()
        if event.unit is not None:
            count = len(event.unit.inputs)
            inside.update(event.ids[[b for b in death.buffers if b < count]].tolist())
            labels = {b: self._label(walk, int(event.ids[b])) for b in death.buffers if b < count}
            yield from self.levels.held(event.unit, death, labels, self._word(event))
        early = at if event.unit is None else at - 1
        events = [number for number, _ in walk.makers]
        makers = bisect.bisect_right(events, early)
        end = walk.first[makers] if makers < len(events) else len(walk.sizes)
        for instance in np.flatnonzero(walk.last[:end] >= at).tolist():
            if instance == ALWAYS or instance in inside or not walk.sizes[instance]:
                continue
            label = self._label(walk, instance)
            yield LiveBuffer(label, walk.categories[instance], walk.sizes[instance])

    def _label(self, walk: RankEvents, instance: int) -> Label:
        number, buffer = walk.maker(instance)
        event = walk.events[number]
        key = event.name, event.stage, buffer
        if key not in self._labels:
            self._labels[key] = self._named(event, buffer)
        return self._labels[key]

    def _named(self, event: RankEvent, buffer: int) -> Label:
        """Return the name of a buffer of an event, or of a value that it passes in a slot."""
        stage_kind = self.staged.stage_kind_of(event.stage)
        names = self.framework.names
        if event.unit is None:
            return Label(
                names.slot(stage_kind, buffer), event.name, stage_kind.name, self._word(event)
            )
        slot = event.unit.slots[buffer]
        part = next(part for part in event.unit.parts if buffer in part.makes)
        return Label(names.slot(stage_kind, slot), "", part.function, self._word(event))

    def _word(self, event: RankEvent) -> str:
        """Return the name of a unit, with its stage where the rank has several; "" of an entry."""
        if self.program.staged is None:
            return ""
        word = unit_word(event.name)
        many = self.staged.schedule.rank_of.count(self.staged.schedule.rank_of[event.stage]) > 1
        return f"{word} of stage {event.stage}" if many else word

    def _moment(self, walk: RankEvents, deaths: Sequence[LastUse], at: int, later: int) -> str:
        event = walk.events[at]
        word = self._word(event)
        if event.micro >= 0:
            word += f" {event.micro + later}"
        if event.unit is None:
            return word
        moment = self.levels.moment(event.unit, deaths[at])
        return f"{word}: {moment}" if word else moment
