# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Static shapes for a weightless ONNX graph, at any batch.

One walk over the nodes infers every shape with ONNX's own node inference and evaluates what
depends on shapes and constants alone (``Shape``, ``Gather`` of it, ...), so that the importer
meets constants. To change the batch the walk is made twice, at the old and at the new batch: a
dim that differs between the two carries the batch, so a constant that pins it is seen and
rewritten where its meaning is clear, and named where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ...errors import ModelError
from .batch import (
    carrying_dims,
    check_kept,
    node_place,
    note_outer,
    refusal,
    rewrite_pinned,
)
from .skeleton import drop_dead_constants, opset_version, restore_weights, strip_weights

Shape = tuple[int, ...]
Array = npt.NDArray[np.generic]

FOLD_NUMEL = 4096
_NEVER_FOLDED = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
_REFUSALS = (shape_inference.InferenceError, RuntimeError, ValueError, TypeError)


class Walk:
    """Shapes and known values of a graph, node by node.

    Parameters
    ----------
    model : ModelProto
        Weightless; the nodes are replaced in place of the copy that is returned by `run`.
    shapes : mapping of str to shape
        Static shapes of all graph inputs.
    """

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
        self.model = model
        self.version = opset_version(model) or 1
        self.types: dict[str, onnx.TypeProto] = {}
        self.values: dict[str, Array] = {}
        self.outer: dict[str, int] = {}
        for value in model.graph.input:
            elem_type = value.type.tensor_type.elem_type
            self.types[value.name] = helper.make_tensor_type_proto(elem_type, shapes[value.name])

    def shape(self, name: str) -> Shape | None:
        """Return the static shape of a tensor; None when there is none or a dim is unknown."""
        if name not in self.types or not self.types[name].tensor_type.HasField("shape"):
            return None
        dims = self.types[name].tensor_type.shape.dim
        return (
            tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None
        )

    def set_constant(self, name: str, value: Array) -> onnx.NodeProto:
        """Make ``name`` a known value and return the Constant node that gives it."""
        self.values[name] = value
        tensor = numpy_helper.from_array(value, name)
        self.types[name] = helper.make_tensor_type_proto(tensor.data_type, value.shape)
        return helper.make_node("Constant", [], [name], name=name, value=tensor)

    def visit(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Infer the outputs of a node; return it, or the Constant that replaces it."""
        if node.op_type == "Constant":
            return self._constant(node)
        if node.op_type == "Shape" and self.shape(node.input[0]) is not None:
            return self.set_constant(node.output[0], self._sliced_shape(node))
        self._infer(node)
        folded = self._fold(node)
        return node if folded is None else self.set_constant(node.output[0], folded)

    def _constant(self, node: onnx.NodeProto) -> onnx.NodeProto:
        value = _run_node(node, {}, self.model)
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
        missing = [name for name in node.input if name and name not in self.types]
        if missing:
            raise ModelError(
                "DIST0310",
                f'"{missing[0]}" is read before anything gives it',
                place=node_place(node),
                remedy="Export the model again, with sorted nodes.",
            )
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
                f"the shapes do not fit: {_reason(error)} (operands {self._operands(node)})",
                place=node_place(node),
                remedy="Check the model with onnx.checker.check_model(full_check=True).",
            ) from error
        self.types.update(outputs)

    def _operands(self, node: onnx.NodeProto) -> str:
        shapes = [self.shape(name) for name in node.input if name]
        return ", ".join("unknown" if s is None else str(list(s)) for s in shapes)

    def _fold(self, node: onnx.NodeProto) -> Array | None:
        """Value of a one-output node whose operands are all known, unless it is big."""
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
        value = _run_node(node, {name: self.values[name] for name in names}, self.model)
        return value if isinstance(value, np.ndarray) and value.size <= FOLD_NUMEL else None


def unknown_operator(node: onnx.NodeProto) -> ModelError:
    """Return the error of an operator that ONNX (at the model's version) does not know."""
    domain = f" of domain {node.domain}" if node.domain else ""
    return ModelError(
        "DIST0311",
        f'the operator "{node.op_type}"{domain} is not known',
        place=node_place(node),
        remedy="Export the model with standard ONNX operators.",
    )


def static_shapes(
    model: onnx.ModelProto,
    data: list[str],
    dims: Mapping[str, int],
    batch: int | None,
    place: str,
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of all graph inputs as the file pins them, and as they are wanted.

    Parameters
    ----------
    model : ModelProto
        Weightless.
    data : list of str
        Names of the data inputs.
    dims : mapping of str to int
        Sizes for named symbolic dims.
    batch : int, optional
        New size of dim 0 of the data inputs.
    place : str
        The model, for messages.

    Raises
    ------
    ModelError
        DIST0313 a dim is not known, DIST0314 no common batch dim.
    """
    old: dict[str, Shape] = {}
    for value in model.graph.input:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise _unknown_dim(value.name, "its shape", place, "Export it with a shape.")
        sizes = []
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            symbol = dim.dim_param
            if dim.HasField("dim_value") and dim.dim_value > 0:
                sizes.append(int(dim.dim_value))
            elif symbol in dims:
                sizes.append(dims[symbol])
            elif index == 0 and batch is not None and value.name in data:
                sizes.append(batch)
            else:
                word = f'dim {index} ("{symbol}")' if symbol else f"dim {index}"
                named = f" or {symbol}=N" if symbol else ""
                remedy = f"Give its size: {'--batch N' if index == 0 else 'dims'}{named}."
                raise _unknown_dim(value.name, word, place, remedy)
        old[value.name] = tuple(sizes)
    if batch is None:
        return old, old
    ranked = [name for name in data if old[name]]
    sizes_seen = sorted({old[name][0] for name in ranked} - {batch})
    if not ranked or len(sizes_seen) > 1:
        shown = ", ".join(f"{name} {list(old[name])}" for name in data)
        raise ModelError(
            "DIST0314",
            f"the data inputs have no common dim 0: {shown}",
            place=place,
            remedy="Leave --batch out, or export the model at the batch you want.",
        )
    new = {name: (batch, *shape[1:]) if name in ranked else shape for name, shape in old.items()}
    return old, new


def resolve(
    model: onnx.ModelProto, old: Mapping[str, Shape], new: Mapping[str, Shape]
) -> onnx.ModelProto:
    """Return the graph at the input shapes ``new``: shape arithmetic folded, pins rewritten.

    Parameters
    ----------
    model : ModelProto
        Weightless.
    old, new : mapping of str to shape
        Shapes of all graph inputs, as `static_shapes` gives them.

    Raises
    ------
    ModelError
        DIST0310 shapes that do not fit, DIST0311 an unknown operator, DIST0314 a node that pins
        the batch in a way that cannot be rewritten, or an output without batch.
    """
    before = Walk(model, old)
    if dict(old) == dict(new):
        return _replaced(model, [before.visit(node) for node in model.graph.node], before)
    after = Walk(model, new)
    batches = next((old[name][0], new[name][0]) for name in old if old[name] != new[name])
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        before.visit(node)
        extra, fitted = rewrite_pinned(node, before, after, batches)
        try:
            nodes.extend(after.visit(one) for one in [*extra, fitted])
        except ModelError as error:
            raise refusal(node, error.what) from error
        check_kept(node, before, after)
        note_outer(node, before, after)
    for output in model.graph.output:
        if not carrying_dims(output.name, before, after):
            raise ModelError(
                "DIST0314",
                "the output does not grow with the batch",
                place=output.name,
                remedy="Leave --batch out, or export the model at the batch you want.",
            )
    return _replaced(model, nodes, after)


def with_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Rewrite a model to another batch: data inputs, pinned Reshapes and other constants.

    Parameters
    ----------
    model : ModelProto
        With or without external weights; it is not changed.
    batch : int
        New size of dim 0 of every data input.

    Returns
    -------
    ModelProto
        The same model at that batch, weights included, shape arithmetic folded.

    Raises
    ------
    ModelError
        As `resolve` and `static_shapes` do.
    """
    skeleton = strip_weights(model)
    old, new = static_shapes(skeleton.model, skeleton.data, {}, batch, model.graph.name)
    return restore_weights(skeleton, resolve(skeleton.model, old, new))


def _replaced(model: onnx.ModelProto, nodes: list[onnx.NodeProto], walk: Walk) -> onnx.ModelProto:
    """Return the model with other nodes, and with the shapes of inputs and outputs as walked."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    drop_dead_constants(result.graph)
    for value in [*result.graph.input, *result.graph.output]:
        if value.name in walk.types:
            value.type.CopyFrom(walk.types[value.name])
    return result


def _run_node(node: onnx.NodeProto, operands: Mapping[str, Array], model: onnx.ModelProto) -> Any:
    """Evaluate one node with ONNX's reference implementation."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in operands.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    one = helper.make_model(graph, opset_imports=list(model.opset_import))
    try:
        results: Any = ReferenceEvaluator(one).run(None, dict(operands))
        return results[0]
    except Exception as error:  # the reference raises whatever NumPy raises
        raise ModelError(
            "DIST0310",
            f"it cannot be evaluated on its constant operands: {_reason(error)}",
            place=node_place(node),
            remedy="Check the constants of the model.",
        ) from error


def _unknown_dim(name: str, what: str, place: str, remedy: str) -> ModelError:
    return ModelError(
        "DIST0313", f'of the input "{name}", {what} is not known', place=place, remedy=remedy
    )


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
