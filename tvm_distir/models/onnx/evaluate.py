# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate a node on constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvm_distir.models.common.quiet import reason
from tvm_distir.support import ModelError

from .batch import node_location
from .protos import attribute_of

Array = npt.NDArray[np.generic]


def evaluated(node: onnx.NodeProto, operands: Mapping[str, Array], model: onnx.ModelProto) -> Any:
    """Return the first result of a node on known operands.

    ONNX's reference implementation computes it, except where that is known to be wrong.

    Raises
    ------
    ModelError
        DIST0310 when the operands do not fit the operator.
    """
    try:
        if node.op_type == "GatherElements":
            data, indices = (operands[name] for name in node.input)
            return _gather_elements(data, indices, attribute_of(node, "axis", 0))
        if node.op_type == "Erf":  # the reference rounds to float32
            (x,) = (operands[name] for name in node.input)
            return np.vectorize(math.erf, otypes=["float64"])(x).astype(x.dtype)
        with np.errstate(all="ignore"):  # infinities are values, as on any device
            return _by_reference(node, operands, model)
    except Exception as error:  # the reference raises whatever NumPy raises
        problem = f"it cannot be evaluated on its constant operands: {reason(error)}"
        remedy = "Check the constants of the model."
        raise ModelError(
            "DIST0310", problem, location=node_location(node), remedy=remedy
        ) from error


def _by_reference(
    node: onnx.NodeProto, operands: Mapping[str, Array], model: onnx.ModelProto
) -> Any:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in operands.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    single = helper.make_model(graph, opset_imports=list(model.opset_import))
    results: Any = ReferenceEvaluator(single).run(None, dict(operands))
    return results[0]


def _gather_elements(data: Array, indices: Array, axis: int) -> Array:
    """Compute ``out[i, j] = data[indices[i, j], j]`` for axis 0, and so on.

    Along other dims the indices may be shorter than the data; the reference implementation
    counts on equal shapes.
    """
    axis %= data.ndim
    picked = tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(indices.shape))
    return np.take_along_axis(data[picked], np.asarray(indices, "int64"), axis)
