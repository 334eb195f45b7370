# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Add transfers of offloaded stashes to the programs of ranks.

A store begins when the forward unit is over, beside the next unit; the unit behind that waits for
its end, since the memory is needed then. A fetch begins with the unit before the backward unit,
which waits for it. Either direction has a separate stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tvm_distir.core.plan import FETCH, STORE, absences
from tvm_distir.performance.event_loop.function_summaries import COMM_PORT, COMPUTE_PORT, Ints
from tvm_distir.performance.event_loop.rank_programs import (
    FETCH_STREAM,
    MARK,
    RECV,
    SEND,
    STORE_STREAM,
    WAIT,
)
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.simulation.op_costs import OpCosts

Cell = tuple[int, int]
Numbers = tuple[int, ...]

STREAM = {STORE: STORE_STREAM, FETCH: FETCH_STREAM}


@dataclass(frozen=True)
class StashTransfer:
    """Transfer of a stage's stashes in a single direction.

    Attributes
    ----------
    stage : int
    kind : str
        ``store`` or ``fetch``.
    bytes : int
        The bytes of a device's stash.
    spent_ps : int
        The time of each copy.
    """

    stage: int
    kind: str
    bytes: int
    spent_ps: int


class OffloadTransfers:
    """Offload transfers of all stages.

    Parameters
    ----------
    staged : PipelineProgram
    costs : OpCosts
    edges, cells : int
        The numbers of edges and cells that exist already.

    Attributes
    ----------
    moves : list of StashTransfer
        The transfers of each stage in sequence; they are edges behind the others.
    """

    def __init__(self, staged: PipelineProgram, costs: OpCosts, edges: int, cells: int) -> None:
        self.schedule = staged.schedule
        self.absences = [absences(staged.schedule, r) for r in range(staged.schedule.stages)]
        moving = sorted(
            {absence.stage for rank_absences in self.absences for absence in rank_absences}
        )
        self.moves: list[StashTransfer] = []
        self._number: dict[tuple[int, str], int] = {}
        self._cell: dict[int, Cell] = {}
        for stage in moving:
            stage_kind = staged.stage_kind_of(stage)
            size = sum(stage_kind.slots[slot].bytes for slot in stage_kind.stash)
            if not size:
                continue
            self._cell[stage] = (cells, 1)
            cells += staged.schedule.micro_batches + 1
            duration = costs.host_copy_ps(size, staged.schedule.rank_of[stage], f"stage {stage}")
            for kind in (STORE, FETCH):
                self._number[stage, kind] = edges + len(self.moves)
                self.moves.append(StashTransfer(stage, kind, size, duration))
        self.cells = cells

    def rows(self) -> list[list[int]]:
        """Return the rows of ``Units.edges``: a rank's copies are messages to itself."""
        return [[self.schedule.rank_of[move.stage], move.spent_ps] for move in self.moves]

    def templates(
        self, stash: Callable[[int], list[Cell]], template: Callable[[list[Numbers]], int]
    ) -> dict[tuple[int, str, bool], int]:
        """Return the templates of the beginning (False) and the end (True) of a stage's copies.

        Parameters
        ----------
        stash : callable
            A function from a stage to the places of its stash, where their times matter.
        template : callable
            A function from steps to the number of a template.
        """
        numbers = {}
        for move in self.moves:
            edge, cell = self._number[move.stage, move.kind], self._cell[move.stage]
            begin: list[Numbers] = [(MARK, COMPUTE_PORT, *cell)]
            if move.kind == STORE:
                begin += [(WAIT, STORE_STREAM, *cell) for cell in stash(move.stage)]
            begin.append((SEND, edge, *cell, STREAM[move.kind]))
            end: list[Numbers] = [
                (RECV, edge, *cell),
                *((WAIT, p, *cell) for p in (COMPUTE_PORT, COMM_PORT)),
            ]
            numbers[move.stage, move.kind, False] = template(begin)
            numbers[move.stage, move.kind, True] = template(end)
        return numbers

    def around(self, rank: int, units: Ints, templates: dict[tuple[int, str, bool], int]) -> Ints:
        """Return the programs of a rank with those of its copies between its units.

        Parameters
        ----------
        rank : int
        units : int64 array (units, 2)
            Template and micro-batch of each unit.
        templates : dict
            The templates, as :meth:`templates` returns them.
        """
        if not self.moves:
            return units
        before: dict[int, list[tuple[int, int]]] = {}
        for absence in self.absences[rank]:
            if absence.stage not in self._cell:
                continue
            for position, kind, ends in (
                (absence.stored, STORE, False),
                (absence.stored + 1, STORE, True),
                (absence.fetched, FETCH, False),
                (absence.fetched + 1, FETCH, True),
            ):
                row = (templates[absence.stage, kind, ends], absence.micro)
                before.setdefault(position, []).insert(
                    0 if ends else len(before.get(position, [])), row
                )
        rows = [
            row
            for position, unit in enumerate(units.tolist())
            for row in (*before.get(position, ()), tuple(unit))
        ]
        return np.array(rows, np.int64).reshape(-1, 2)
