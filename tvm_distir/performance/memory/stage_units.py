# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the schedule units of every pipeline stage, and the memory role of each slot."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_distir.performance.fusion.accumulation import added_in_place
from tvm_distir.performance.program.pipeline_program import Edge, PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import ACCUMULATE, NEXT, StageKind
from tvm_distir.performance.program.unit_phases import unit_phases
from tvm_distir.support import memoized

from .account import COMMUNICATION, GRADIENTS, RESULTS, STASHES, WEIGHTS
from .caching_allocator import CachingAllocator
from .stage_actions import StageAction, make_unit

_BEHIND = ("backward", "weight", "accumulate", "accumulate_next")


class Stages:
    """Units of stages; stages of the same kind with the same results share them.

    Parameters
    ----------
    program : Program
    staged : PipelineProgram
    framework : CachingAllocator
    """

    def __init__(
        self, program: Program, staged: PipelineProgram, framework: CachingAllocator
    ) -> None:
        self.program, self.staged, self.framework = program, staged, framework
        self._cache: dict[tuple[int, tuple[bool, ...]], dict[str, StageAction]] = {}
        self.categories: dict[int, dict[int, int]] = {}
        arriving: dict[int, set[int]] = {}
        for edge in staged.all_edges:
            number = staged.stages[edge.target[0]].role
            arriving.setdefault(number, set()).add(edge.target[1])
        for number, stage_kind in enumerate(staged.stage_kinds):
            self.categories[number] = _slot_categories(stage_kind, arriving.get(number, set()))

    @memoized
    def units(self, stage: int) -> dict[str, StageAction]:
        """Return the units of a stage by name, made for the first of its kind."""
        stage_info = self.staged.stages[stage]
        key = stage_info.role, tuple(bool(name) for name in stage_info.results)
        if key not in self._cache:
            stage_kind = self.staged.stage_kinds[stage_info.role]
            added, codes = self.added(stage), self.categories[stage_info.role]
            donated = self._donated(stage) | set(added.values())
            dropped = self._dropped(stage) | set(added)
            self._cache[key] = {
                name: make_unit(
                    name,
                    [phase for phase in map(stage_kind.phase, phases) if phase is not None],
                    self.framework,
                    codes,
                    donated,
                    dropped,
                    self.program.staged is None,
                )
                for name, phases in unit_phases(stage_kind, self.staged.schedule).items()
            }
        return self._cache[key]

    def stage_kind_of(self, stage: int, slot: int) -> int:
        """Return the role of the value that arrives in a slot."""
        return self.categories[self.staged.stages[stage].role].get(slot, COMMUNICATION)

    def _donated(self, stage: int) -> set[int]:
        """Return the slots of results that take the memory of the values that they replace.

        Not where weights are stashed: micro-batches before read the old ones.
        """
        stage_info, stage_kind = self.staged.stages[stage], self.staged.stage_kind_of(stage)
        returned = {
            slot for slot, name in zip(stage_kind.results, stage_info.results, strict=True) if name
        }
        carried = {target for _, target in stage_kind.carried}
        if self.staged.schedule.stash:
            return carried
        return carried | {result for _, result in stage_kind.updated if result in returned}

    def added(self, stage: int) -> dict[int, int]:
        """Return the slot of the sum of each gradient that is added where it is made, by its slot.

        These sums are buffers that are there from the beginning to the end, with zeros before the
        first micro-batch.
        """
        return self._added_of(self.staged.stages[stage].role)

    @memoized
    def _added_of(self, kind: int) -> dict[int, int]:
        """Return :meth:`added` of the stages of a kind."""
        stage_kind = self.staged.stage_kinds[kind]
        added = added_in_place(self.program, stage_kind)
        read = {*stage_kind.results, *(edge.source[1] for edge in self._edges_from(kind))}
        for phase in stage_kind.phases:
            if phase.name not in (ACCUMULATE, NEXT):
                read.update(phase.inputs)
        return {term: total for term, total in added.items() if term not in read}

    def _edges_from(self, kind: int) -> Iterator[Edge]:
        """Yield the edges that leave the stages of a kind."""
        for edge in self.staged.all_edges:
            if self.staged.stages[edge.source[0]].role == kind:
                yield edge

    def _dropped(self, stage: int) -> set[int]:
        """Return the slots of results that the stage does not give, and that nobody reads.

        The other stage of tied weights gives them. Weights that are stashed are read later.
        """
        stage_info, stage_kind = self.staged.stages[stage], self.staged.stage_kind_of(stage)
        if self.staged.schedule.stash:
            return set()
        returned = {
            slot for slot, name in zip(stage_kind.results, stage_info.results, strict=True) if name
        }
        read = {slot for phase in stage_kind.phases for slot in phase.inputs}
        read.update(slot for pair in stage_kind.sums for slot in pair)
        read.update(target for _, target in stage_kind.carried)
        read.update(edge.source[1] for edge in self._edges_from(stage_info.role))
        return set(stage_kind.results) - returned - read


def _slot_categories(stage_kind: StageKind, arriving: set[int]) -> dict[int, int]:
    """Return the roles of slots by who writes and who reads them."""
    read: dict[str, set[int]] = {}
    written_of: dict[str, set[int]] = {}
    for phase in stage_kind.phases:
        name = phase.name.partition(":")[0]
        read.setdefault(name, set()).update(phase.inputs)
        written_of.setdefault(name, set()).update(phase.outputs)
    slot_categories = dict.fromkeys(stage_kind.results, RESULTS)
    slot_categories.update({result: WEIGHTS for _, result in stage_kind.updates})
    slot_categories.update(dict.fromkeys(arriving, COMMUNICATION))
    later = set().union(*(read.get(name, set()) for name in _BEHIND))
    written_slots = arriving.union(*(written_of.get(name, set()) for name in ("rows", "forward")))
    slot_categories.update(dict.fromkeys(written_slots & later, STASHES))
    sums = written_of.get("accumulate", set())
    terms = read.get("accumulate", set()) & set().union(
        *(written_of.get(name, set()) for name in ("backward", "weight"))
    )
    slot_categories.update(dict.fromkeys(sums | terms | written_of.get("part", set()), GRADIENTS))
    for _, total in stage_kind.sums:
        slot_categories[total] = GRADIENTS
    return slot_categories
