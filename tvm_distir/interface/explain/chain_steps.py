# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe the steps of chains: which op or call ties which values."""

from __future__ import annotations

from tvm_distir.core.ops import describe_factor
from tvm_distir.core.propagation import Instance, Node

from .findings import ChainStep
from .instances import InstanceIndex


class ChainStepWriter:
    """Writes the steps of a search.

    Parameters
    ----------
    index : InstanceIndex
    """

    def __init__(self, index: InstanceIndex) -> None:
        self.index = index

    def through_op(
        self,
        inst: Instance,
        node: Node,
        factor: int | None,
        source: tuple[int, int | None],
        target: tuple[int, int | None],
    ) -> ChainStep:
        """Return the step between two values of an op; None where a partial sum has no dim."""
        kind, words = "map", ""
        op = node.kind
        if node.rule is not None:
            op = node.rule.op.removeprefix("relax.")
            kind = "linear"
            if factor is not None:
                kind = node.rule.factors[factor].kind
                words = describe_factor(node.rule.factors[factor])
        elif node.kind == "pin":
            op = "annotate_sharding"
        values = inst.graph.values
        variable = values[node.results[0]].name if node.results else node.label
        return ChainStep(
            f"{self.index.name(inst)}/{variable}",
            op,
            kind,
            words,
            self.index.qualified_name(inst, source[0]),
            source[1],
            self.index.qualified_name(inst, target[0]),
            target[1],
        )

    def through_call(
        self,
        caller: Instance,
        k: int,
        source: tuple[Instance, int],
        target: tuple[Instance, int],
        dim: int | None,
    ) -> ChainStep:
        """Return the step over the boundary of the function that node ``k`` of ``caller`` calls."""
        return ChainStep(
            f"{self.index.name(caller)}/{caller.graph.nodes[k].label}",
            f"call {self.index.name(caller.kids[k])}",
            "call",
            "",
            self.index.qualified_name(*source),
            dim,
            self.index.qualified_name(*target),
            dim,
        )
