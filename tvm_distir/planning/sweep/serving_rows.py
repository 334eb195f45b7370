# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict rows of serving steps by the surfaces of their plans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.surface import Surface
from tvm_distir.planning.workers import Workers
from tvm_distir.support import REFUSALS, SimulationError, lists_by_key

from .outcome import reason
from .serving_pipeline import PAST, ServedRow, ServingPipeline
from .table import Table
from .templates import TemplateMatch

Ints = npt.NDArray[np.int64]

LEAST_OF_PLAN = 24
"""Rows of a plan that are worth the samples of its surface."""
_AT_ONCE = 8192


class PlanRefusals(dict[int, str]):
    """Reasons why plans are not possible, by row; see :class:`.templates.Refusals`."""

    known = dict[int, str].get
    learn = dict[int, str].__setitem__


class ServingSweep:
    """Sweep that predicts rows by surfaces: many requests and contexts of a few plans.

    Parameters
    ----------
    pipeline : ServingPipeline
    table : Table

    Attributes
    ----------
    structures : int
        The surfaces so far.
    refused : PlanRefusals
    notes : list of str
        The reasons why rows have no surface.
    """

    def __init__(self, pipeline: ServingPipeline, table: Table) -> None:
        self.pipeline, self.table = pipeline, table
        self.structures = 0
        self.refused = PlanRefusals()
        self.notes: list[str] = []

    def run(self, rows: Ints, workers: Workers) -> Iterator[TemplateMatch]:
        """Predict rows; the remaining rows have too few others of their plan, or no surface."""
        for group in self._groups(rows):
            if group.size < LEAST_OF_PLAN:
                continue
            try:
                step = self.pipeline.served_row(self.table.row(int(group[0])))
                if _positions_vary(step.served):
                    self.notes.append(
                        f"{group.size} rows one by one: the model has learned positions; "
                        "give positions="
                    )
                    continue
                matches = list(self._predicted(group, step))
            except REFUSALS as error:
                why = reason(error)
                if isinstance(error, SimulationError):
                    self.notes.append(f"{group.size} rows one by one: {why}")
                else:
                    self.refused.update(dict.fromkeys(group.tolist(), why))
                continue
            self.structures += 1
            yield from matches

    def _groups(self, rows: Ints) -> Iterator[Ints]:
        """Yield the rows that differ in requests and tokens in caches only."""
        table = self.table
        columns = [column for name, column in table.sizes.items() if name != PAST]
        columns += [*table.words.values()]
        numbers = [c.tolist() for name, c in table.numbers.items() if name != "micro_batch"]
        keys = list(zip(*columns, *numbers, strict=True))
        by_key = lists_by_key((keys[row], row) for row in rows.tolist())
        yield from (np.array(members, np.int64) for members in by_key.values())

    def _predicted(self, rows: Ints, step: ServedRow) -> Iterator[TemplateMatch]:
        """Yield the predictions of the rows of a plan."""
        self.table.row(int(rows[0])).check(training=False)
        surface = Surface(step.served, step.seq)
        rows = rows[self.table.global_batch[rows] % step.served.pools == 0]
        batch = self.table.global_batch[rows]
        past = np.full(rows.size, step.past, np.int64)
        if PAST in self.table.sizes:
            past = np.array([int(self.table.sizes[PAST][row]) for row in rows], np.int64)
        for at in range(0, rows.size, _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            costs = surface.costs(batch[part], past[part])
            yield TemplateMatch(rows[part], costs.time_ps, costs.peak_bytes, costs.bound)


def _positions_vary(served: ServedModel) -> bool:
    """Return whether surfaces have more learned positions than steps."""
    return served.text(served.pools, 1, 0) != served.step_text(served.pools, 1, 0)
