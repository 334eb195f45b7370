# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Resolve ``If`` nodes with a known condition, and reshape conditions to scalars."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from .node_writer import Nodes, NodeWriter
from .protos import copied, refill
from .rewriting import rewritten


def chosen(node: onnx.NodeProto, condition: bool) -> Nodes:
    """Return the nodes of the branch that a condition chooses, with unique names."""
    name = "then_branch" if condition else "else_branch"
    graph = next(a.g for a in node.attribute if a.name == name)
    prefix = node.output[0]
    names = {t.name: f"{prefix}__{t.name}" for t in graph.initializer}
    for inner in graph.node:
        names.update({output: f"{prefix}__{output}" for output in inner.output if output})
    nodes = [
        helper.make_node("Constant", [], [names[t.name]], name=names[t.name], value=t)
        for t in graph.initializer
    ]
    for inner in graph.node:
        nodes.extend(rewritten(_renamed(inner, names)))
    for value, output in zip(graph.output, node.output):
        source = names.get(value.name, value.name)
        nodes.append(helper.make_node("Identity", [source], [output], name=output))
    return nodes


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy with names replaced, including those in its branches."""
    copy = copied(node)
    for field in (copy.input, copy.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in copy.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            refill(graph.node, [_renamed(inner, names) for inner in graph.node])
            for value in graph.output:
                value.name = names.get(value.name, value.name)
    return copy


def with_scalar_condition(node: onnx.NodeProto, shape: tuple[int, ...] | None) -> Nodes | None:
    """Return an ``If`` with a scalar condition and the reshape for it, or None if it is scalar.

    ONNX takes any tensor of a single element. What ``If`` nodes inside of the branches read is
    reshaped too: nothing says of which shape it is.
    """
    copy = copied(node)
    changed = [_scalar_inside(a.g) for a in copy.attribute if a.HasField("g")]
    if shape == () or shape is None:
        return [copy] if any(changed) else None
    writer = NodeWriter(node)
    copy.input[0] = writer.add("Reshape", node.input[0], writer.constant([], "int64"))
    return [*writer.nodes, copy]


def _scalar_inside(graph: onnx.GraphProto) -> bool:
    """Reshape the conditions in a branch in place; return whether any was reshaped."""
    nodes: Nodes = []
    reshaped = {
        output for node in graph.node if node.op_type == "Reshape" for output in node.output
    }
    for node in graph.node:
        is_scalar_needed = node.op_type == "If" and node.input[0] not in reshaped
        nodes.extend((with_scalar_condition(node, (1,)) or [node]) if is_scalar_needed else [node])
    changed = len(nodes) != len(graph.node)
    if changed:
        refill(graph.node, nodes)
    return changed
