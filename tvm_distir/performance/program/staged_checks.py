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
    place : str
    broken : callable
    """

    def __init__(
        self, meshes: Sequence[Mesh], functions: Mapping[str, Function], staged: PipelineProgram,
        place: str, broken: Broken,
    ) -> None:  # fmt: skip
        self.meshes, self.functions, self.staged = meshes, functions, staged
        self.place, self.broken = place, broken

    def run(self) -> None:
        """Run all checks."""
        self._ranks()
        self._stages()
        arriving = self._arriving()
        for number, role in enumerate(self.staged.roles):
            self._role(role, arriving.get(number, set()), f"{self.place}/roles[{number}]")
        for number, edge in enumerate(self.staged.edges):
            where = f"{self.place}/edges[{number}]"
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
                f"{self.place}/meshes",
                f"{len(self.meshes)} meshes for a schedule of {schedule.stages} ranks",
            )
        owner: dict[int, int] = {}
        for rank, mesh in enumerate(self.meshes):
            for device in mesh.device_ids:
                if owner.setdefault(device, rank) != rank:
                    raise self.broken(
                        f"{self.place}/meshes[{rank}]",
                        f"device {device} already belongs to rank {owner[device]}",
                    )

    def _role(self, role: StageKind, arriving: set[int], place: str) -> None:
        self._slots(
            role,
            [*role.params, *role.results, *(s for p in (*role.sums, *role.updates) for s in p)],
            place,
        )
        order, seen = -1, set[str]()
        available = {*role.params, *arriving, *(total for _, total in role.sums)}
        for number, phase in enumerate(role.phases):
            where = f"{place}/phases[{number}]"
            word, _, term = phase.name.partition(":")
            group = next((words for words in NUMBERED if word in words), ())
            numbers = range(role.counts if COUNT in group else len(role.sums))
            if word not in PHASES or (term not in map(str, numbers) if group else term):
                raise self.broken(where, f"there is no phase {phase.name!r}")
            rank = PHASES.index(group[0] if group else word)
            if rank < order or phase.name in seen:
                raise self.broken(where, f"{phase.name!r} is not at its position")
            order = rank
            seen.add(phase.name)
            self._slots(role, [*phase.inputs, *phase.outputs], where)
            if missing := [slot for slot in phase.inputs if slot not in available]:
                name = role.slots[missing[0]].name
                raise self.broken(where, f"slot {missing[0]} ({name}) is read before it is written")
            available.update(phase.outputs)
            self._calls(role, phase.function, phase.inputs, phase.outputs, where)
        for name in (FORWARD, BACKWARD):
            if name not in seen:
                raise self.broken(place, f"it has no phase {name!r}")
        for param, result in role.updates:
            if param not in role.params or role.slots[param].bytes != role.slots[result].bytes:
                raise self.broken(place, f"slot {result} cannot reuse the memory of slot {param}")
        for slot in role.results:
            if slot not in available:
                raise self.broken(place, f"nothing writes the result in slot {slot}")

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
                    f"{self.place}/stages[{number}]",
                    f"it receives the slots {sorted(slots[number])}, a stage with the same role "
                    f"{sorted(result[stage.role])}",
                )
        return result

    def _slots(self, role: StageKind, slots: Iterable[int], place: str) -> None:
        for slot in slots:
            if slot >= len(role.slots):
                raise self.broken(place, f"slot {slot} of {len(role.slots)}")

    def _calls(
        self, role: StageKind, name: str, inputs: Sequence[int], outputs: Sequence[int], place: str
    ) -> None:
        fn = self.functions.get(name)
        if fn is None:
            raise self.broken(
                place, f"there is no function {name!r}", nearest(name, self.functions)
            )
        for verb, slots, values in (("takes", inputs, fn.params), ("returns", outputs, fn.results)):
            if len(slots) != len(values):
                raise self.broken(
                    place, f"{name} {verb} {len(values)} tensors, the phase has {len(slots)}"
                )
            for slot, index in zip(slots, values, strict=True):
                slot_bytes, other = role.slots[slot].bytes, fn.values[index].bytes
                if slot_bytes != other:
                    raise self.broken(place, f"slot {slot} has {slot_bytes} bytes, {name} {other}")
        called = (self.functions[callee] for callee in reached(self.functions, [name]))
        if any(op.kind == "transfer" for callee in called for op in callee.ops):
            raise self.broken(place, f"{name} sends or receives: only edges describe transfers")

    def _stages(self) -> None:
        staged = self.staged
        if len(staged.stages) != staged.schedule.stage_count:
            raise self.broken(
                f"{self.place}/stages",
                f"{len(staged.stages)} stages, the schedule has {staged.schedule.stage_count}",
            )
        for number, stage in enumerate(staged.stages):
            where = f"{self.place}/stages[{number}]"
            if stage.role >= len(staged.roles):
                raise self.broken(where, f"role {stage.role} of {len(staged.roles)}")
            role = staged.roles[stage.role]
            for slot, names, slots in (
                ("inputs", stage.names, role.params), ("results", stage.results, role.results)
            ):  # fmt: skip
                if len(names) != len(slots):
                    raise self.broken(where, f"{len(names)} names for {len(slots)} {slot}")

    def _edge(self, edge: Edge, place: str) -> None:
        """Check both ends of an edge."""
        for (stage, slot), size in zip((edge.source, edge.target), edge.bytes, strict=True):
            if stage >= len(self.staged.stages):
                raise self.broken(place, f"stage {stage} of {len(self.staged.stages)}")
            role = self.staged.role_of(stage)
            self._slots(role, [slot], place)
            if role.slots[slot].bytes != size:
                raise self.broken(
                    place, f"{size} bytes, slot {slot} of {role.name} has {role.slots[slot].bytes}"
                )

    def _sums(self) -> None:
        for number, stage_sum in enumerate(self.staged.sums):
            where = f"{self.place}/sums[{number}]"
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
                len(self.staged.roles[stage.role].sums),
                len(self.staged.sums_of(number)),
            )
            if expected != count:
                raise self.broken(
                    f"{self.place}/stages[{number}]",
                    f"it takes part in {count} sums, its role in {expected}",
                )
