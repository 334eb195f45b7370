# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Caches cost tables between propagations, since a search decides similar modules.

A propagation that takes tables owns them; tables that are not returned are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tvm_distir.core.propagation.graph.graph import Axis

from .cost import Costs
from .tables import CostTables

MOST_SETS = 4
"""Sets of tables kept, those given back last."""

MOST_PIECES = 1 << 16
MOST_ENTRIES = 1 << 21
"""Remembered pieces, and numbers in all tables, of a set that is kept: some 32 MiB each."""

MOST_HELD = 1 << 18
"""Numbers in the eliminations that are kept with it: 2 MiB. Where there are more none is."""

_kept: dict[tuple[Costs, tuple[Axis, ...]], CostTables] = {}
_turn = threading.Lock()


def take(costs: Costs, axes: Sequence[Axis]) -> CostTables:
    """Take tables at some costs for exclusive use."""
    with _turn:
        known = _kept.pop((costs, tuple(axes)), None)
    return CostTables(costs, axes) if known is None else known


def give_back(cost_tables: CostTables) -> None:
    """Return tables to the cache; of eliminations, only small ones stay."""
    if cost_tables.size > MOST_PIECES or cost_tables.tables.entries > MOST_ENTRIES:
        return
    if cost_tables.tables.held > MOST_HELD:
        cost_tables.tables.forget()
    with _turn:
        _kept[cost_tables.costs, tuple(cost_tables.axes)] = cost_tables
        while len(_kept) > MOST_SETS:
            _kept.pop(next(iter(_kept)))
