# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents the sharding problem of a function: variables over all axes, tables over pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.placement import Labels
from tvm_distir.core.ops.dims import nominal
from tvm_distir.core.propagation.graph.graph import Graph
from tvm_distir.core.propagation.module import PlacedModule
from tvm_distir.core.propagation.reach import ReachableAxes
from tvm_distir.core.redistribution.matrix import PriceMatrix
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Factors

from .costs import MeshPrices
from .in_flight import InFlightActivations
from .overlap import OverlapDiscount
from .states import CallStrategies, OpStates, all_forms, pinned

Bytes = npt.NDArray[np.int64]
Interned = tuple[int, int]
"""Number of a table, and the minimum taken out of it."""

End = tuple[CallStrategies, int]
"""States of a node and its variable (-1: a single state)."""

Side = tuple[tuple[Labels, ...], int]
"""Placements in which a node gives or needs a value, by state, and its variable."""


@dataclass
class ShardingProblem:
    """Variables and tables of a function, with its calls spliced in.

    Attributes
    ----------
    domains : list of int
    factors : dict of scope to table number
    constant : int
    feasible : bool
    ends : list of End
        Per node; of a call node that of no states.
    holdings : list of LiveRange
        Of the function itself, without its callees.
    begins : list of int
        Per node when it begins; at the end when the function ends.
    spliced : dict of int to (ShardingProblem, int)
        Per call node the callee's, and its first variable here.
    lasts : list of int
        Per parameter when it is read last.
    """

    domains: list[int] = field(default_factory=list)
    factors: Factors = field(default_factory=dict)
    constant: int = 0
    feasible: bool = True
    ends: list[End] = field(default_factory=list)
    holdings: list[LiveRange] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    spliced: dict[int, tuple[ShardingProblem, int]] = field(default_factory=dict)
    lasts: list[int] = field(default_factory=list)


class LiveRange(NamedTuple):
    """Bytes that a value takes in a placement, and when.

    ``first`` and ``last`` count the nodes of the function and of all that it calls, in order;
    ``bytes`` has those of a device, by the state of the single variable of ``scope`` or the
    states of its two variables (none: a scalar array).
    """

    scope: tuple[int, ...]
    bytes: npt.NDArray[np.int64]
    first: int
    last: int


NO_STATES = CallStrategies(())


class Shared:
    """State shared by the problems of a module's functions.

    Parameters
    ----------
    module : PlacedModule
    reach : mapping of str to ReachableAxes
    prices : MeshPrices
        Of the entry's mesh.
    axes : sequence of int
        Numbers of its axes among those of the module.
    tables : Tables
    updates : mapping of int to int
        Of the entry, results that must lie as a parameter does: result number to parameter's.
    flight : InFlightActivations
        What a rank stores of the entry beside a micro-batch.
    hiding : OverlapDiscount
        How much counts of what is sent.
    """

    def __init__(
        self,
        module: PlacedModule,
        reach: Mapping[str, ReachableAxes],
        prices: MeshPrices,
        axes: Sequence[int],
        tables: Tables,
        updates: Mapping[int, int],
        flight: InFlightActivations,
        hiding: OverlapDiscount,
    ) -> None:
        self.module, self.reach, self.prices, self.tables = module, reach, prices, tables
        self.axes, self.updates, self.flight, self.hiding = axes, updates, flight, hiding
        self.ops = OpStates(prices)
        self.held: dict[Any, tuple[tuple[Labels, ...], Interned, list[Interned]]] = {}
        self.sizes: dict[Any, Bytes] = {}
        self._tables: dict[Any, Interned] = {}
        self._ends: dict[Any, CallStrategies] = {}

    def table(self, key: Any, make: Callable[[], Bytes]) -> Interned:
        """Return the table of a key; equal tables are made once."""
        table_ref = self._tables.get(key)
        if table_ref is None:
            table_ref = self._tables[key] = self.tables.intern(make())
        return table_ref

    def forms_of(self, g: Graph, v: int) -> PriceMatrix:
        """Return the placements of a value."""
        value = g.values[v]
        dtype = "uint8" if value.ty is None else str(value.ty.dtype)
        return self.prices.forms(tuple(nominal(n) for n in value.shape), dtype)

    def ends_of(self, kind: Any, matrix: PriceMatrix, *key: Any) -> CallStrategies:
        """Return the states of a boundary node over some placements; equal ones share an object."""
        known = (kind, id(matrix), *key)
        strategies = self._ends.get(known)
        if strategies is None:
            partial, pin = key
            forms = all_forms(matrix.placements, partial=partial)
            if pin is not None:  # along an axis of a single device all placements are the same
                sizes = self.prices.sizes
                forms = pinned(forms, [x if n > 1 else None for x, n in zip(pin, sizes)])
            strategies = self._ends[known] = kind(forms)
        return strategies


class Assembly:
    """Sharding problem of a function under construction.

    Parameters
    ----------
    shared : Shared
    g : Graph
    """

    def __init__(self, shared: Shared, g: Graph) -> None:
        self.shared, self.g, self.net = shared, g, ShardingProblem()
        self.reach = shared.reach[g.key]
        self.axes = shared.axes
        self.whole = (False,) * len(self.axes)

    def partial(self, v: int) -> tuple[bool, ...]:
        """Return along which axes a value may be a partial sum."""
        return tuple([bool(self.reach.partial[a][v]) for a in self.axes])

    def variable(self, states: CallStrategies) -> End:
        """Add a node with some states."""
        net = self.net
        if not states.items:
            net.feasible = False
        if len(states.items) <= 1:
            net.constant += int(states.costs.sum()) * self.g.repeat
            return states, -1
        net.domains.append(len(states.items))
        end = states, len(net.domains) - 1
        if states.costs.any():
            key = ("work", id(states), self.g.repeat)
            table = self.shared.table(key, lambda: states.costs * self.g.repeat)
            self.put((end[1],), table)
        return end

    def inner(self, k: int, number: int, *, result: bool) -> End:
        """Return the end of a call's operand or result, taken from the callee's boundary node."""
        inside, first = self.net.spliced[k]
        callee = self.shared.module.graphs[self.g.nodes[k].callee]
        states, variable = inside.ends[(callee.rets if result else callee.params)[number]]
        return states, variable + first if variable >= 0 else -1

    def put_pair(self, first: int, second: int, table: tuple[int, int]) -> None:
        """Add a table with layout (first, second); a variable of -1 has a single state."""
        number, low = table
        tables = self.shared.tables
        if first < 0 or second < 0:
            scope = tuple([u for u in (first, second) if u >= 0])
            number, low2 = tables.intern(tables.array(number).reshape(-1))
            if scope:
                self.put(scope, (number, low + low2))
            else:
                self._constant(number, low + low2)
        elif first == second:
            number, low2 = tables.intern(tables.array(number).diagonal().copy())
            self.put((first,), (number, low + low2))
        elif first > second:
            number, low2 = tables.intern(tables.array(number).T.copy())
            self.put((second, first), (number, low + low2))
        else:
            self.put((first, second), table)

    def _constant(self, number: int, low: int) -> None:
        self.net.constant += low
        if int(self.shared.tables.array(number).min()) >= INFINITE:
            self.net.feasible = False

    def put(self, scope: tuple[int, ...], table: tuple[int, int]) -> None:
        """Add a table over sorted variables."""
        number, low = table
        self.net.constant += low
        old = self.net.factors.get(scope)
        if old is not None:
            number, low = self.shared.tables.add(old, number)
            self.net.constant += low
        self.net.factors[scope] = number
