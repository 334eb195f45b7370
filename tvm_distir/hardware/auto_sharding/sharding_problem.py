# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents the sharding problem of a function: variables over all axes, tables over pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir import Labels, P, R
from tvm_distir.core.propagation import (
    End,
    Graph,
    Interned,
    LabellingProblem,
    OpStrategy,
    PlacedModule,
    ReachableAxes,
    Strategies,
    StrategyTable,
    TableStore,
)
from tvm_distir.core.redistribution import CostMatrix
from tvm_distir.core.solver import Tables

from .in_flight import InFlightActivations
from .mesh_costs import MeshCosts
from .overlap import OverlapDiscount
from .states import OpStates, all_layouts, pinned

Bytes = npt.NDArray[np.int64]
Side = tuple[tuple[Labels, ...], int]
"""Placements in which a node gives or needs a value, by state, and its variable."""


@dataclass
class ShardingProblem(LabellingProblem):
    """Problem of a function with its calls expanded, and the live ranges of its values.

    Attributes
    ----------
    holdings : list of LiveRange
        The live ranges of the function itself, without its callees.
    begins : list of int
        The time at which each node begins; the last entry is the end of the function.
    callees : dict of int to (ShardingProblem, int)
        The callee's problem of each call node, and its first variable here.
    lasts : list of int
        The time at which each parameter is last read.
    """

    holdings: list[LiveRange] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    callees: dict[int, tuple[ShardingProblem, int]] = field(default_factory=dict)
    lasts: list[int] = field(default_factory=list)


class LiveRange(NamedTuple):
    """Bytes that a value takes in a placement, and when.

    ``first`` and ``last`` count the nodes of the function and of all that it calls, in order;
    ``bytes`` has those of a device, by the state of the single variable of ``scope`` or the
    states of its two variables (none: a scalar array). ``is_single`` is whether the bytes depend on
    one placement on every mesh; those of two placements may be 0 on another mesh.
    """

    scope: tuple[int, ...]
    bytes: npt.NDArray[np.int64]
    first: int
    last: int
    is_single: bool


NO_STATES = Strategies(-1, ())
Value = TypeVar("Value")


def once(known: dict[Hashable, Value], key: Hashable, make: Callable[[], Value]) -> Value:
    """Return what is known of a key, which is computed where nothing is."""
    value = known.get(key)
    if value is None:
        value = known[key] = make()
    return value


class Shared:
    """State shared by the problems of a module's functions.

    Parameters
    ----------
    module : PlacedModule
    reach : mapping of str to ReachableAxes
    mesh_costs : MeshCosts
        The costs on the entry's mesh.
    axes : sequence of int
        Numbers of its axes among those of the module.
    tables : Tables
    updates : mapping of int to int
        The results of the entry that must be placed as a parameter is: result number to parameter
        number.
    flight : InFlightActivations
        The activations that a rank stores of the entry beside a micro-batch.
    overlap_discount : OverlapDiscount
        The share of communication that counts.
    """

    def __init__(
        self,
        module: PlacedModule,
        reach: Mapping[str, ReachableAxes],
        mesh_costs: MeshCosts,
        axes: Sequence[int],
        tables: Tables,
        updates: Mapping[int, int],
        flight: InFlightActivations,
        overlap_discount: OverlapDiscount,
    ) -> None:
        self.module, self.reach, self.mesh_costs = module, reach, mesh_costs
        self.axes, self.updates, self.flight = axes, updates, flight
        self.overlap_discount = overlap_discount
        self.store, self.strategies = TableStore(tables), StrategyTable(mesh_costs.sizes)
        self.ops = OpStates(mesh_costs, self.strategies)
        self.held: dict[Hashable, tuple[tuple[Labels, ...], Interned, list[Interned]]] = {}
        self.sizes: dict[Hashable, Bytes] = {}
        self._tables: dict[Hashable, Interned] = {}
        self._ends: dict[Hashable, Strategies] = {}

    def table(self, key: Hashable, make: Callable[[], Bytes]) -> Interned:
        """Return the table of a key; equal tables are made once."""
        return once(self._tables, key, lambda: self.store.intern(make()))

    def discounted(self, overlap_discount: OverlapDiscount) -> Shared:
        """Return the same state with another share of communication that counts."""
        other = copy.copy(self)
        other.overlap_discount = overlap_discount
        return other

    def ends_of(
        self,
        strategy: Callable[[int], OpStrategy],
        matrix: CostMatrix,
        partial: Sequence[bool],
        pin: Sequence[int | None] | None,
    ) -> Strategies:
        """Return the strategies of a boundary node over some placements, from a label's."""
        key = (strategy, id(matrix), partial, pin)

        def make() -> Strategies:
            layouts = all_layouts(matrix.placements, partial=partial)
            if pin is not None:  # along an axis of a single device all placements are the same
                sizes = self.mesh_costs.sizes
                labels = [R if x == P and not may else x for x, may in zip(pin, partial)]
                layouts = pinned(layouts, [x if n > 1 else None for x, n in zip(labels, sizes)])
            return self.strategies.intern([tuple(map(strategy, layout)) for layout in layouts])

        return once(self._ends, key, make)


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
        self.axes, self.shapes = shared.axes, g.nominal_shapes
        self.costs: list[tuple[Interned, int, int, int]] = []
        self._layouts: list[CostMatrix | None] = [None] * len(g.values)
        self.replicated = (False,) * len(self.axes)

    def layouts_of(self, v: int) -> CostMatrix:
        """Return the placements of a value."""
        matrix = self._layouts[v]
        if matrix is None:
            ty = self.g.values[v].ty
            dtype = "uint8" if ty is None else str(ty.dtype)
            matrix = self._layouts[v] = self.shared.mesh_costs.layouts(self.shapes[v], dtype)
        return matrix

    def partial(self, v: int) -> tuple[bool, ...]:
        """Return along which axes a value may be a partial sum."""
        return tuple([bool(self.reach.partial[a][v]) for a in self.axes])

    def variable(self, strategies: Strategies, costs: Bytes | None = None) -> End:
        """Add a node with some strategies, and the cost of each."""
        net, times = self.net, self.g.repeat
        if not strategies.items:
            net.feasible = False
        if len(strategies.items) <= 1:
            net.constant += 0 if costs is None else int(costs.sum()) * times
            return strategies, -1
        net.domains.append(len(strategies.items))
        end = strategies, len(net.domains) - 1
        if costs is not None and costs.any():
            table = self.shared.table(("work", id(costs)), lambda: costs)
            self.costs.append((table, end[1], -1, times))
        return end

    def inner(self, k: int, number: int, *, result: bool) -> End:
        """Return the end of a call's operand or result, taken from the callee's boundary node."""
        inside, first = self.net.callees[k]
        callee = self.shared.module.graphs[self.g.nodes[k].callee]
        states, variable = inside.ends[(callee.rets if result else callee.params)[number]]
        return states, variable + first if variable >= 0 else -1
