# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite nodes into forms that TVM's importer reads correctly."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .protos import copied


def rewritten(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that replace a node, which is not changed.

    TVM's importer would stack the operands of a Sum: it becomes Adds. It refuses a TopK that
    leaves the order open, for which any order is right: it becomes a sorted order. Of constants it
    knows tensors only, not numbers and lists.
    """
    if node.domain not in ("", "ai.onnx"):
        return [node]
    if node.op_type == "Sum":
        return _added(node)
    if node.op_type == "TopK":
        return [_with_ints(node, sorted=1)]
    return [_as_tensor(node)] if node.op_type == "Constant" else [node]


_NUMBERS = {"value_float": "float32", "value_int": "int64"}


def _as_tensor(node: onnx.NodeProto) -> onnx.NodeProto:
    """Convert a constant that is a number or a list of numbers to a tensor constant."""
    for attribute in node.attribute:
        kind = _NUMBERS.get(attribute.name.removesuffix("s"))
        if kind is not None:
            value = np.array(helper.get_attribute_value(attribute), kind)
            tensor = numpy_helper.from_array(value, node.output[0])
            return helper.make_node("Constant", [], [*node.output], name=node.name, value=tensor)
    return node


def _added(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    name, output = node.name or node.output[0], node.output[0]
    if len(node.input) == 1:
        return [helper.make_node("Identity", list(node.input), [output], name=name)]
    adds = []
    partial = node.input[0]
    for index, operand in enumerate(node.input[1:], start=2):
        result = output if index == len(node.input) else f"{output}__sum{index}"
        adds.append(helper.make_node("Add", [partial, operand], [result], name=f"{name}_{index}"))
        partial = result
    return adds


def _with_ints(node: onnx.NodeProto, **values: int) -> onnx.NodeProto:
    """Return a copy with other values of the given attributes, where they are set."""
    copy = copied(node)
    for attribute in copy.attribute:
        attribute.i = values.get(attribute.name, attribute.i)
    return copy
