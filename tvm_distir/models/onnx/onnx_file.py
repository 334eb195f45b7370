# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read ONNX files: the graph, its operator set, and values on demand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, numpy_helper

from tvm_distir.models.common.spec import file_bytes
from tvm_distir.support import ModelError

from .protos import copied

_TYPES = {*TensorProto.DataType.values()} - {TensorProto.UNDEFINED}


def read_model(path: str | Path) -> onnx.ModelProto:
    """Read a file without the values of external weights.

    Raises
    ------
    ModelError
        DIST0301 no file, DIST0303 a broken file.
    """
    data = file_bytes(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        problem = "the file is not an ONNX model, or is truncated"
        remedy = "Export or download it again."
        raise ModelError("DIST0303", problem, location=str(path), remedy=remedy) from error
    return model


def check_complete(model: onnx.ModelProto, location: str) -> None:
    """Reject a model without a graph (DIST0303) or a known operator set (DIST0310)."""
    graph = model.graph
    if not graph.output or not (graph.node or graph.input):
        problem = "the file contains no graph with an output"
        raise ModelError(
            "DIST0303", problem, location=location, remedy="Export or download it again."
        )
    if not graph.node:
        remedy = "Export the model again."
        raise ModelError("DIST0310", "the graph has no nodes", location=location, remedy=remedy)
    version, newest = opset_version(model), onnx.defs.onnx_opset_version()
    if version is None:
        problem = "the model imports no operator set of the default domain"
        remedy = "Export it with an opset_import."
        raise ModelError("DIST0310", problem, location=location, remedy=remedy)
    if not 1 <= version <= newest:
        raise ModelError(
            "DIST0310",
            f"the model imports the operator set {version}, which onnx {onnx.__version__} does not "
            "know",
            location=location,
            remedy=f"Export it with one from 1 to {newest}, or install a newer onnx.",
        )


def opset_version(model: onnx.ModelProto) -> int | None:
    """Return the version of the default operator set, or None if the model imports none."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return int(versions[0]) if versions else None


def check_tensor(tensor: TensorProto) -> None:
    """Reject a stored value of unknown type or negative sizes (DIST0310)."""
    if tensor.data_type not in _TYPES or any(n < 0 for n in tensor.dims):
        raise ModelError(
            "DIST0310",
            f"a stored value has the type {tensor.data_type} and the shape {list(tensor.dims)}",
            location=tensor.name,
            remedy="Export the model again.",
        )


def tensor_array(tensor: TensorProto, folder: str) -> npt.NDArray[np.generic]:
    """Read the values of a tensor, external ones included.

    Raises
    ------
    ModelError
        DIST0315 when the values are missing or do not fit the shape.
    """
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            copy = copied(tensor)
            external_data_helper.load_external_data_for_tensor(copy, folder)
            tensor = copy
        return np.asarray(numpy_helper.to_array(tensor))
    except (OSError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        problem = f"the values cannot be read: {str(error).splitlines()[0]}"
        remedy = "Keep the external data files next to the model."
        raise ModelError("DIST0315", problem, location=tensor.name, remedy=remedy) from error
