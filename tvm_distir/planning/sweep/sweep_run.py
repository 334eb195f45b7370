# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a sweep: rows by structure, and one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.planning.strategies.memory_fit import is_auto
from tvm_distir.planning.workers import KILLED, Lookahead, Workers
from tvm_distir.support import SimulationError

from .configuration import Configuration
from .csv_output import CsvOutput
from .outcome import COLUMNS, OK, RowOutcome, through_pipeline
from .pipeline import ProgramPipeline
from .serving_pipeline import ServingPipeline
from .serving_rows import PlanRefusals, ServingSweep
from .sweep_result import Progress, SweepResult
from .table import Table
from .templates import Difference, Refusals, StructureSweep

Ints = npt.NDArray[np.int64]
OnProgress = Callable[[Progress], None]
LEAST_ROWS = 24
"""Fewer rows go through the pipeline individually."""
CHECKED = 1000
"""The number of predictions by structures among which a single prediction is checked."""
_FLUSH_S = 1.0
"""The interval at which finished rows are written."""


class SweepRun:
    """State of a sweep."""

    def __init__(
        self,
        pipeline: ProgramPipeline,
        table: Table,
        output: str | Path | None,
        resume: bool,
        settings: Mapping[str, Any],
        structures: bool,
        on_progress: OnProgress | None,
        workers: Workers,
    ) -> None:
        self.pipeline, self.table, self.on_progress = pipeline, table, on_progress
        self.workers = workers
        self.lookahead = Lookahead(workers, through_pipeline, pipeline)
        columns = table.columns()
        self.keys = len(columns)
        self.header = (*columns, *COLUMNS)
        self.configurations = list(zip(*columns.values(), strict=True))
        self.outcomes: list[tuple[Any, ...] | None] = [None] * table.size
        self.progress = Progress(table.size)
        self.structures = structures
        self._cache: dict[Configuration, RowOutcome] = {}
        self._refused: Refusals | PlanRefusals | None = None
        self._unwritten: list[int] = []
        self._written_s = time.monotonic()
        self.sheet = None
        if output is not None:
            self.sheet = CsvOutput(Path(output), settings, self.header, self.keys, resume=resume)

    def run(self) -> SweepResult:
        """Predict all rows, as far as they are not interrupted."""
        interrupted, differences = False, list[Difference]()
        try:
            self._again()
            self._refuse()
            if self.structures:
                differences = self._by_structures()
            rows = self._open().tolist()
            for number, row in enumerate(rows, 1):
                self._done(row, self._outcome(row, rows[number : number + self.workers.count]))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._write()
        rows = [
            (*configuration, *outcome)
            for configuration, outcome in zip(self.configurations, self.outcomes, strict=True)
            if outcome is not None
        ]
        if self.sheet is not None:
            self.sheet.finish(rows)
        complete = len(rows) == self.table.size
        return SweepResult(self.header, rows, complete, interrupted, tuple(differences))

    def _open(self) -> Ints:
        """Return the rows that are not finished."""
        return np.array([n for n, cells in enumerate(self.outcomes) if cells is None], np.int64)

    def _alike(self, rows: Ints) -> Ints:
        """Return the rows whose recomputation need not be measured row by row."""
        repeated = self.table.words["recompute"]
        return np.array([n for n in rows.tolist() if not is_auto(repeated[n])], np.int64)

    def _refuse(self) -> None:
        """Finish rows that the table itself refuses."""
        for row, why in self.table.faults.items():
            if self.outcomes[row] is None:
                self._done(row, RowOutcome(f"DIST0751 {why}"))

    def _by_structures(self) -> list[Difference]:
        """Predict rows from structures; check some of them against the full pipeline."""
        rows = self._alike(self._open())
        work: StructureSweep | ServingSweep
        if rows.size < LEAST_ROWS:
            return []
        if isinstance(self.pipeline, ServingPipeline) and self.pipeline.decide == "bytes":
            work = ServingSweep(self.pipeline, self.table)
        elif self.pipeline.train is not None:
            work = StructureSweep(self.pipeline, self.table)
        else:
            return []
        predicted: list[int] = []
        capacity = self.pipeline.system.memory_capacity_bytes
        for difference in work.run(rows, self.workers):
            for row, cells in zip(
                difference.rows.tolist(), difference.cells(capacity), strict=True
            ):
                self.outcomes[row] = cells
                self._unwritten.append(row)
            predicted += difference.rows.tolist()
            self.progress.done += difference.rows.size
            self.progress.structures = work.structures
            self._write()
        self._refused = work.refused
        self.progress.notes = work.notes
        return self._checked(predicted)

    def _checked(self, rows: list[int]) -> list[Difference]:
        """Take a row in :data:`CHECKED`, at least a single row, through the full pipeline."""
        result = []
        chosen = random.Random(len(rows)).sample(rows, -(-len(rows) // CHECKED))
        for number, row in enumerate(chosen, 1):
            cells = self.outcomes[row]
            assert cells is not None
            full = self._through_pipeline(row, map(self.table.row, chosen[number:]))
            if full.status.startswith(KILLED):
                self.progress.notes.append(f"row {row + 1} was not checked: {full.status}")
                continue
            difference = Difference(row, float(cells[0]), int(cells[1]), full)
            result.append(difference)
            self.progress.checked = len(result)
            if not difference.within:
                raise difference.error()
        return result

    def _again(self) -> None:
        """Take rows from a sweep before."""
        if self.sheet is None or not self.sheet.known:
            return
        for row, configuration in enumerate(self.configurations):
            cells = self.sheet.known.get(tuple(map(str, configuration)))
            if cells is not None:
                self.outcomes[row] = tuple(cells)
                self.progress.done += 1
                self.progress.impossible += cells[-1] != OK

    def _outcome(self, row: int, later: Sequence[int]) -> RowOutcome:
        """Return the outcome of a row, while workers begin with later ones."""
        why = None if self._refused is None else self._refused.known(row)
        if why is not None:
            return RowOutcome(why)
        configuration = self.table.row(row)
        if configuration not in self._cache:
            following = (self.table.row(other) for other in later if self._is_unknown(other))
            self._cache[configuration] = self._through_pipeline(row, following)
        outcome = self._cache[configuration]
        if self._refused is not None and outcome.status != OK:
            self._refused.learn(row, outcome.status)
        return outcome

    def _through_pipeline(self, row: int, following: Iterable[Configuration]) -> RowOutcome:
        """Return the outcome of a row, which is an error where its process was killed twice."""
        try:
            return self.lookahead.get(self.table.row(row), following)
        except SimulationError as error:
            if error.code != KILLED:
                raise
            problem = f"{KILLED} row {row + 1}: its worker process was killed twice"
            return RowOutcome(f"{problem} [{error.remedy}]")

    def _is_unknown(self, row: int) -> bool:
        """Return whether the outcome of a row is not known from another row."""
        refused = self._refused is not None and self._refused.known(row) is not None
        return not refused and self.table.row(row) not in self._cache

    def _done(self, row: int, outcome: RowOutcome) -> None:
        self.outcomes[row] = outcome.cells(self.pipeline.system.memory_capacity_bytes)
        self._unwritten.append(row)
        self.progress.done += 1
        self.progress.impossible += outcome.status != OK
        if time.monotonic() - self._written_s >= _FLUSH_S:
            self._write()

    def _write(self) -> None:
        """Write the outcomes since the last call, and report the progress."""
        if self.sheet is not None:
            self.sheet.add(
                (*self.configurations[row], *(self.outcomes[row] or ())) for row in self._unwritten
            )
        self._unwritten.clear()
        self._written_s = time.monotonic()
        if self.on_progress is not None:
            self.on_progress(self.progress)
