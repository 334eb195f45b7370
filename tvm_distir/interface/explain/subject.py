# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe the value of an explanation and its surroundings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_distir.core.ir import meshes
from tvm_distir.core.propagation import Instance

from .instances import InstanceIndex, Target


class Subject:
    """A value in a decision.

    Parameters
    ----------
    index : InstanceIndex
        Of the decided module.
    target : Target
        The value.
    """

    def __init__(self, index: InstanceIndex, target: Target) -> None:
        self.index, self.target = index, target
        self.decision = index.decision
        self.inst, self.v = target.inst, target.value
        self.value = self.inst.graph.values[self.v]
        self.mesh = meshes(index.mod)[self.value.mesh]
        self.axes = self.decision.mesh_axes(self.value.mesh)
        self.produced = self.decision.value_layout(self.inst, self.v)
        self.labels = self.decision.route(self.inst, self.v).root

    def axis_name(self, i: int) -> str:
        """Return the name of axis ``i`` of the value's mesh."""
        return self.decision.axes[self.axes[i]].name

    def ranks(self, i: int) -> int:
        """Return the devices along axis ``i`` of the value's mesh."""
        return self.decision.axes[self.axes[i]].size

    def other_ranks(self, d: int, i: int) -> int:
        """Return the devices of axes other than ``i`` that shard dim ``d``."""
        return math.prod(
            self.ranks(b) for b, label in enumerate(self.labels) if label == d and b != i
        )

    def producers(self, inst: Instance, v: int) -> Iterator[tuple[Instance, int, int]]:
        """Yield the op that makes a value, looked for in callees too: instance, node, result."""
        k, j = inst.graph.producer[v]
        node = inst.graph.nodes[k]
        if node.kind == "op":
            yield inst, k, j
        elif node.kind == "call":
            inner = inst.kids[k].graph.result_values[j]
            if inner >= 0:
                yield from self.producers(inst.kids[k], inner)

    def consumers(self, inst: Instance, v: int) -> Iterator[tuple[Instance, int, int]]:
        """Yield the ops that read a value, looked for in callees too: instance, node, operand."""
        for k, positions in inst.graph.uses[v]:
            node = inst.graph.nodes[k]
            for i in positions:
                if node.kind == "op":
                    yield inst, k, i
                elif node.kind == "call":
                    yield from self.consumers(inst.kids[k], inst.kids[k].graph.param_values[i])

    def node_text(self, inst: Instance, k: int) -> str:
        """Return ``function/variable`` of a node, with the callee of a call."""
        node = inst.graph.nodes[k]
        text = f"{self.index.name(inst)}/{node.label}"
        if node.kind == "call":
            return f"{text} (call {self.index.name(inst.kids[k])})"
        return text
