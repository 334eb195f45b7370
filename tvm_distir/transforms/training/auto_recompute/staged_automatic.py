# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimize the time of each stage kind within a memory bound (``recompute="auto"``).

The step is written once without recomputation. Stages of a kind share their functions, so that
the choice for a kind must fit the tightest of its stages. For each, :mod:`.stage_memory` gives the
needs of a micro-batch, and :func:`~.resident_values.holdings` the number of others that its rank
holds at the same time, in the order in which it runs them. Where kinds share ranks, the stashes
of all of them are assumed to be as large as the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.core.plan import NONE, Recomputation, Runs, Schedule, holdings
from tvm_distir.transforms.training.pipeline.pipeline_step import WrittenPipeline
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.step.recipe import Recipe

from .automatic import bound_of, too_little
from .chain import CallOption, PartialChoice, all_ways
from .stage_memory import StageMemory, memory_of


@dataclass(frozen=True)
class PeakMoment:
    """Moment at which a stage kind runs a task.

    Attributes
    ----------
    stashes : int
        The number of micro-batches, beside the running micro-batch, whose stashes are stored.
    beside : int
        Bytes of what else is there.
    """

    stashes: int
    beside: int


class StageKinds:
    """Stage kinds, and the live memory while they run.

    Parameters
    ----------
    memories : sequence of StageMemory
        The memory of each kind.
    kind_of : sequence of int
        The kind of each stage.
    schedule : Schedule
    """

    def __init__(
        self, memories: Sequence[StageMemory], kind_of: Sequence[int], schedule: Schedule
    ) -> None:
        self.memories, self.kind_of, self.rank_of = memories, kind_of, schedule.rank_of
        self.end = 0
        crowds: list[dict[int, int]] = [{} for _ in memories]
        for stage_ranges in holdings(schedule):
            kinds = [memories[kind_of[live_range.stage]] for live_range in stage_ranges]
            resident = sum(kind.resident + kind.constants for kind in kinds)
            total = np.sum([live_range.kept for live_range in stage_ranges], axis=0)
            parts = [
                np.where(live_range.summing, kind.sums, kind.begun)
                + live_range.later * kind.later
                + (live_range.activations + live_range.given) * kind.activations
                + (live_range.gradients + live_range.results) * kind.results
                for live_range, kind in zip(stage_ranges, kinds, strict=True)
            ]
            beside = np.sum(parts, axis=0)
            self.end = max(self.end, resident + sum(kind.end for kind in kinds))
            for live_range in stage_ranges:
                known = crowds[kind_of[live_range.stage]]
                pairs = zip(total[live_range.running], beside[live_range.running], strict=True)
                for stashes, more in pairs:
                    known[int(stashes)] = max(known.get(int(stashes), 0), resident + int(more))
        self.crowds = [_tightest(known) for known in crowds]

    @property
    def groups(self) -> list[list[int]]:
        """Return the kinds that share ranks, transitively."""
        groups: list[set[int]] = []
        for rank in sorted(set(self.rank_of)):
            kinds = {k for k, r in zip(self.kind_of, self.rank_of, strict=True) if r == rank}
            meeting = [group for group in groups if group & kinds]
            groups = [group for group in groups if not group & kinds]
            groups.append(kinds.union(*meeting))
        return [sorted(group) for group in groups]

    def needed(self, kind: int, stash: int, need: int) -> int:
        """Return the peak bytes while a kind runs, with stashes of at most ``stash`` bytes."""
        inside = max(need, self.memories[kind].adding)
        return max(crowd.beside + crowd.stashes * stash for crowd in self.crowds[kind]) + inside

    def stash(self, kind: int, way: PartialChoice) -> int:
        """Return the bytes of a micro-batch between its forward and backward pass."""
        return self.memories[kind].kept + way.kept_bytes

    def choices_of(self, kind: int, bound: int) -> list[PartialChoice]:
        """Return the choices of a kind that fit beside stashes that are no larger."""
        memory = self.memories[kind]

        def fits(stash: int, need: int) -> bool:
            return self.needed(kind, memory.kept + stash, need) <= bound

        return all_ways(memory.links, memory.gaps, fits, bound)

    def chosen(self, group: Sequence[int], bound: int) -> dict[int, PartialChoice] | None:
        """Return the choices that minimize the time of the slowest rank, or None if none fit."""
        choices_of = {kind: self.choices_of(kind, bound) for kind in group}
        result = []
        for stash in self._stashes(choices_of):
            choices = {
                kind: [
                    way
                    for way in choices_of[kind]
                    if self.stash(kind, way) <= stash
                    and self.needed(kind, stash, way.need_bytes) <= bound
                ]
                for kind in group
            }
            if all(choices.values()):
                best = {
                    kind: min(some, key=lambda choice: (choice.time, choice.kept_bytes))
                    for kind, some in choices.items()
                }
                result.append((self._times(best), best))
        return min(result, key=lambda choice: choice[0])[1] if result else None

    def least(self, group: Sequence[int]) -> int:
        """Return the smallest bound within which some choices fit."""
        choices_of = {}
        for kind in group:
            memory = self.memories[kind]
            links = [
                replace(link, options=tuple(replace(o, time=0) for o in link.options))
                for link in memory.links
            ]
            choices_of[kind] = all_ways(links, memory.gaps, lambda *_: True, 1 << 62)
        needs = []
        for stash in self._stashes(choices_of):
            needed = [
                [
                    self.needed(kind, stash, way.need_bytes)
                    for way in options
                    if self.stash(kind, way) <= stash
                ]
                for kind, options in choices_of.items()
            ]
            if all(needed):
                needs.append(max(map(min, needed)))
        return min(needs)

    @property
    def is_open(self) -> bool:
        """Return whether every call has an option."""
        return all(link.options for memory in self.memories for link in memory.links)

    def all_chosen(self, bound: int) -> tuple[tuple[int, int], dict[int, list[CallOption]]] | None:
        """Return the slowest rank's time, the total, and the options per kind, or None."""
        chosen: dict[int, PartialChoice] = {}
        for group in self.groups if self.end <= bound else ():
            choices = self.chosen(group, bound)
            if choices is None:
                return None
            chosen.update(choices)
        if not chosen:
            return None
        options = {kind: way.options(self.memories[kind].links) for kind, way in chosen.items()}
        return self._times(chosen), options

    def all_least(self) -> int:
        """Return the smallest bound within which choices of all kinds fit."""
        return max(self.end, *map(self.least, self.groups))

    def _stashes(self, choices_of: Mapping[int, Sequence[PartialChoice]]) -> list[int]:
        """Return the possible sizes of the largest stash of a group."""
        return sorted(
            {self.stash(kind, way) for kind, options in choices_of.items() for way in options}
        )

    def _times(self, choices_of: Mapping[int, PartialChoice]) -> tuple[int, int]:
        """Return the time of the slowest rank and the total."""
        times: dict[int, int] = {}
        for kind, rank in zip(self.kind_of, self.rank_of, strict=True):
            if kind in choices_of:
                times[rank] = times.get(rank, 0) + choices_of[kind].time
        return max(times.values()), sum(times.values())


