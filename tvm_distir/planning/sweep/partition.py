# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Partition a table into structures: like rows, represented by samples.

Placements that a plan leaves open minimize the communication, so they may change with sizes. Where
samples differ in their ops, rows are partitioned by the size that distinguishes them, and sampled
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.performance import Program, ProgramTemplate, numbers_of
from tvm_distir.support import SimulationError

from .samples import best_split, spanning
from .symbols import Symbols

Ints = npt.NDArray[np.int64]

DEEPEST = 12
"""The maximum depth to which rows are partitioned."""
FEW = 3
"""Samples of rows that differ in their micro-batches only."""
WORTH = 3
"""A structure is worth its samples for so many times as many rows."""
REFUSED = "refused"


@dataclass
class RowGroup:
    """Rows of a table.

    Attributes
    ----------
    rows : int64 array
    structure : ProgramTemplate, optional
        The template of all of them; None: each goes through the pipeline.
    refused : bool
        Whether all samples were impossible.
    why : str
        The reason why there is no structure; empty where there are too few rows.
    """

    rows: Ints
    structure: ProgramTemplate | None = None
    refused: bool = False
    why: str = ""


class TemplateLearner:
    """Learner of program structures.

    Parameters
    ----------
    symbols : Symbols
    sample : callable giving Program or None
        Takes a row through the pipeline, and groups its ops; None where it is impossible.
    """

    def __init__(self, symbols: Symbols, sample: Callable[[int], Program | None]) -> None:
        self.symbols, self._sample = symbols, sample
        self._programs: dict[int, Program | None] = {}
        self._kinds: dict[int, str] = {}
        self._features = np.concatenate((symbols.values, symbols.hints)).astype(np.float64)

    def parts(self, rows: Ints) -> Iterator[RowGroup]:
        """Yield the parts of rows that have the same key."""
        yield from self._parts(rows, DEEPEST)

    def _parts(self, rows: Ints, depth: int) -> Iterator[RowGroup]:
        position = {int(row): number for number, row in enumerate(rows)}
        known = [position[row] for row in self._kinds if row in position]
        positions = spanning(self.symbols.values[:, rows], known)
        if positions is None or rows.size < WORTH * len(positions):
            for equal_rows in self._equal(rows):
                yield self._single(equal_rows)
            return
        samples = [int(rows[sample]) for sample in positions]
        kinds = [self._kind(row) for row in samples]
        if len(set(kinds)) == 1:
            yield self._part(rows, samples, kinds[0])
            return
        below = best_split(self._features[:, rows], positions, kinds) if depth else None
        if below is None:
            yield RowGroup(rows, why="ops differ between rows that have equal sizes")
            return
        for part in (below, ~below):
            yield from self._parts(rows[part], depth - 1)

    def _equal(self, rows: Ints) -> list[Ints]:
        """Return the rows of equal sizes, which differ in their micro-batches.

        Steps of a single micro-batch, which accumulate nothing, are separate.
        """
        sizes = self.symbols.values[:, rows]
        sizes[-1] = sizes[-1] > 1
        _, number = np.unique(sizes, axis=1, return_inverse=True)
        number = number.ravel()
        return [rows[number == group] for group in range(int(number.max(initial=0)) + 1)]

    def _single(self, rows: Ints) -> RowGroup:
        """Return the rows of equal sizes: a few numbers of micro-batches tell of the others."""
        micros, first = np.unique(self.symbols.values[-1, rows], return_index=True)
        chosen = np.unique(np.linspace(0, micros.size - 1, FEW).astype(np.int64))
        samples = [int(row) for row in rows[first[chosen]]]
        if rows.size <= len(samples):
            return RowGroup(rows)
        kinds = {self._kind(row) for row in samples}
        if len(kinds) > 1:
            return RowGroup(rows, why="ops depend on the number of micro-batches")
        return self._part(rows, samples, kinds.pop())

    def _kind(self, row: int) -> str:
        if row not in self._kinds:
            program = self._programs[row] = self._sample(row)
            self._kinds[row] = REFUSED if program is None else numbers_of(program).skeleton
        return self._kinds[row]

    def _part(self, rows: Ints, samples: Sequence[int], kind: str) -> RowGroup:
        if kind == REFUSED:
            return RowGroup(rows, refused=True)
        programs = [program for program in map(self._programs.get, samples) if program is not None]
        try:
            sizes = self.symbols.values[:, samples].T.tolist()
            return RowGroup(rows, ProgramTemplate.of(programs, sizes))
        except SimulationError as error:
            return RowGroup(rows, why=str(error))
