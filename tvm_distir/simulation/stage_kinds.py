# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The units of each rank with their costs: ranks that lie alike on the nodes share them."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..program import Program, Staged, once_slots
from ..system import System
from .costs import OpCosts
from .flat import Flattener
from .stage_units import StageUnit, arriving, with_units
from .summary import Summary

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankUnit:
    """A unit on a rank.

    Attributes
    ----------
    name : str
        Of its function.
    summary : Summary
    inputs, outputs : int64 arrays
        Slots.
    input_once, output_once : bool arrays
        Which of them are there once, not per micro-batch.
    watched : tuple of int
        Kept results whose time matters, to other units or to messages.
    aliases : bool
        Whether some result is a parameter.
    """

    name: str
    summary: Summary
    inputs: Ints
    outputs: Ints
    input_once: npt.NDArray[np.bool_]
    output_once: npt.NDArray[np.bool_]
    watched: tuple[int, ...]
    aliases: bool


@dataclass(frozen=True)
class Alike:
    """What ranks have in common whose groups lie alike on the nodes.

    Attributes
    ----------
    program : Program
        Units as entries.
    flattener : Flattener
    units : dict of (int, str) to RankUnit
        By number of role and name.
    """

    program: Program
    flattener: Flattener
    units: dict[tuple[int, str], RankUnit]


class Kinds:
    """Units of all ranks.

    Parameters
    ----------
    program : Program
    staged : Staged
    system : System
    blocking : bool
    engine : str
    """

    def __init__(
        self, program: Program, staged: Staged, system: System, blocking: bool, engine: str
    ) -> None:
        self.program, self.staged, self.system = program, staged, system
        self.blocking, self.engine = blocking, engine
        axes = {op.mesh_axes for fn in program.functions.values() for op in fn.ops if op.mesh_axes}
        keys: list[Hashable] = []
        for mesh in program.meshes:
            fitting = sorted(a for a in axes if all(n < len(mesh.shape) for n in a))
            layouts = [system.layout(mesh.groups(a)) for a in fitting]
            lie = tuple((layout.kinds, layout.sharing) for layout in layouts)
            keys.append((mesh.axes, mesh.shape, lie))
        roles: dict[Hashable, set[int]] = {}
        for stage, rank in zip(staged.stages, staged.schedule.rank_of, strict=True):
            roles.setdefault(keys[rank], set()).add(stage.role)
        found = {key: self._alike(keys.index(key), own) for key, own in roles.items()}
        self.of_rank = [found[key] for key in keys]

    def has(self, stage: int, name: str) -> bool:
        """Whether a stage has a unit of this name."""
        return (self.staged.stages[stage].role, name) in self._of(stage).units

    def unit(self, stage: int, name: str) -> RankUnit:
        """Unit of a stage."""
        return self._of(stage).units[self.staged.stages[stage].role, name]

    def _of(self, stage: int) -> Alike:
        return self.of_rank[self.staged.schedule.rank_of[stage]]

    def _alike(self, rank: int, roles: Collection[int]) -> Alike:
        """Flatten and sum up all units of roles as a rank runs them."""
        program, units = with_units(self.program, self.staged, rank, roles)
        flattener = Flattener(program, OpCosts(program, self.system))
        flats = flattener.flatten()
        summaries = {
            key: Summary(flats[unit.function], flattener.rows, self.blocking, self.engine)
            for key, unit in units.items()
        }
        apart = self._apart(units, summaries)
        found = {}
        for key, unit in units.items():
            role = self.staged.roles[key[0]]
            once = once_slots(role, self.staged.schedule, key[1])
            timed = apart[key[0]]
            summary = summaries[key]
            summary.open([p for p, slot in enumerate(unit.inputs) if slot in timed])
            places = summary.result_kept.tolist()
            found[key] = RankUnit(
                unit.function,
                summary,
                np.array(unit.inputs, np.int64),
                np.array(unit.outputs, np.int64),
                np.array([slot in once for slot in unit.inputs], bool),
                np.array([slot in once for slot in unit.outputs], bool),
                tuple(
                    sorted(
                        {
                            place
                            for slot, place in zip(unit.outputs, places, strict=True)
                            if slot in timed and place >= 0
                        }
                    )
                ),
                bool((summary.result_param >= 0).any()),
            )
        return Alike(program, flattener, found)

    def _apart(
        self, units: dict[tuple[int, str], StageUnit], summaries: dict[tuple[int, str], Summary]
    ) -> dict[int, set[int]]:
        """By role the slots whose time can matter by itself, beside the compute stream's."""
        found = {number: set(slots) for number, slots in arriving(self.staged).items()}
        for key, unit in units.items():
            summary = summaries[key]
            found[key[0]].update(unit.inputs[p] for p in summary.awaited_apart())
            found[key[0]].update(unit.outputs[r] for r in summary.unsettled())
        for number, role in enumerate(self.staged.roles):
            found[number].update(slot for pair in role.sums for slot in pair)
            moved = (*role.carried, *(role.updated if self.staged.schedule.stash else ()))
            late = {slot for pair in moved if found[number] & set(pair) for slot in pair}
            found[number] = (found[number] - set(role.params)) | late
        return found