def _tightest(known: Mapping[int, int]) -> list[PeakMoment]:
    """Return the moments that no other dominates in stashes and bytes."""
    result: list[PeakMoment] = []
    for stashes, beside in sorted(known.items(), reverse=True):
        if not result or beside > result[-1].beside:
            result.append(PeakMoment(stashes, beside))
    return result


def decided_in_stages(pipelined: WrittenPipeline, recipe: Recipe, auto: Auto) -> Recomputation:
    """Choose the recomputation of a pipelined step, for each stage kind separately.

    Parameters
    ----------
    pipelined : WrittenPipeline
        The same step without recomputation.
    recipe : Recipe
    auto : Auto

    Raises
    ------
    ModelError
        DIST0351 if the memory is not known.
    InfeasibleError
        DIST0803 if nothing stays within it.
    """
    bound = bound_of(recipe, auto)
    names = [note.function for note in pipelined.pipeline.stages]
    known = list(dict.fromkeys(names))
    memories = [memory_of(pipelined, names.index(name), auto) for name in known]
    kind_of = [known.index(name) for name in names]
    handed = {o.later_bytes for memory in memories for link in memory.links for o in link.options}
    tried = [
        StageKinds(
            [memory.handing_on(most) for memory in memories], kind_of, pipelined.pipeline.schedule
        )
        for most in sorted(handed or {0})
    ]
    tried = [kinds for kinds in tried if kinds.is_open]
    solutions = [
        solution
        for solution in (kinds.all_chosen(bound) for kinds in tried)
        if solution is not None
    ]
    if not solutions:
        raise too_little(min(kinds.all_least() for kinds in tried), bound)
    _, options = min(solutions, key=lambda solution: solution[0])
    policies: dict[str, list[str]] = {}
    for part, kind in zip(pipelined.parts, kind_of, strict=True):
        policy_of = dict(zip(memories[kind].calls, [o.policy for o in options[kind]], strict=True))
        for number, layer in enumerate(part.stage.layers):
            policies.setdefault(layer.name, []).append(policy_of.get(number, NONE))
    return Recomputation(tuple((name, Runs.of(choices)) for name, choices in policies.items()))
