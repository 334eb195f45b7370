# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the units of each rank with their costs, shared by ranks of the same layout."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from tvm_distir.hardware import System
from tvm_distir.performance.event_loop.function_summaries import (
    AT_HAND,
    FREE,
    IS_FREE,
    SETTLED,
    FunctionSummaries,
)
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.unit_phases import once_slots
from tvm_distir.performance.simulation.function_reader import read_functions
from tvm_distir.performance.simulation.lowering import Lowering
from tvm_distir.performance.simulation.op_costs import OpCosts

from .unit_functions import StageUnit, arriving, with_units


@dataclass(frozen=True)
class RankUnit:
    """Unit of a stage kind on ranks with the same layout.

    Attributes
    ----------
    name : str
        The name of its function.
    function : int
        The number of its function in the lowering.
    number : int
        The number of its map.
    inputs, outputs : tuple of int
        Slots.
    once : frozenset of int
        Slots that are there once, not per micro-batch, as it sees them.
    """

    name: str
    function: int
    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    once: frozenset[int]


@dataclass(frozen=True)
class RankClass:
    """Class of ranks whose groups have the same layout on the nodes.

    Attributes
    ----------
    units : dict of (int, str) to RankUnit
        The units by the number of the stage kind and by name.
    timed : dict of int to list of int
        The slots whose time matters by itself, beside the compute stream's, by the number of the
        stage kind.
    """

    units: dict[tuple[int, str], RankUnit]
    timed: dict[int, list[int]]


def axes_used(program: Program) -> set[tuple[int, ...]]:
    """Return the mesh axes along which collectives of a program work."""
    return {op.mesh_axes for fn in program.functions.values() for op in fn.ops if op.mesh_axes}


def layout_key(axes: Collection[tuple[int, ...]], costs: OpCosts) -> list[Hashable]:
    """Return the layout key of groups along mesh axes: equal keys are equally fast."""
    result: list[Hashable] = []
    for number, mesh in enumerate(costs.program.meshes):
        fitting = sorted(a for a in axes if all(n < len(mesh.shape) for n in a))
        layouts = [costs.layout(number, a) for a in fitting]
        lie = tuple((layout.kinds, layout.sharing) for layout in layouts)
        system = costs.systems.index(costs.systems[number])
        result.append((mesh.axes, mesh.shape, lie, system))
    return result


class RankClasses:
    """Units of all ranks.

    Parameters
    ----------
    program : Program
    staged : PipelineProgram
    system : System
    blocking : bool

    Attributes
    ----------
    lowering : Lowering
    maps : FunctionSummaries
    of_rank : list of RankClass
    """

    def __init__(
        self, program: Program, staged: PipelineProgram, system: System, blocking: bool
    ) -> None:
        self.staged, self.lowering = staged, Lowering(blocking)
        keys = layout_key(axes_used(program), OpCosts(program, system))
        stage_kinds: dict[Hashable, set[int]] = {}
        for stage, rank in zip(staged.stages, staged.schedule.rank_of, strict=True):
            stage_kinds.setdefault(keys[rank], set()).add(stage.role)
        units = {
            key: self._read(program, system, keys.index(key), kinds_of_rank)
            for key, kinds_of_rank in stage_kinds.items()
        }
        self.maps = FunctionSummaries(self.lowering.table)
        late = {key: self._classes(rank_units) for key, rank_units in units.items()}
        for key, rank_units in units.items():
            for (stage_kind, _), unit in rank_units.items():
                self.maps.open(unit.number, [late[key][stage_kind][slot] for slot in unit.inputs])
        classes = {
            key: RankClass(rank_units, self._timed(self.maps, rank_units))
            for key, rank_units in units.items()
        }
        self.of_rank = [classes[key] for key in keys]

    def unit(self, stage: int, name: str) -> RankUnit | None:
        """Return the unit of a stage."""
        return self.of(stage).units.get((self.staged.stages[stage].role, name))

    def of(self, stage: int) -> RankClass:
        """Return the rank class of a stage."""
        return self.of_rank[self.staged.schedule.rank_of[stage]]

    def timed(self, stage: int) -> list[int]:
        """Return the slots of a stage whose time matters by itself."""
        return self.of(stage).timed[self.staged.stages[stage].role]

    def _read(
        self, program: Program, system: System, rank: int, stage_kinds: Collection[int]
    ) -> dict[tuple[int, str], RankUnit]:
        """Read the units of roles as a rank runs them."""
        unit_program, units = with_units(program, self.staged, rank, stage_kinds)
        names = [unit.function for unit in units.values()]
        numbers = read_functions(self.lowering, unit_program, OpCosts(unit_program, system), names)

        def make_unit(stage_kind: int, name: str, unit: StageUnit) -> RankUnit:
            function = numbers[unit.function]
            once = once_slots(self.staged.stage_kinds[stage_kind], self.staged.schedule, name)
            number = self.lowering.functions[function].number
            return RankUnit(
                unit.function, function, number, unit.inputs, unit.outputs, frozenset(once)
            )

        return {key: make_unit(*key, unit) for key, unit in units.items()}

    def _classes(self, units: dict[tuple[int, str], RankUnit]) -> dict[int, dict[int, int]]:
        """Return, per stage kind, how late slots may be: as late as any unit may write them."""
        classes: dict[int, dict[int, int]] = {}
        stash = self.staged.schedule.stash
        for number, slots in arriving(self.staged).items():
            stage_kind = self.staged.stage_kinds[number]
            late = classes[number] = dict.fromkeys(range(len(stage_kind.slots)), AT_HAND)
            late.update(dict.fromkeys(slots, FREE))
            late.update({slot: FREE for pair in stage_kind.sums for slot in pair})
            stage_units = [unit for key, unit in units.items() if key[0] == number]
            before: dict[int, int] = {}
            while before != late:
                before = dict(late)
                for unit in stage_units:
                    origins = self.maps.result_sources(unit.number)
                    for slot, origin in zip(unit.outputs, origins, strict=True):
                        whence = late[unit.inputs[origin]] if origin >= 0 else SETTLED
                        late[slot] = max(late[slot], FREE if origin == IS_FREE else whence)
                for param, result in (*stage_kind.carried, *(stage_kind.updated if stash else ())):
                    late[param] = max(late[param], late[result])
        return classes

    def _timed(
        self, maps: FunctionSummaries, units: dict[tuple[int, str], RankUnit]
    ) -> dict[int, list[int]]:
        """Return, per stage kind, the slots that are ports, are sent, or become such slots."""
        slots_of_kind = arriving(self.staged)
        for (number, _), unit in units.items():
            slots_of_kind[number].update(unit.inputs[p] for p in maps.ports(unit.number))
        for number, slots in slots_of_kind.items():
            stage_kind = self.staged.stage_kinds[number]
            slots.update(slot for pair in stage_kind.sums for slot in pair)
            for param, result in (*stage_kind.carried, *stage_kind.updated):
                if param in slots:
                    slots.add(result)
        return {number: sorted(slots) for number, slots in slots_of_kind.items()}
