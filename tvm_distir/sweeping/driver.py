# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``sweep``: a step predicted for each row of a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError, nearest
from ..ir.rewrite import collector_paused
from ..system import System
from .configuration import Configuration
from .outcome import COLUMNS, OK, Outcome, through_pipeline
from .pipeline import CUTS, Pipeline, check_model_given
from .sheet import Sheet, csv_text
from .table import Table, grid_table, read_table

Rows = str | Path | Mapping[str, Sequence[Any]]

OnProgress = Callable[["Progress"], None]
_FLUSH_S = 1.0
"""How often finished rows are written."""


@dataclass
class Progress:
    """How far a sweep is.

    Attributes
    ----------
    rows, done, impossible : int
        All rows; those that are finished; those of them without a prediction.
    """

    rows: int
    done: int = 0
    impossible: int = 0


@dataclass
class SweepResult:
    """Predictions of the rows of a table.

    Attributes
    ----------
    header : tuple of str
        Names of columns: the configuration, what else stood in the rows, and
        :data:`.outcome.COLUMNS`.
    rows : list of tuple
        Finished rows, in the order of the table; cells that do not apply are empty texts.
    complete : bool
        Whether all rows are there.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    header: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    complete: bool = True
    interrupted: bool = False

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """Header and rows as CSV."""
        return csv_text([self.header, *self.rows])


def sweep(
    model: str,
    rows: Rows,
    system: System | str,
    *,
    train: Mapping[str, Any] | None = None,
    tensor: str = "",
    cuts: str = "layers",
    dims: Mapping[str, int] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> SweepResult:
    """Predict the step of a model in many configurations.

    Parameters
    ----------
    model : str
        MODEL string: a file, or ``zoo:NAME?key=value,...``, whose keys rows may give.
    rows : path, or mapping of str to sequence
        A CSV file, a configuration a row; or values by column, of which all combinations are
        taken. Columns are ``tp``, ``pp``, ``dp``, ``micro_batch``, ``micro_batches`` or
        ``global_batch``, ``schedule``, ``chunks``, ``recompute``, ``zero``,
        ``sequence_parallel``, keys of the model, and ``dim:NAME``; what is not given is 1, or
        none.
    system : System or str
    train : mapping, optional
        Keywords of ``td.train_step``; None: forward steps.
    tensor : str
        Strategy of ``tp``: ``megatron`` for transformers of the zoo, else ``tensor_parallel``.
    cuts : str
        ``layers``: stages of equally many layers, where the model has repeated ones; ``work``: as
        ``td.train_step`` cuts.
    dims : mapping of str to int, optional
        Sizes of symbolic dims for all rows.
    output : path, optional
        CSV file that gets rows as they are found.
    resume : bool
        Go on with what stands there.
    settings : mapping, optional
        What else predictions depend on, for ``resume`` to compare.
    on_progress : callable, optional
        Told now and then how far the sweep is.

    Raises
    ------
    SimulationError
        DIST0750 for rows that cannot be read.
    UsageError
        DIST0151 for a model whose batch stands in it, an ``output`` with other rows; DIST0152 for
        ``cuts`` that are none; DIST0153.
    """
    if cuts not in CUTS:
        raise UsageError("DIST0152", f'"{cuts}" cuts nothing', place="cuts",
                         remedy=nearest(cuts, CUTS))  # fmt: skip
    known = System.known(system)
    assert known is not None
    check_model_given(model)
    pipeline = Pipeline(model, known, train, tensor, cuts, dims=dims or {})
    if isinstance(rows, Mapping):
        axes = {name: [str(value) for value in values] for name, values in rows.items()}
        table = grid_table(axes, pipeline.keys)
    else:
        table = read_table(rows, pipeline.keys)
    table.show(pipeline.usual)
    with collector_paused():
        return _Sweep(pipeline, table, output, resume, settings or {}, on_progress).run()


class _Sweep:
    """One sweep."""

    def __init__(
        self,
        pipeline: Pipeline,
        table: Table,
        output: str | Path | None,
        resume: bool,
        settings: Mapping[str, Any],
        on_progress: OnProgress | None,
    ) -> None:
        self.pipeline, self.table, self.on_progress = pipeline, table, on_progress
        columns = table.columns()
        self.keys = len(columns)
        self.header = (*columns, *COLUMNS)
        self.given = list(zip(*columns.values(), strict=True))
        self.found: list[tuple[Any, ...] | None] = [None] * table.size
        self.progress = Progress(table.size)
        self._known: dict[Configuration, Outcome] = {}
        self._unwritten: list[int] = []
        self._written_s = time.monotonic()
        self.sheet = None
        if output is not None:
            self.sheet = Sheet(Path(output), settings, self.header, self.keys, resume=resume)

    def run(self) -> SweepResult:
        interrupted = False
        try:
            self._again()
            for row in range(self.table.size):
                if self.found[row] is None:
                    self._done(row, self._outcome(row))
        except KeyboardInterrupt:
            interrupted = True
        self._write()
        rows = [
            (*given, *found)
            for given, found in zip(self.given, self.found, strict=True)
            if found is not None
        ]
        if self.sheet is not None:
            self.sheet.finish(rows)
        return SweepResult(self.header, rows, len(rows) == self.table.size, interrupted)

    def _again(self) -> None:
        """Take rows from a sweep before."""
        if self.sheet is None or not self.sheet.known:
            return
        for row, given in enumerate(self.given):
            cells = self.sheet.known.get(tuple(map(str, given)))
            if cells is not None:
                self.found[row] = tuple(cells)
                self.progress.done += 1
                self.progress.impossible += cells[-1] != OK

    def _outcome(self, row: int) -> Outcome:
        if row in self.table.faults:
            return Outcome(f"DIST0751 {self.table.faults[row]}")
        configuration = self.table.row(row)
        if configuration not in self._known:
            self._known[configuration] = through_pipeline(self.pipeline, configuration)
        return self._known[configuration]

    def _done(self, row: int, outcome: Outcome) -> None:
        self.found[row] = outcome.cells(self.pipeline.system.memory_capacity_bytes)
        self._unwritten.append(row)
        self.progress.done += 1
        self.progress.impossible += outcome.status != OK
        if time.monotonic() - self._written_s >= _FLUSH_S:
            self._write()

    def _write(self) -> None:
        """Write what was found since the last time, and tell how far it is."""
        if self.sheet is not None:
            self.sheet.add((*self.given[row], *(self.found[row] or ())) for row in self._unwritten)
        self._unwritten.clear()
        self._written_s = time.monotonic()
        if self.on_progress is not None:
            self.on_progress(self.progress)
