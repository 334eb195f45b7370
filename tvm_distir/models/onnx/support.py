# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reject ONNX graphs that no distributed program can represent, early and by name."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.support import ModelError

from .batch import node_location

ELEMENT_TYPES = tuple(
    TensorProto.DataType.Value(name)
    for name in (
        "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 BFLOAT16 FLOAT DOUBLE"
    ).split()
)
"""The element types of tensors. TVM has names for smaller types, but its casts to them round
otherwise than ONNX says, and it stores a whole byte for each number of four bits."""

_REMEDY = (
    "Cast it to a number of 8 bits or more (16 for floats), or remove this part from the model."
)

SIZED_BY_DATA = frozenset(["Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"])
"""Operators that count what they find: how much they give is known when they have run."""

SIZE_OPERANDS: dict[str, tuple[int, ...]] = by_name(
    ((0,), "BlackmanWindow ConstantOfShape HammingWindow HannWindow"),
    ((1,), "AffineGrid CenterCropPad DFT Expand OneHot Reshape Split Squeeze Tile TopK Unsqueeze"),
    ((1,), "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin"),
    ((1,), "ReduceProd ReduceSum ReduceSumSquare Upsample"),
    ((2,), "MaxUnpool"),
    ((0, 1), "MelWeightMatrix"),
    ((1, 2), "Col2Im"),
    ((1, 3), "Pad"),
    ((2, 3), "Resize"),
    ((0, 1, 2), "Range"),
    ((1, 2, 3, 4), "Slice"),
)
"""Operands that say how large the results are."""


def check_inputs(graph: onnx.GraphProto, location: str) -> None:
    """Reject inputs and outputs that are not tensors of supported elements (DIST0316)."""
    for value in [*graph.input, *graph.output]:
        fault = type_fault(value.type) if value.type.WhichOneof("value") else None
        if fault is not None and not _is_open(value.type):
            problem = f'"{value.name}" is {fault}'
            raise ModelError("DIST0316", problem, location=location, remedy=_REMEDY)


def _is_open(kind: onnx.TypeProto) -> bool:
    """Return whether a type says only that it is a tensor, so that inference must decide."""
    return (
        kind.WhichOneof("value") == "tensor_type"
        and kind.tensor_type.elem_type == TensorProto.UNDEFINED
    )


def type_fault(kind: onnx.TypeProto) -> str | None:
    """Return the reason why a type is not a numeric tensor's, or None."""
    name = kind.WhichOneof("value")
    if name != "tensor_type":
        return f"of {name.removesuffix('_type') if name else 'unknown'} type"
    if kind.tensor_type.elem_type not in ELEMENT_TYPES:
        return f"a tensor of {TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()}"
    return None


def check_numbers(node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
    """Reject a node that creates tensors of other elements (DIST0316), such as strings.

    Sequences may stay inside of a graph: TVM's importer takes them apart.
    """
    for name in node.output:
        kind = types.get(name)
        if kind is None or kind.WhichOneof("value") != "tensor_type" or _is_open(kind):
            continue
        fault = type_fault(kind)
        if fault is not None:
            problem = f'its result "{name}" is {fault}'
            raise ModelError("DIST0316", problem, location=node_location(node), remedy=_REMEDY)


def check_sizes(
    node: onnx.NodeProto, has_shape: Callable[[str], bool], is_known: Callable[[str], bool]
) -> None:
    """Reject a node whose results have a data-dependent size (DIST0317).

    Parameters
    ----------
    node : NodeProto
        A node whose results are not known values.
    has_shape, is_known : callable
        Whether the walk knows the static shape, and the value, of a tensor.
    """
    if node.domain not in ("", "ai.onnx") or not node.output:
        return
    if node.op_type in SIZED_BY_DATA:
        problem = "the number of its values depends on data"
    else:
        operands = SIZE_OPERANDS.get(node.op_type, ())
        named = [node.input[i] for i in operands if i < len(node.input) and node.input[i]]
        unknown = [name for name in named if not is_known(name)]
        if not unknown or all(has_shape(name) for name in node.output if name):
            return
        problem = f'the operand "{unknown[0]}" sets it, and is computed from the inputs'
    raise ModelError(
        "DIST0317",
        f"the size of its result depends on data: {problem}",
        location=node_location(node),
        remedy="Make that operand a constant, or remove the node: only static shapes are "
        "supported.",
    )
