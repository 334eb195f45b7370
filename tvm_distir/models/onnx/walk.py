# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infer every shape of a graph, and the values that depend only on shapes, in a single walk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, shape_inference

from tvm_distir.models.common.quiet import reason
from tvm_distir.support import ModelError

from .batch import Seen, node_location
from .converters import converter_of, marked
from .evaluate import evaluated
from .expanding import expanded
from .input_shapes import Shape
from .misread import check_read
from .node_call import converted_types
from .onnx_file import opset_version
from .protos import constant_node
from .support import check_numbers, check_sizes

Array = npt.NDArray[np.generic]

FOLD_NUMEL = 4096
_NEVER_FOLDED = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
_REFUSALS = (
    shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
)


class ShapeWalk(Seen):
    """Shapes and known values of a graph, node by node.

    Parameters
    ----------
    model : ModelProto
        Weightless; the nodes are replaced in place of the copy that is returned by `run`.
    shapes : mapping of str to shape
        Static shapes of all graph inputs.
    """

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self.model = model
        self.version = opset_version(model) or 1
        self._note_readers(model.graph.node)
        for output in model.graph.output:
            self.readers.setdefault(output.name, set()).add("the caller")
        self.stated = {
            value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in [*model.graph.value_info, *model.graph.output]
        }
        for value in model.graph.input:
            elem_type = value.type.tensor_type.elem_type
            self.types[value.name] = helper.make_tensor_type_proto(elem_type, shapes[value.name])

    def set_constant(self, name: str, value: Array) -> onnx.NodeProto:
        """Record a known value of ``name`` and return its Constant node."""
        self.values[name] = value
        node = constant_node(name, value)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = helper.make_tensor_type_proto(kind, value.shape)
        return node

    def visit(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Infer the outputs of a node; return it, or the nodes that replace it."""
        parts = expanded(node, self, self.version)
        if parts is None:
            inferred = self._inferred(node)
            self.makers.update((name, node) for name in node.output)
            return [inferred]
        self._note_readers(parts)
        return [visited for part in parts for visited in self.visit(part)]

    def _note_readers(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            for name in node.input:
                self.readers.setdefault(name, set()).add(node.op_type)

    def _inferred(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Infer the outputs of a node; return it, or the Constant that replaces it."""
        if node.op_type == "Constant":
            return self._constant(node)
        if node.op_type == "Shape" and self.shape(node.input[0]) is not None:
            return self.set_constant(node.output[0], self._sliced_shape(node))
        converter = converter_of(node, self, self.version)
        if converter is not None:
            self._check_defined(node)
            self.types.update(converted_types(converter, node, self.types, self.values))
            return marked(node)
        self._infer(node)
        check_numbers(node, self.types)
        folded = self._fold(node)
        if folded is not None:
            return self.set_constant(node.output[0], folded)
        check_read(node, self)
        check_sizes(node, lambda name: self.shape(name) is not None, self.values.__contains__)
        return node

    def _constant(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Record a constant of any type, also where old operator sets allow only floats."""
        stored = next((a.t for a in node.attribute if a.name == "value"), None)
        if stored is not None:
            kind = helper.make_tensor_type_proto(stored.data_type, list(stored.dims))
            check_numbers(node, {node.output[0]: kind})
        value = evaluated(node, {}, self.model)
        if value.size <= FOLD_NUMEL:
            self.values[node.output[0]] = value
        elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[node.output[0]] = helper.make_tensor_type_proto(elem_type, value.shape)
        return node

    def _sliced_shape(self, node: onnx.NodeProto) -> Array:
        bounds = {a.name: int(a.i) for a in node.attribute}
        dims = self.shape(node.input[0]) or ()
        return np.asarray(dims[bounds.get("start", 0) : bounds.get("end", len(dims))], "int64")

    def _infer(self, node: onnx.NodeProto) -> None:
        try:
            schema = onnx.defs.get_schema(node.op_type, self.version, node.domain)
        except onnx.defs.SchemaError as error:
            raise unknown_operator(node) from error
        self._check_defined(node)
        nested = any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
        types = self.types if nested else {name: self.types[name] for name in node.input if name}
        known = {
            name: numpy_helper.from_array(self.values[name], name)
            for name in node.input
            if name in self.values
        }
        try:
            outputs = shape_inference.infer_node_outputs(
                schema,
                node,
                dict(types),
                known,
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except _REFUSALS as error:
            raise ModelError(
                "DIST0310",
                f"the shapes do not match: {reason(error)} (operands {self._operands(node)})",
                location=node_location(node),
                remedy="Check the model with onnx.checker.check_model(full_check=True).",
            ) from error
        self.types.update(outputs)

    def _check_defined(self, node: onnx.NodeProto) -> None:
        missing = [name for name in node.input if name and name not in self.types]
        if missing:
            problem = f'"{missing[0]}" is read before it is defined'
            remedy = "Export the model again with topologically sorted nodes."
            raise ModelError("DIST0310", problem, location=node_location(node), remedy=remedy)

    def _operands(self, node: onnx.NodeProto) -> str:
        shapes = [self.shape(name) for name in node.input if name]
        return ", ".join("unknown" if s is None else str(list(s)) for s in shapes)

    def _fold(self, node: onnx.NodeProto) -> Array | None:
        """Return the value of a node with known operands and an output, unless it is large."""
        names = [name for name in node.input if name]
        if (
            len(node.output) != 1
            or not names
            or node.op_type in _NEVER_FOLDED
            or any(name not in self.values for name in names)
            or any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
        ):
            return None
        shape = self.shape(node.output[0])
        if shape is not None and math.prod(shape) > FOLD_NUMEL:
            return None
        value = evaluated(node, {name: self.values[name] for name in names}, self.model)
        return value if isinstance(value, np.ndarray) and value.size <= FOLD_NUMEL else None


def unknown_operator(node: onnx.NodeProto) -> ModelError:
    """Return the error about an operator that the model's ONNX version does not define."""
    domain = f" of domain {node.domain}" if node.domain else ""
    problem = f'the operator "{node.op_type}"{domain} is unknown'
    remedy = "Export the model with standard ONNX operators."
    return ModelError("DIST0311", problem, location=node_location(node), remedy=remedy)
