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
from .memory import RankMemory, curve
from .rank_state import RankState
from .stage_kinds import Alike
from .stage_lanes import StageTimeline, function_times
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
    memory : RankMemory
    """

    def __init__(
        self,
        program: Program,
        staged: Staged,
        rank: int,
        state: RankState,
        alike: Alike,
        memory: RankMemory,
    ) -> None:
        self.program, self.staged, self.rank, self.state = program, staged, rank, state
        self.memory = memory
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
        timeline = StageTimeline.of(self.program, self.staged, self.rank, self.state, starts)
        root = "main" if len(self.program.meshes) == 1 else f"main_mesh{self.rank}"
        lane = Lane(
            self.mesh.name,
            self.mesh.device_ids,
            self._curve(finish, timeline),
            op_times(self.rows, self.counts),
            function_times(root, self.runs, self.rows, self.calls),
            timeline,
            self.memory.account,
        )
        memory = self.memory.account.peak_bytes, self._weights()
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

    def _weights(self) -> int:
        """Bytes of weights, states and constants."""
        _, weights = value_bytes(value for _, _, value in self.staged.inputs(self.rank))
        roots = {p.function for k in self.stages for p in self.staged.role_of(k).phases}
        return weights + constant_bytes(self.program, sorted(roots))

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

    def _curve(self, finish: int, timeline: StageTimeline) -> tuple[tuple[float, int], ...]:
        """Live memory over time, a unit at a time."""
        starts = {}
        for one, _, begin, _ in timeline.parts:
            starts[one.stage, one.name] = iter(begin.tolist())
        issued = [
            next(starts.get((event.stage, event.name), iter(())), finish)
            for event in self.memory.events
        ]
        when, live = curve(
            self.memory.resident_bytes, np.array(issued, np.int64), self.memory.during, finish,
            int(self.memory.after[-1]),
        )  # fmt: skip
        return tuple(zip(map(seconds, when.tolist()), live.tolist(), strict=True))
