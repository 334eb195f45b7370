# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict the rows of a table by their templates."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance import Profile, Program, grouped
from tvm_distir.planning.workers import KILLED, Lookahead, Workers
from tvm_distir.support import REFUSALS, SimulationError, lists_by_key

from .outcome import BOUNDS, OK, STRUCTURE, RowOutcome, reason
from .partition import RowGroup, TemplateLearner
from .pipeline import ProgramPipeline
from .predictor import Predictor
from .symbols import Symbols
from .table import Table

Ints = npt.NDArray[np.int64]

BOUND = 0.02
"""The maximum difference between a prediction by a structure and that of the full pipeline, as a
share."""


@dataclass
class TemplateMatch:
    """Rows predicted by a template."""

    rows: Ints
    time_ps: Ints
    peak_bytes: Ints
    bound: Ints

    def cells(self, capacity_bytes: int) -> list[tuple[Any, ...]]:
        """Return the values of :data:`.outcome.COLUMNS`."""
        times = (self.time_ps / PICOSECONDS).tolist()
        fits = (self.peak_bytes <= capacity_bytes).astype(np.int64).tolist()
        bounds = [BOUNDS[position] for position in self.bound.tolist()]
        sources, states = [STRUCTURE] * len(times), [OK] * len(times)
        columns = (times, self.peak_bytes.tolist(), fits, bounds, sources, states)
        return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class Difference:
    """Difference between a prediction by template and a prediction by the full pipeline.

    Attributes
    ----------
    row : int
    time_s, peak_bytes
        The prediction by its structure.
    full : RowOutcome
        The outcome of the full pipeline.
    """

    row: int
    time_s: float
    peak_bytes: int
    full: RowOutcome

    @property
    def equal(self) -> bool:
        """Return whether both are the same to the picosecond and the byte."""
        result = self.full
        return (result.status, result.time_s, result.peak_bytes) == (
            OK,
            self.time_s,
            self.peak_bytes,
        )

    @property
    def shares(self) -> tuple[float, float]:
        """Return the differences of time and memory, as shares of the pipeline's."""
        result = self.full
        return self.time_s / result.time_s - 1, self.peak_bytes / result.peak_bytes - 1

    @property
    def within(self) -> bool:
        """Return whether they differ by no more than :data:`BOUND`."""
        return self.full.status == OK and max(map(abs, self.shares)) <= BOUND

    def error(self) -> SimulationError:
        """Return the error of too large a difference."""
        result = self.full
        problem = (
            result.status
            if result.status != OK
            else f"{result.time_s} s, {result.peak_bytes} bytes"
        )
        return SimulationError(
            "DIST0753",
            f"its template predicts {self.time_s} s and {self.peak_bytes} bytes, the full pipeline "
            f"{problem}",
            location=f"row {self.row + 1}",
            remedy="Report it, or run every row through the pipeline with --row-by-row.",
        )


class Refusals:
    """Refusals of rows whose sizes axes do not divide, reported once per sizes."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._cache: dict[Hashable, str] = {}

    def _key(self, row: int) -> Hashable:
        culprits = self.symbols.culprits(row)
        return (self.symbols.keys[row], culprits) if culprits else None

    def known(self, row: int) -> str | None:
        """Return why a row is impossible, where an equal row was."""
        return self._cache.get(self._key(row))

    def learn(self, row: int, why: str) -> None:
        """Note why a row is impossible."""
        key = self._key(row)
        if key is not None:
            self._cache[key] = why


class StructureSweep:
    """Sweep that predicts rows by templates.

    Parameters
    ----------
    pipeline : ProgramPipeline
        The pipeline of training steps.
    table : Table

    Attributes
    ----------
    structures : int
        Found so far.
    refused : Refusals
    notes : list of str
        The reasons why rows have no structure.
    """

    def __init__(self, pipeline: ProgramPipeline, table: Table) -> None:
        self.pipeline, self.table = pipeline, table
        self.symbols = Symbols.of(pipeline, table)
        self.refused = Refusals(self.symbols)
        self.structures = 0
        self.notes: list[str] = []

    def run(self, rows: Ints, workers: Workers) -> Iterator[TemplateMatch]:
        """Predict rows; the remaining rows have no structure, or are impossible."""
        by_key = lists_by_key((self.symbols.keys[row], row) for row in rows.tolist())
        groups = [np.array(members, np.int64) for members in by_key.values()]
        lookahead = Lookahead(workers, learn, self.pipeline)
        tasks: dict[int, LearningTask] = {}

        def task(number: int) -> LearningTask:
            if number not in tasks:
                members = groups[number]
                tasks[number] = LearningTask(self.symbols.some(members), self.table.some(members))
            return tasks[number]

        for number, members in enumerate(groups):
            following = (task(later) for later in range(number + 1, len(groups)))
            try:
                parts, refusals = lookahead.get(task(number), following)
            except SimulationError as error:
                if error.code != KILLED:
                    raise
                self.notes.append(f"{members.size} rows one by one: {reason(error)}")
                continue
            finally:
                del tasks[number]
            for row, why in refusals:
                self.refused.learn(int(members[row]), why)
            for part in parts:
                if part.why:
                    self.notes.append(f"{part.rows.size} rows one by one: {part.why}")
                if part.structure is None:
                    continue
                self.structures += 1
                predictor = Predictor(
                    self.table, self.symbols, part.structure, self.pipeline.system
                )
                for match in predictor.predict(members[part.rows]):
                    yield TemplateMatch(*match)


@dataclass(eq=False)
class LearningTask:
    """Rows that may have the same structure, whose programs are sampled.

    Attributes
    ----------
    symbols : Symbols
    table : Table
    """

    symbols: Symbols
    table: Table


Learned = tuple[list[RowGroup], list[tuple[int, str]]]
"""The groups of the rows of a task, and the samples that are impossible with the reasons."""


def learn(pipeline: ProgramPipeline, task: LearningTask) -> Learned:
    """Partition the rows of a task into structures."""
    profile = Profile.resolve(pipeline.system.kernels)
    refusals: list[tuple[int, str]] = []

    def sample(row: int) -> Program | None:
        """Return the program of a row, grouped into kernels; None where it is impossible."""
        try:
            program = pipeline.program(task.table.row(row))
        except REFUSALS as error:
            refusals.append((row, reason(error)))
            return None
        return grouped(program, profile)

    rows = np.arange(task.table.size, dtype=np.int64)
    return list(TemplateLearner(task.symbols, sample).parts(rows)), refusals
