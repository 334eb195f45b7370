# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the units of a stage: the buffers they read, produce and free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tvm_distir.core.analysis import last_reads
from tvm_distir.performance.program.stage_kind import Phase

from .account import COMMUNICATION, STASHES, TEMPORARIES, Label, LiveBuffer
from .best_fit import Arenas
from .buffer_lifetimes import FunctionBuffers
from .caching_allocator import CachingAllocator
from .call_variants import DONATED, DROPPED, OWN, CallVariant, MemoryLevel

RESIDENT = -1
"""The value in place of a buffer for memory that is there all the time, or takes the place of such
memory."""
_PLAIN = (COMMUNICATION, TEMPORARIES)


class ActionPhase(NamedTuple):
    """Phase of a unit: the buffers that it reads and produces, and the categories of results.

    ``categories`` are those of buffers of the function, as in
    :class:`.caching_allocator.CallVariant`.
    """

    function: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    given: tuple[int, ...]
    categories: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class StageAction:
    """Unit of work that a stage runs at once.

    Its buffers are, in this order, the inputs, and what its phases make.

    Attributes
    ----------
    name : str
    parts : tuple of ActionPhase
    inputs : tuple of int
        Slots that it reads as others have left them.
    outputs : tuple of int
        Slots that it writes.
    refs : tuple of int
        The buffer of each output, or :data:`RESIDENT`.
    sizes, categories : tuple of int
        The sizes and categories of the buffers; inputs take them from their instances, and have 0
        and ``OWN`` here.
    slots : tuple of int
        The first slot that each buffer is in.
    last : tuple of int
        The part that reads each buffer last, or makes it.
    """

    name: str
    parts: tuple[ActionPhase, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    refs: tuple[int, ...]
    sizes: tuple[int, ...]
    categories: tuple[int, ...]
    slots: tuple[int, ...]
    last: tuple[int, ...]


def make_unit(
    name: str,
    phases: Sequence[Phase],
    framework: CachingAllocator,
    codes: Mapping[int, int],
    donated: Collection[int],
    dropped: Collection[int],
    is_step: bool = False,
) -> StageAction:
    """Read a unit.

    Parameters
    ----------
    name : str
    phases : sequence of Phase
        The phases, in order.
    framework : CachingAllocator
    codes : mapping of int to int
        Roles of slots, where their functions do not say them.
    donated : collection of int
        Slots of results that take the memory of what they replace.
    dropped : collection of int
        Slots that nobody reads, behind no unit.
    is_step : bool
        Whether a phase is a whole step: of training, where results replace parameters; its first
        result is then the loss, and what its forward pass keeps are stashes.
    """
    writes: set[int] = set()
    inputs: dict[int, None] = {}  # a phase may read a slot twice
    for phase in phases:
        inputs.update(dict.fromkeys(s for s in phase.inputs if s not in writes))
        writes.update(phase.outputs)
    at = {slot: number for number, slot in enumerate(inputs)}
    slots, sizes, categories = list(inputs), [0] * len(inputs), [OWN] * len(inputs)
    parts: list[ActionPhase] = []
    for phase in phases:
        lives = framework.lives[phase.function]
        reads = tuple(at[slot] for slot in phase.inputs)
        copies: dict[int, int] = {}
        makes, result_categories = [], []
        for slot, buffer in zip(phase.outputs, lives.results, strict=False):  # others are lent
            makes.append(RESIDENT)
            result_categories.append(OWN)
            if buffer < lives.params:
                at[slot] = reads[buffer] if buffer >= 0 else RESIDENT
            elif slot in donated:
                at[slot], result_categories[-1] = RESIDENT, DONATED
            elif slot in dropped and lives.results.count(buffer) == 1:
                at[slot], result_categories[-1] = RESIDENT, DROPPED
            elif buffer in copies:
                at[slot] = copies[buffer]
            else:
                result_categories[-1] = codes.get(slot, lives.categories[buffer])
                at[slot] = copies[buffer] = makes[-1] = len(sizes)
                slots.append(slot)
                sizes.append(lives.sizes[buffer])
                categories.append(result_categories[-1])
        stashed = _stashed(lives) if is_step and donated else ()
        parts.append(
            ActionPhase(phase.function, reads, tuple(makes), tuple(result_categories), stashed)
        )
    last = last_reads((*part.reads, *part.makes) for part in parts)
    outputs = tuple(dict.fromkeys(slot for phase in phases for slot in phase.outputs))
    return StageAction(
        name, tuple(parts), tuple(inputs), outputs, tuple(at[slot] for slot in outputs),
        tuple(sizes), tuple(categories), tuple(slots), tuple(last[b] for b in range(len(sizes))),
    )  # fmt: skip


def _stashed(lives: FunctionBuffers) -> tuple[tuple[int, int], ...]:
    """Return the categories of buffers that the ops that the loss needs pass to others."""
    needed, forward = {lives.results[0]}, set[int]()
    for number in range(len(lives.steps) - 1, -1, -1):
        step = lives.steps[number]
        if needed.intersection(step.writes):
            needed.update(step.reads)
            forward.add(number)
    stashes: set[int] = set()
    for number, step in enumerate(lives.steps):
        if number not in forward:
            stashes.update(b for b in step.reads if b >= 0 and lives.makers[b] in forward)
    stashes.difference_update(lives.results)
    return tuple((b, STASHES) for b in sorted(stashes) if lives.categories[b] in _PLAIN)


class LastUse(NamedTuple):
    """Buffers of a unit that nobody reads afterwards.

    Attributes
    ----------
    buffers : tuple of int
        The buffers; of several that are the same instance, the first.
    same : tuple of int
        The first buffer that is the same instance, per buffer.
    categories, sizes : tuple of int
        The category and size of each buffer's instance, which its maker decides.
    """

    buffers: tuple[int, ...]
    same: tuple[int, ...]
    categories: tuple[int, ...]
    sizes: tuple[int, ...]


class UnitLevels:
    """Memory levels of units.

    Parameters
    ----------
    framework : CachingAllocator
    arenas : Arenas, optional
        The arenas of best-fit placement; without them, it is assumed to need no additional bytes.
    """

    def __init__(self, framework: CachingAllocator, arenas: Arenas | None) -> None:
        self.framework, self.arenas = framework, arenas
        self._cache: dict[tuple[int, LastUse], tuple[MemoryLevel, int]] = {}
        self._units: list[StageAction] = []

    def level(self, unit: StageAction, death: LastUse) -> tuple[MemoryLevel, int]:
        """Return the level of a unit, and the bytes that best-fit placement needs for it."""
        key = (id(unit), death)
        if key not in self._cache:
            self._units.append(unit)  # no other takes its identity
            level, top = self.framework.new(), 0
            for number, use, rest in self.uses(unit, death):
                if self.arenas is not None:
                    top = max(top, level.live + self.arenas.total(use))
                level.over(self.framework.level(use), number)
                level.free(rest, death.categories, death.sizes)
            self._cache[key] = level, top
        return self._cache[key]

    def held(
        self, unit: StageAction, death: LastUse, labels: Mapping[int, Label], word: str
    ) -> Iterator[LiveBuffer]:
        """Yield the buffers of a unit at its peak that it makes, and those that die in it."""
        at = self.level(unit, death)[0].at
        first = len(unit.inputs)
        newest = -1
        named, lasts = dict(labels), _lasts(unit, death)
        for number, use, _ in self.uses(unit, death):
            if number > max(at, 0):
                break
            part = unit.parts[number]
            lives = self.framework.lives[part.function]
            for buffer, source in zip(part.makes, lives.results, strict=False):
                if buffer >= 0:
                    label = self.framework.label(lives, source)
                    named[buffer] = label._replace(unit=word)
            if number < at:
                newest = max([newest, *part.makes])
                continue
            inside = {
                param: named[part.reads[param]]
                for param, _, _ in use.owned
                if part.reads[param] in named
            }
            for live_buffer in self.framework.held(use, inside):
                label = live_buffer.label
                yield (
                    live_buffer
                    if label.unit
                    else live_buffer._replace(label=label._replace(unit=word))
                )
            handed = {death.same[part.reads[param]] for param, _, _ in use.owned}
            for buffer, size in enumerate(death.sizes):
                dead = buffer in death.buffers
                alive = dead if buffer < first else buffer <= newest
                over = dead and lasts[buffer] < at
                if alive and not over and buffer not in handed and size:
                    yield LiveBuffer(named[buffer], death.categories[buffer], size)

    def moment(self, unit: StageAction, death: LastUse) -> str:
        """Return where the peak of a unit is."""
        at = max(self.level(unit, death)[0].at, 0)
        use = next(use for number, use, _ in self.uses(unit, death) if number == at)
        return self.framework.moment(use)

    def uses(
        self, unit: StageAction, death: LastUse
    ) -> Iterator[tuple[int, CallVariant, list[int]]]:
        """Yield the number of each part, its variant, and the buffers that are freed after it."""
        dying: dict[int, list[int]] = {}
        lasts = _lasts(unit, death)
        for buffer in death.buffers:
            dying.setdefault(lasts[buffer], []).append(buffer)
        for number, part in enumerate(unit.parts):
            lives = self.framework.lives[part.function]
            reads = [death.same[b] if b >= 0 else b for b in part.reads]
            dead, owned = dying.get(number, []), []
            here, times, escaping = set(dead), Counter(reads), set(lives.results)
            for param, buffer in enumerate(reads):
                if buffer in here and times[buffer] == 1 and param not in escaping:
                    owned.append((param, death.categories[buffer], death.sizes[buffer]))
            freed = {reads[param] for param, _, _ in owned}
            use = CallVariant(part.function, tuple(owned), part.given, part.categories)
            yield number, use, [buffer for buffer in dead if buffer not in freed]


def _lasts(unit: StageAction, death: LastUse) -> dict[int, int]:
    """Return, per buffer (first of its instance), the part that reads it last."""
    lasts: dict[int, int] = {}
    for slot, last in zip(death.same, unit.last, strict=True):
        lasts[slot] = max(last, lasts.get(slot, last))
    return lasts
