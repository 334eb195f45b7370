# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Separate an ONNX graph from its weights, and classify data, weights and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_distir.models.common.name_tables import by_name

from .onnx_file import check_tensor, tensor_array
from .protos import constant_node, refill
from .rewriting import rewritten

SMALL_NUMEL = 16
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

# Operands that a node updates: weights, their states and the number of the step.
_UPDATED_OPERANDS: dict[str, Sequence[int]] = by_name(
    ((0,), "InPlaceAccumulator InPlaceAccumulatorV2 ZeroGradient"),
    ((1,), "SGDOptimizer SGDOptimizerV2"),
    ((1, 2, 4, 5), "AdamOptimizer"),
    ((2, 4, 5), "AdamWOptimizer"),
    (range(2, 1 << 12), "Adagrad Adam Momentum"),
    (range(4, 1 << 13), "LambOptimizer"),
)
# Operands that hold trained values: operator to operand numbers.
_WEIGHT_OPERANDS = by_name(
    ((1,), "MatMul PRelu RMSNormalization"),
    ((1, 2), "Conv ConvTranspose Gemm GroupNormalization InstanceNormalization LayerNormalization"),
    ((1, 2, 3, 4), "BatchNormalization"),
)
# Per-channel scales and shifts, when they come from a vector.
_VECTOR_OPERANDS = {"Add": (0, 1), "Mul": (0, 1)}
_VIEWS = ("Unsqueeze", "Reshape", "Transpose", "Identity", "Squeeze", "Flatten")


@dataclass(frozen=True)
class FileWeight:
    """Weight of a file.

    Attributes
    ----------
    name : str
        The name in the graph.
    elem_type : int
        ONNX element type.
    shape : tuple of int
        The shape.
    tensor : TensorProto or None
        The stored values (maybe external); None for a weight that is filled with ``fill``.
    fill : float
        The single value of a weight that is shipped as a ConstantOfShape node.
    transposed : bool
        Whether the stored values are its transpose.
    """

    name: str
    elem_type: int
    shape: tuple[int, ...]
    tensor: TensorProto | None = None
    fill: float = 0.0
    transposed: bool = False

    def array(self, folder: str) -> npt.NDArray[np.generic]:
        """Read the values; ``folder`` contains external data."""
        if self.tensor is None:
            return np.full(self.shape, self.fill, helper.tensor_dtype_to_np_dtype(self.elem_type))
        stored = tensor_array(self.tensor, folder)
        return np.ascontiguousarray(stored.T) if self.transposed else stored


@dataclass
class Skeleton:
    """Model without weights.

    Attributes
    ----------
    model : ModelProto
        No initializer is left: weights are graph inputs after the data inputs, the rest are
        Constant nodes.
    data : list of str
        Names of the data inputs.
    weights : dict of str to FileWeight
        The weights by name, in file order.
    """

    model: onnx.ModelProto
    data: list[str]
    weights: dict[str, FileWeight] = field(default_factory=dict)


