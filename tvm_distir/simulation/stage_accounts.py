# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the devices of a rank of a pipeline did, op by op and byte by byte, from its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..program import Program, Staged
from .accounts import Traffic, add_traffic, constant_bytes, device_results, traffic, value_bytes
from .costs import COMPUTE, OpCosts
from .intervals import union
from .lanes import DeviceResult, Lane
from .memory import FOREVER, live_memory
from .rank_state import RankState, Runs
from .stage_kinds import Alike
from .stage_lanes import StageTimeline, function_times
from .summary import Summary
from .timeline import op_times, seconds, total_flops

Ints = npt.NDArray[np.int64]


class RankAccount:
    """Sums up a rank.

    Parameters
    ----------
    program : Program
    staged : Staged
    rank : int
    state : RankState
        Behind the last run.
    alike : Alike
        The rank's units.
    """

    def __init__(
        self, program: Program, staged: Staged, rank: int, state: RankState, alike: Alike
    ) -> None:
        self.program, self.staged, self.rank, self.state = program, staged, rank, state
        self.rows, self.calls = alike.flattener.rows, alike.flattener.calls
        self.mesh = program.meshes[rank]
        self.stages = [k for k, r in enumerate(staged.schedule.rank_of) if r == rank]
        self.runs = list(state.runs.values())
        counts = np.zeros(len(self.rows), np.int64)
        for one in self.runs:
            flat = one.unit.summary.flat
            counts += len(one.micros) * np.bincount(flat.row, minlength=len(self.rows))
        self.counts: list[int] = counts.tolist()

    def run(self, finish: int) -> tuple[Lane, list[DeviceResult]]:
        """The rank's lane and the results of its devices; ``finish`` ends the step."""
        starts = [one.all_starts() for one in self.runs]
        busy, talking = self._times(starts)
        inputs, weights = self._resident()
        when, live = live_memory(inputs + weights, *self._buffers(starts))
        timeline = StageTimeline.of(self.program, self.staged, self.rank, self.state, starts)
        root = "main" if len(self.program.meshes) == 1 else f"main_mesh{self.rank}"
        lane = Lane(
            self.mesh.name,
            self.mesh.device_ids,
            _thinned(when, live, timeline.marks()),
            op_times(self.rows, self.counts),
            function_times(root, self.runs, self.rows, self.calls),
            timeline,
        )
        memory = int(live.max()), weights
        flops = total_flops(self.rows, self.counts)
        return lane, device_results(
            self.mesh.device_ids, self.mesh.name, (busy, talking), finish, memory, flops
        )

    def traffic(self, costs: OpCosts) -> Traffic:
        """Collectives of the rank, and messages that it gets."""
        found = traffic(self.program, self.rows, self.counts, self.mesh)
        edges = {id(message.edge): message.edge for message in self.state.received}
        counts = Counter(id(message.edge) for message in self.state.received)
        for key, edge in edges.items():
            peer = self.staged.schedule.rank_of[edge.source[0]]
            ends = f"{self.program.meshes[peer].name}->{self.mesh.name}"
            _, spent = costs.edge_ps(edge, peer, self.rank)
            add_traffic(
                found, (self.mesh.name, "send", ends, len(self.mesh.device_ids)), counts[key],
                (edge.bytes[1], edge.wire_bytes[1], spent),
            )  # fmt: skip
        return found

    def _resident(self) -> tuple[int, int]:
        """Bytes of inputs, and of weights and constants."""
        inputs, weights = value_bytes(value for _, _, value in self.staged.inputs(self.rank))
        roots = {p.function for k in self.stages for p in self.staged.role_of(k).phases}
        return inputs, weights + constant_bytes(self.program, roots)

    def _times(self, starts: Sequence[Ints]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Unions of when it computes, and of when it communicates."""
        first: tuple[list[Ints], list[Ints]] = [], []
        last: tuple[list[Ints], list[Ints]] = [], []
        for one, start in zip(self.runs, starts, strict=True):
            summary = one.unit.summary
            compute = summary.stream == COMPUTE
            for kind, tasks in enumerate((compute, ~compute)):
                first[kind].append(start[:, tasks].ravel())
                last[kind].append((start[:, tasks] + summary.duration[tasks]).ravel())
        messages = [*self.state.sent, *self.state.received]
        first[1].append(np.array([one.start for one in messages], np.int64))
        last[1].append(np.array([one.end for one in messages], np.int64))
        busy, talking = (
            union(np.concatenate(a), np.concatenate(b)) for a, b in zip(first, last, strict=True)
        )
        return busy, talking

    def _buffers(self, starts: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
        """Sizes of all buffers of the step, and when they are allocated and freed."""
        state = self.state
        until = np.zeros(state.instances, np.int64)
        sizes, allocs, frees, places = [], [], [], []
        for one, start in zip(self.runs, starts, strict=True):
            summary, flat = one.unit.summary, one.unit.summary.flat
            end = start + summary.duration
            free = end[:, flat.buffer_task]
            _extend(free, end, summary.use_buffer, summary.use_task)
            instances = np.array(one.first, np.int64)[:, None] + np.arange(summary.kept.size)
            until[instances] = free[:, summary.kept]
            sizes.append(np.tile(flat.buffer_bytes, len(one.micros)))
            allocs.append(start[:, flat.buffer_task].ravel())
            frees.append(free)
            places.append(instances)
        for message in state.received:
            until[message.instance] = message.end
        for one, start in zip(self.runs, starts, strict=True):
            self._read(one, start, until)
        for message in state.sent:
            if message.instance >= 0:
                until[message.instance] = max(until[message.instance], message.end)
        until[self._kept()] = FOREVER
        for one, free, instances in zip(self.runs, frees, places, strict=True):
            free[:, one.unit.summary.kept] = until[instances]
        arrived = [one.instance for one in state.received]
        return (
            np.concatenate([*sizes, np.array([m.edge.bytes[1] for m in state.received], np.int64)]),
            np.concatenate([*allocs, np.array([m.start for m in state.received], np.int64)]),
            np.concatenate([*(free.ravel() for free in frees), until[arrived]]),
        )

    def _read(self, one: Runs, start: Ints, until: Ints) -> None:
        """Keep what runs read until they have."""
        summary: Summary = one.unit.summary
        inputs = np.stack(one.inputs)
        last = np.zeros_like(inputs)
        _extend(last, start + summary.duration, summary.param, summary.param_task)
        here = inputs >= 0
        np.maximum.at(until, inputs[here], last[here])

    def _kept(self) -> list[int]:
        """Instances that are results of the whole step."""
        found = []
        for stage in self.stages:
            role, names = self.staged.role_of(stage), self.staged.stages[stage].results
            slots = [slot for slot, name in zip(role.results, names, strict=True) if name]
            found += [i for i in self.state.once[stage][slots].tolist() if i >= 0]
        return found


def _extend(until: Ints, end: Ints, place: Ints, task: Ints) -> None:
    """Raise ``until[:, place]`` to the ends of tasks, (runs, tasks)."""
    if not place.size:
        return
    order = np.argsort(place, kind="stable")
    places, begin = np.unique(place[order], return_index=True)
    last = np.maximum.reduceat(end[:, task[order]], begin, axis=1)
    until[:, places] = np.maximum(until[:, places], last)


def _thinned(when: Ints, live: Ints, marks: Ints) -> tuple[tuple[float, int], ...]:
    """Live memory between marks: the highest step of each part, and the last one."""
    begin = np.unique(np.searchsorted(when, marks))
    begin = np.unique(np.concatenate(([0], begin[begin < when.size])))
    last = np.append(begin[1:], when.size) - 1
    highest = [a + int(np.argmax(live[a : b + 1])) for a, b in zip(begin.tolist(), last.tolist())]
    kept = np.unique(np.concatenate((highest, last)))
    return tuple(zip(map(seconds, when[kept].tolist()), live[kept].tolist(), strict=True))
