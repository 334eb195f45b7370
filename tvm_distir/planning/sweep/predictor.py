# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict many rows at once from their structure: formulas, costs and units."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import System
from tvm_distir.performance import Batch, Mesh, Peaks, Profile, Program, ProgramTemplate

from .symbols import Symbols
from .table import Table

Ints = npt.NDArray[np.int64]

MOST_ROWS = 8192
"""Rows that are looked at together."""


class Predicted(NamedTuple):
    """Predictions of some rows.

    Attributes
    ----------
    rows : int64 array
    time_ps, peak_bytes, bound : int64 arrays
        Bounds are places in :data:`.outcome.BOUNDS`.
    """

    rows: Ints
    time_ps: Ints
    peak_bytes: Ints
    bound: Ints


class Predictor:
    """Predictor of the rows of a structure.

    Parameters
    ----------
    table : Table
    symbols : Symbols
    structure : ProgramTemplate
    system : System
    """

    def __init__(
        self, table: Table, symbols: Symbols, structure: ProgramTemplate, system: System
    ) -> None:
        self.table, self.symbols, self.structure = table, symbols, structure
        self.system = system
        self.blocking = Profile.resolve(system.kernels).blocking

    def predict(self, rows: Ints) -> Iterator[Predicted]:
        """Predict rows; those whose numbers are not integers, or too large, are left out."""
        structure = self.structure
        peaks = Peaks(structure.program, structure.numbers, structure.which)
        micros = self.table.numbers["micro_batches"][rows]
        for count in np.unique(micros).tolist():
            program = self._of(count)
            batch = Batch(program, self.system, structure.numbers, structure.which, self.blocking)
            selected = rows[micros == count]
            for at in range(0, selected.size, MOST_ROWS):
                yield self._predict(batch, peaks, selected[at : at + MOST_ROWS])

    def _predict(self, batch: Batch, peaks: Peaks, rows: Ints) -> Predicted:
        quantities, full = self.structure.at(self.symbols.values[:, rows])
        rows, quantities = rows[full], quantities[:, full]
        axes = np.stack([self.table.numbers[axis][rows] for axis in ("dp", "tp")])
        sizes, shape = np.unique(axes, axis=1, return_inverse=True)
        shapes = [meshes_of(batch.program, dp, tp) for dp, tp in sizes.T.tolist()]
        ran = batch.run(quantities, shapes, shape.ravel())
        peak = peaks.of(quantities, batch.micro_batches)
        fits = ran.fits
        return Predicted(rows[fits], ran.time_ps[fits], peak[fits], ran.bound[fits])

    def _of(self, micro_batches: int) -> Program:
        """Return the structure's program with so many micro-batches."""
        program = self.structure.program
        assert program.staged is not None
        schedule = dataclasses.replace(program.staged.schedule, micro_batches=micro_batches)
        staged = dataclasses.replace(program.staged, schedule=schedule)
        return dataclasses.replace(program, staged=staged)


def meshes_of(program: Program, dp: int, tp: int) -> list[Mesh]:
    """Return consecutive meshes of the ranks of a program with these axis sizes."""
    known = {"dp": dp, "tp": tp}
    meshes = []
    for rank, mesh in enumerate(program.meshes):
        shape = tuple(known.get(axis, 1) for axis in mesh.axes)
        count = math.prod(shape)
        ids = tuple(range(rank * count, (rank + 1) * count))
        meshes.append(Mesh(mesh.name, mesh.axes, shape, ids))
    return meshes
