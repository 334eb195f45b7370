# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bounds memory: measures a decision's peak per device, and searches for a fitting decision.

An assignment of minimum cost is exact; an assignment under a bound on the peak of memory cannot be
computed by eliminating variables, since all values count together. So memory gets a cost: a weight
per byte that is stored, doubled until the decision fits and then halved towards the bound
(Lagrangian relaxation). Free parameters may then be sharded over any axis, only because of the
bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.core.analysis.liveness import live_bytes
from tvm_distir.core.ir.placement import ceil_div
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.support import InfeasibleError, memoized

from .assignment import Propagator
from .decision import Decision, Instance

FIRST_WEIGHT = 1
LAST_WEIGHT = 1 << 24
"""Weights tried, in 1/1024 of a wire byte per byte kept; the last outweighs 16,000 wire bytes."""


@dataclass(frozen=True)
class KeptMemory:
    """Peak memory of a device of the fullest mesh while a public function runs.

    Attributes
    ----------
    peak_bytes : int
        Parameters, and the values alive at the worst moment, copies in other placements included.
    param_bytes : int
        The part of the memory that the parameters take.
    location : str
        The node that runs at that moment.
    """

    peak_bytes: int
    param_bytes: int
    location: str


class MemoryMeter:
    """Measures the peak memory of instances, each once.

    A value is alive from its producer to its last consumer, in every placement it is consumed in; a
    parameter and a result all the time. What happens inside an op is not counted.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def kept(self) -> KeptMemory:
        """Return the largest peak of all public functions and meshes."""
        memories = [memory for inst in self.decision.entries.values() for memory in self._of(inst)]
        return max(memories, key=lambda memory: memory.peak_bytes, default=KeptMemory(0, 0, ""))

    def _of(self, inst: Instance) -> Iterator[KeptMemory]:
        g = inst.graph
        stored_bytes = [0] * self._meshes()
        for k in g.params:
            v = g.nodes[k].results[0]
            stored_bytes[g.values[v].mesh] += self._bytes(
                inst, v, self.decision.value_layout(inst, v)
            )
        inner, position = self._inside(inst)
        for params, more in zip(stored_bytes, inner):
            yield KeptMemory(params + more, params, position)

    def _meshes(self) -> int:
        return max((axis.mesh for axis in self.decision.axes), default=0) + 1

    def _bytes(self, inst: Instance, v: int, layout: tuple[int, ...]) -> int:
        """Return the bytes of a device's part of a value in a placement."""
        value = inst.graph.values[v]
        size = value.size_bytes
        for a, label in zip(self.decision.mesh_axes(value.mesh), layout):
            if label >= 0:
                size = int(ceil_div(size, self.decision.axes[a].size))
        return size

    @memoized
    def _inside(self, inst: Instance) -> tuple[list[int], str]:
        """Return the peak per mesh of all values but the parameters, and where it is reached."""
        g = inst.graph
        spans = [
            (value.mesh, *span, span[0] == g.producer[v][0])
            for v, value in enumerate(g.values)
            for span in self._spans(inst, v)
        ]
        mesh, first, last, size, produced = np.array(spans, np.int64).reshape(-1, 5).T
        on = [mesh == m for m in range(self._meshes())]
        live = np.array([live_bytes(first[m], last[m], size[m], len(g.nodes)) for m in on])
        begins = first + produced  # a call counts its results inside
        calls = np.array([live_bytes(begins[m], last[m], size[m], len(g.nodes)) for m in on])
        for k, node in enumerate(g.nodes):
            if node.kind == "call":
                live[:, k] = np.maximum(live[:, k], calls[:, k] + self._inside(inst.kids[k])[0])
        peak, largest = live.max(axis=1, initial=0).tolist(), live.max(axis=0)
        location = g.location(int(largest.argmax())) if max(peak) else g.name
        return peak, location

    def _spans(self, inst: Instance, v: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first node, last node, bytes) of each placement in which a value is stored."""
        g = inst.graph
        maker = g.producer[v][0]
        if maker < 0:
            return
        produced = self.decision.value_layout(inst, v)
        first: dict[tuple[int, ...], int] = {}
        last: dict[tuple[int, ...], int] = {}
        for k, positions in g.uses[v]:
            for i in positions:
                layout = self.decision.needs(inst, k, i, g.values[v].mesh)
                first.setdefault(layout, k)
                last[layout] = k
        if g.nodes[maker].kind != "param":
            yield maker, max(last.values(), default=maker), self._bytes(inst, v, produced)
        for layout, k in first.items():
            if layout != produced:
                yield k, last[layout], self._bytes(inst, v, layout)


def within(solver: Propagator, decision: Decision, memory_bytes: int) -> Decision:
    """Return the decision, or the cheapest that stores at most ``memory_bytes`` per device.

    Raises
    ------
    InfeasibleError
        DIST0801 when none of the weights leads to a decision that fits.
    """
    if MemoryMeter(decision).kept().peak_bytes <= memory_bytes:
        return decision
    costs = solver.costs
    solver.free_parameters()
    weight, best, least = FIRST_WEIGHT, None, MemoryMeter(decision).kept()
    while weight <= LAST_WEIGHT:
        candidate = _weighed(solver, costs, weight)
        candidate_memory = MemoryMeter(candidate).kept()
        least = min(least, candidate_memory, key=lambda memory: memory.peak_bytes)
        if candidate_memory.peak_bytes <= memory_bytes:
            best = candidate
            break
        weight *= 4
    if best is None:
        raise InfeasibleError(
            "DIST0801",
            f"no placement stores at most {memory_bytes} bytes on each device: the smallest found "
            f"stores {least.peak_bytes}, of them {least.param_bytes} of parameters",
            location=least.location,
            remedy="Use more devices, a smaller batch, or leave more placements open.",
        )
    lower, upper = weight // 4, weight
    while upper - lower > max(1, lower // 4):
        middle = (lower + upper) // 2
        candidate = _weighed(solver, costs, middle)
        if MemoryMeter(candidate).kept().peak_bytes <= memory_bytes:
            upper, best = middle, candidate
        else:
            lower = middle
    return best


def _weighed(solver: Propagator, costs: Costs, weight: int) -> Decision:
    solver.set_costs(replace(costs, keep=weight, hold=max(weight, costs.hold)))
    return solver.run()
