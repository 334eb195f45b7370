# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the sharding problems of a module's functions.

A call of an op is a variable whose states choose an alternative along every axis. A value with
a single reader is a table over its producer and that reader: the cost of resharding it. A value
with several readers gets a variable, the placement in which it is stored; readers take what
they need from it by steps that send nothing. A call of a private function holds that function's
variables, so that every call may have its strategy; equal calls are joined by elimination.
"""

from __future__ import annotations

from .edge_builder import EdgeBuilder
from .nodes import NodeBuilder
from .sharding_problem import Assembly, ShardingProblem, Shared


class ShardingProblemBuilder:
    """Builder of the problems of a module's functions, each built once.

    Parameters
    ----------
    shared : Shared
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._known: dict[str, ShardingProblem] = {}

    def of(self, key: str) -> ShardingProblem:
        """Return the problem of a graph."""
        if key not in self._known:
            assembly = Assembly(self.shared, self.shared.module.graphs[key])
            NodeBuilder(assembly, self.of).run()
            if assembly.net.feasible:  # else a node has no state, and nothing is to be handed over
                EdgeBuilder(assembly).run()
            self._known[key] = assembly.net
        return self._known[key]
