# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check stages, schedule and edges of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from tvm_distir.support import SimulationError, nearest

from .mesh import Mesh
from .parts import Function, reached
from .pipeline_program import Edge, PipelineProgram
from .stage_kind import BACKWARD, COUNT, FORWARD, NUMBERED, PHASES, StageKind

Broken = Callable[..., SimulationError]
"""Place, what is wrong and a remedy to the error."""


class StagedChecks:
    """Checks of a pipelined program.

    Parameters
    ----------
    meshes : sequence of Mesh
    functions : mapping of str to Function
        The functions, each of which is checked separately.
    staged : PipelineProgram
    location : str
    broken : callable
    """

    def __init__(
        self, meshes: Sequence[Mesh], functions: Mapping[str, Function], staged: PipelineProgram,
        location: str, broken: Broken,
    ) -> None:  # fmt: skip
        self.meshes, self.functions, self.staged = meshes, functions, staged
        self.location, self.broken = location, broken

    def run(self) -> None:
        """Run all checks."""
        self._ranks()
        self._stages()
        arriving = self._arriving()
        for number, stage_kind in enumerate(self.staged.stage_kinds):
            self._stage_kind(
                stage_kind, arriving.get(number, set()), f"{self.location}/roles[{number}]"
            )
        for number, edge in enumerate(self.staged.edges):
            where = f"{self.location}/edges[{number}]"
            step = {"forward": 1, "backward": -1}.get(edge.direction)
            if step is None or edge.target[0] != edge.source[0] + step:
                raise self.broken(
                    where, f"{edge.direction} from stage {edge.source[0]} to {edge.target[0]}"
                )
            self._edge(edge, where)
        self._sums()

    def _ranks(self) -> None:
        schedule = self.staged.schedule
        if len(self.meshes) != schedule.stages:
            raise self.broken(
                f"{self.location}/meshes",
                f"{len(self.meshes)} meshes for a schedule of {schedule.stages} ranks",
            )
        owner: dict[int, int] = {}
        for rank, mesh in enumerate(self.meshes):
            for device in mesh.device_ids:
                if owner.setdefault(device, rank) != rank:
                    raise self.broken(
                        f"{self.location}/meshes[{rank}]",
                        f"device {device} already belongs to rank {owner[device]}",
                    )

    def _stage_kind(self, stage_kind: StageKind, arriving: set[int], location: str) -> None:
        self._slots(
            stage_kind,
            [
                *stage_kind.params,
                *stage_kind.results,
                *(s for p in (*stage_kind.sums, *stage_kind.updates) for s in p),
            ],
            location,
        )
        order, seen = -1, set[str]()
        available = {*stage_kind.params, *arriving, *(total for _, total in stage_kind.sums)}
        for number, phase in enumerate(stage_kind.phases):
            where = f"{location}/phases[{number}]"
            word, _, term = phase.name.partition(":")
            group = next((words for words in NUMBERED if word in words), ())
            numbers = range(stage_kind.counts if COUNT in group else len(stage_kind.sums))
            if word not in PHASES or (term not in map(str, numbers) if group else term):
                raise self.broken(where, f"there is no phase {phase.name!r}")
            rank = PHASES.index(group[0] if group else word)
            if rank < order or phase.name in seen:
                raise self.broken(where, f"{phase.name!r} is not at its position")
            order = rank
            seen.add(phase.name)
            self._slots(stage_kind, [*phase.inputs, *phase.outputs], where)
            if missing := [slot for slot in phase.inputs if slot not in available]:
                name = stage_kind.slots[missing[0]].name
                raise self.broken(where, f"slot {missing[0]} ({name}) is read before it is written")
            available.update(phase.outputs)
            self._calls(stage_kind, phase.function, phase.inputs, phase.outputs, where)
        for name in (FORWARD, BACKWARD):
            if name not in seen:
                raise self.broken(location, f"it has no phase {name!r}")
        for param, result in stage_kind.updates:
            if (
                param not in stage_kind.params
                or stage_kind.slots[param].bytes != stage_kind.slots[result].bytes
            ):
                raise self.broken(
                    location, f"slot {result} cannot reuse the memory of slot {param}"
                )
        for slot in stage_kind.results:
            if slot not in available:
                raise self.broken(location, f"nothing writes the result in slot {slot}")

    def _arriving(self) -> dict[int, set[int]]:
        """Return, per stage kind, the slots that neighbouring stages write."""
        slots: list[set[int]] = [set() for _ in self.staged.stages]
        for edge in self.staged.edges:
            if edge.target[0] < len(slots):
                slots[edge.target[0]].add(edge.target[1])
        result: dict[int, set[int]] = {}
        for number, stage in enumerate(self.staged.stages):
            if result.setdefault(stage.role, slots[number]) != slots[number]:
                raise self.broken(
                    f"{self.location}/stages[{number}]",
                    f"it receives the slots {sorted(slots[number])}, a stage with the same role "
                    f"{sorted(result[stage.role])}",
                )
        return result

    def _slots(self, stage_kind: StageKind, slots: Iterable[int], location: str) -> None:
        for slot in slots:
            if slot >= len(stage_kind.slots):
                raise self.broken(location, f"slot {slot} of {len(stage_kind.slots)}")

    def _calls(
        self,
        stage_kind: StageKind,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        location: str,
    ) -> None:
        fn = self.functions.get(name)
        if fn is None:
            raise self.broken(
                location, f"there is no function {name!r}", nearest(name, self.functions)
            )
        for verb, slots, values in (("takes", inputs, fn.params), ("returns", outputs, fn.results)):
            if len(slots) != len(values):
                raise self.broken(
                    location, f"{name} {verb} {len(values)} tensors, the phase has {len(slots)}"
                )
            for slot, index in zip(slots, values, strict=True):
                slot_bytes, other = stage_kind.slots[slot].bytes, fn.values[index].bytes
                if slot_bytes != other:
                    raise self.broken(
                        location, f"slot {slot} has {slot_bytes} bytes, {name} {other}"
                    )
        called = (self.functions[callee] for callee in reached(self.functions, [name]))
        if any(op.kind == "transfer" for callee in called for op in callee.ops):
            raise self.broken(location, f"{name} sends or receives: only edges describe transfers")

    def _stages(self) -> None:
        staged = self.staged
        if len(staged.stages) != staged.schedule.stage_count:
            raise self.broken(
                f"{self.location}/stages",
                f"{len(staged.stages)} stages, the schedule has {staged.schedule.stage_count}",
            )
        for number, stage in enumerate(staged.stages):
            where = f"{self.location}/stages[{number}]"
            if stage.role >= len(staged.stage_kinds):
                raise self.broken(where, f"role {stage.role} of {len(staged.stage_kinds)}")
            stage_kind = staged.stage_kinds[stage.role]
            for slot, names, slots in (
                ("inputs", stage.names, stage_kind.params),
                ("results", stage.results, stage_kind.results),
            ):
                if len(names) != len(slots):
                    raise self.broken(where, f"{len(names)} names for {len(slots)} {slot}")

    def _edge(self, edge: Edge, location: str) -> None:
        """Check both ends of an edge."""
        for (stage, slot), size in zip((edge.source, edge.target), edge.bytes, strict=True):
            if stage >= len(self.staged.stages):
                raise self.broken(location, f"stage {stage} of {len(self.staged.stages)}")
            stage_kind = self.staged.stage_kind_of(stage)
            self._slots(stage_kind, [slot], location)
            if stage_kind.slots[slot].bytes != size:
                raise self.broken(
                    location,
                    f"{size} bytes, slot {slot} of {stage_kind.name} has "
                    f"{stage_kind.slots[slot].bytes}",
                )

    def _sums(self) -> None:
        for number, stage_sum in enumerate(self.staged.sums):
            where = f"{self.location}/sums[{number}]"
            stages = stage_sum.stages
            if list(stages) != sorted(set(stages)) or not stages:
                raise self.broken(where, f"the stages {list(stages)} are not in order")
            if stages[-1] >= len(self.staged.stages):
                raise self.broken(where, f"stage {stages[-1]} of {len(self.staged.stages)}")
            chain = [(e.source[0], e.target[0]) for e in stage_sum.edges if e.direction == "sum"]
            if chain != list(itertools.pairwise(stages)):
                raise self.broken(
                    where, f"edges {chain} do not form the sum over the stages {list(stages)}"
                )
            for edge in stage_sum.edges:
                if edge.direction not in ("sum", "total"):
                    raise self.broken(where, f"an edge {edge.direction!r} is part of a sum")
                self._edge(edge, where)
        for number, stage in enumerate(self.staged.stages):
            expected, count = (
                len(self.staged.stage_kinds[stage.role].sums),
                len(self.staged.sums_of(number)),
            )
            if expected != count:
                raise self.broken(
                    f"{self.location}/stages[{number}]",
                    f"it takes part in {count} sums, its role in {expected}",
                )
