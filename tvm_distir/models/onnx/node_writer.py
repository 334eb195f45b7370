# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the nodes that replace a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper

from .protos import constant_node

Nodes = list[onnx.NodeProto]


class NodeWriter:
    """Writer of nodes whose intermediate results are named after the final result.

    Parameters
    ----------
    node : NodeProto
        The node that the written nodes represent; the last node computes its first result.
    """

    def __init__(self, node: onnx.NodeProto) -> None:
        self.node = node
        self.nodes: list[onnx.NodeProto] = []

    def _name(self) -> str:
        return f"{self.node.output[0]}__{len(self.nodes)}"

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Write a node; return the name of its result."""
        name = self._name()
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """Write a constant."""
        name = self._name()
        self.nodes.append(constant_node(name, values, dtype))
        return name

    def finish(self, op: str, inputs: Sequence[str], **attributes: Any) -> Nodes:
        """Write the node of the final result under the original name; return all nodes."""
        output = self.node.output[0]
        last = helper.make_node(
            op, list(inputs), [output], name=self.node.name or output, **attributes
        )
        last.metadata_props.extend(self.node.metadata_props)
        return [*self.nodes, last]
