# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds values whose communication overlaps with work: weights and gradient sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_distir.core.ops import TENSOR_CLASSES
from tvm_distir.core.plan import data_positions
from tvm_distir.core.propagation import CONST, Graph, PlacedModule

Flags = Sequence[bool]
"""A flag per operand or result of a call, or per node."""


class OverlapDiscount:
    """Share of the communication of a function's values that is not overlapped.

    A value that depends on no data can be sent at any time before it is read; a value from which
    only new weights and states are computed, without products, at any time until the step ends.
    Other work may run meanwhile. How much overlaps is known to a schedule only; auto-sharding
    assumes a share.

    Parameters
    ----------
    module : PlacedModule
    key : str
        Graph of the public function.
    updated : collection of int
        Numbers of its results that update parameters.
    hidden : float
        The share of what such values take to be sent that is not counted; 0: all counts.
    """

    def __init__(
        self, module: PlacedModule, key: str, updated: Mapping[int, int], hidden: float
    ) -> None:
        self.graphs, self.left = module.graphs, 1.0 - hidden
        self._apart: dict[str, list[bool]] = {}
        if hidden:
            self._find(module, key, updated)

    def counted(self, key: str) -> Sequence[float]:
        """Return the shares of a graph's communication times that count; empty: all count fully."""
        return [self.left if separate else 1.0 for separate in self._apart.get(key, ())]

    def _find(self, module: PlacedModule, entry: str, updated: Mapping[int, int]) -> None:
        """Visit the functions, callers first; properties common to all calls hold inside."""
        g = self.graphs[entry]
        data = set(data_positions(g.fn, g.name))
        ahead = [i not in data for i in range(len(g.params))]
        behind = [i in updated for i in range(len(g.rets))]
        calls: dict[str, list[tuple[Flags, Flags]]] = {entry: [(ahead, behind)]}
        light = _light(module)
        for key in reversed(module.order):
            if key not in calls:
                continue
            g = self.graphs[key]
            early = _early(
                g, [all(x) for x in zip(*[early_operands for early_operands, _ in calls[key]])]
            )
            late = _late(g, [all(x) for x in zip(*[flags for _, flags in calls[key]])], light[key])
            self._apart[key] = [a or b for a, b in zip(early, late, strict=True)]
            for k in g.calls:
                node = g.nodes[k]
                early_operands = [v == CONST or early[v] for v in node.operands]
                calls.setdefault(node.callee, []).append(
                    (early_operands, [late[v] for v in node.results])
                )


def _light(module: PlacedModule) -> dict[str, Flags]:
    """Return by graph which nodes, callees included, leave the matrix units idle."""
    result: dict[str, Flags] = {}
    for key in module.order:
        result[key] = [
            all(result[node.callee])
            if node.kind == "call"
            else node.rule is None or node.rule.work.kernel_class not in TENSOR_CLASSES
            for node in module.graphs[key].nodes
        ]
    return result


def _early(g: Graph, early_params: Flags) -> list[bool]:
    """Return which values depend on no data, given which parameters depend on none."""
    early = [True] * len(g.values)
    for v, free in zip(g.param_values, early_params, strict=True):
        early[v] = free
    for node in g.nodes:
        if node.kind not in ("param", "ret"):
            free = all(early[v] for v in node.operands if v != CONST)
            for v in node.results:
                early[v] = free
    return early


def _late(g: Graph, requested: Flags, light: Flags) -> list[bool]:
    """Return which values are read for late results only, by light work."""
    is_late = [False] * len(g.values)
    late = dict(zip(g.rets, requested, strict=True))
    for k in reversed(range(len(g.nodes))):
        results = g.nodes[k].results
        for v in results:
            is_late[v] = bool(g.uses[v]) and all(late[reader] for reader, _ in g.uses[v])
        late.setdefault(k, light[k] and all(is_late[v] for v in results))
    return is_late