def strip_weights(model: onnx.ModelProto, folder: str = "") -> Skeleton:
    """Take the weights out of a model; the given model is not changed.

    A weight is a floating initializer of more than 16 elements, or a smaller initializer that an
    operator uses as trained values (a convolution's bias, a norm's scale), or a ConstantOfShape
    node used so, or any initializer that an optimizer updates. Integers, booleans and small rest
    (shapes, scales of Resize, ...) become Constant nodes.
    """
    graph = model.graph
    used = {name for node in graph.node for name in node.input}
    used |= {output.name for output in graph.output} | _captured(graph.node)
    trained, vectors = _trained_names(graph)
    updated = _updated_names(graph)
    weights: dict[str, FileWeight] = {}
    constants: list[onnx.NodeProto] = []
    shapes: dict[str, list[int]] = {}
    for tensor in graph.initializer:
        if tensor.name not in used:
            continue
        dims = tuple(int(n) for n in tensor.dims)
        check_tensor(tensor)
        floating = tensor.data_type in FLOATS
        big = math.prod(dims) > SMALL_NUMEL
        is_weight = floating and (big or (tensor.name in trained and math.prod(dims) > 1))
        if is_weight or tensor.name in updated:
            weights[tensor.name] = FileWeight(tensor.name, tensor.data_type, dims, tensor)
            continue
        constants.append(constant_node(tensor.name, tensor_array(tensor, folder)))
        if tensor.data_type == TensorProto.INT64 and len(dims) == 1:
            shapes[tensor.name] = [int(n) for n in tensor_array(tensor, folder)]
    nodes = []
    for node in graph.node:
        filled = _filled_weight(node, shapes, trained | vectors)
        if filled is not None:
            weights[filled.name] = filled
        else:
            nodes.extend(rewritten(node))
    initial = {tensor.name for tensor in graph.initializer}
    data = [value for value in graph.input if value.name not in initial]
    bare = onnx.ModelProto()
    bare.ir_version = max(model.ir_version, 4)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = graph.name or "main"
    bare.graph.node.extend([*constants, *nodes])
    bare.graph.output.extend(graph.output)
    pooled = {node.output[0] for node in graph.node if node.op_type == "AveragePoolGrad"}
    bare.graph.value_info.extend(value for value in graph.value_info if value.name in pooled)
    inputs = [helper.make_tensor_value_info(w.name, w.elem_type, w.shape) for w in weights.values()]
    bare.graph.input.extend([*data, *inputs])
    drop_dead_constants(bare.graph)
    return Skeleton(bare, [value.name for value in data], weights)


def _captured(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the names that sub-graphs of nodes (If, Loop) read."""
    names: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                names |= {name for inner in graph.node for name in inner.input}
                names |= {value.name for value in graph.output} | _captured(graph.node)
    return names


def _trained_names(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Return the names that reach an operand for trained values through views only.

    The second set: rank-1 names that reach an Add or a Mul (per-channel scales and shifts).
    """
    trained: set[str] = set()
    vectors: set[str] = set()
    for node in reversed(graph.node):
        names = list(node.input)
        for index in _WEIGHT_OPERANDS.get(node.op_type, ()):
            trained.update(names[index : index + 1])
        for index in _VECTOR_OPERANDS.get(node.op_type, ()):
            vectors.update(names[index : index + 1])
        if node.op_type in _VIEWS and names:
            for group in (trained, vectors):
                if node.output[0] in group:
                    group.add(names[0])
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and sizes.get(node.input[0]) == (1,):
            sizes[node.output[0]] = (0,)  # rank 1: the shape operand has one entry
    return trained - {""}, {name for name in vectors if len(sizes.get(name, ())) == 1}


def _updated_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that optimizers and accumulators update, directly or in a sequence."""
    updated: set[str] = set()
    for node in reversed(graph.node):
        names = list(node.input)
        if node.op_type == "SequenceConstruct" and node.output[0] in updated:
            updated.update(names)
        numbers = _UPDATED_OPERANDS.get(node.op_type, ())
        updated.update(names[i] for i in numbers[: len(names)] if i < len(names))
    return updated - {""}


def _filled_weight(
    node: onnx.NodeProto, shapes: dict[str, list[int]], trained: set[str]
) -> FileWeight | None:
    if node.op_type != "ConstantOfShape" or node.output[0] not in trained:
        return None
    dims = shapes.get(node.input[0])
    value = next((a.t for a in node.attribute if a.name == "value"), None)
    elem_type = TensorProto.FLOAT if value is None else value.data_type
    if dims is None or math.prod(dims) <= 1 or elem_type not in FLOATS:
        return None
    fill = 0.0 if value is None else float(numpy_helper.to_array(value).reshape(-1)[0])
    return FileWeight(node.output[0], elem_type, tuple(dims), None, fill)


def drop_dead_constants(graph: onnx.GraphProto) -> None:
    """Remove unread Constant nodes (the shapes of filled weights)."""
    used = {name for node in graph.node for name in node.input}
    used |= {output.name for output in graph.output} | _captured(graph.node)
    refill(graph.node, [n for n in graph.node if n.op_type != "Constant" or n.output[0] in used])
