# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expand nodes by the types, shapes and values of their operands.

TVM's importer refuses the originals, or gives other numbers than ONNX says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from .attention_nodes import (
    MICROSOFT,
    attention_nodes,
    group_query_attention_nodes,
    multi_head_attention_nodes,
)
from .batch import Seen
from .branches import chosen, with_scalar_condition
from .node_writer import Nodes, NodeWriter
from .protos import attribute_of, attributes_of
from .resizing import resized
from .training_nodes import EXPANSIONS

_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def expanded(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Return the nodes that replace a node with known operands, or None to leave it.

    Parameters
    ----------
    node : NodeProto
        The node, which is not changed.
    seen : Seen
        The known facts of the graph up to the node.
    version : int
        The version of the operator set.
    """
    expand = _EXPANSIONS.get((node.domain.removeprefix("ai.onnx"), node.op_type))
    if expand is None or any(name and name not in seen.types for name in node.input):
        return None
    return expand(node, seen, version)


def _kind(seen: Seen, name: str) -> int:
    return int(seen.types[name].tensor_type.elem_type)


def _dtype(seen: Seen, name: str) -> npt.DTypeLike:
    return helper.tensor_dtype_to_np_dtype(_kind(seen, name))


def _in_float32(node: onnx.NodeProto, seen: Seen, _: int) -> Nodes | None:
    """Run a function without a 16-bit kernel in TVM in float32 and round its result."""
    if _kind(seen, node.input[0]) not in _NARROW:
        return None
    writer = NodeWriter(node)
    wide = writer.add("Cast", node.input[0], to=TensorProto.FLOAT)
    return writer.finish("Cast", [writer.add(node.op_type, wide)], to=_kind(seen, node.input[0]))


def _mod(node: onnx.NodeProto, seen: Seen, _: int) -> Nodes | None:
    """Expand a floor modulo of floats: the exact remainder, adjusted where signs differ.

    TVM computes ``x - floor(x / y) * y``, which is NaN for infinite divisors.
    """
    if _kind(seen, node.input[0]) not in _FLOATS or attribute_of(node, "fmod", 0):
        return None
    writer, (x, y) = NodeWriter(node), node.input
    zero = writer.constant(0, _dtype(seen, x))
    rest = writer.add("Mod", x, y, fmod=1)
    differ = writer.add("Xor", writer.add("Less", rest, zero), writer.add("Less", y, zero))
    moved = writer.add("Where", differ, writer.add("Add", rest, y), rest)
    signed_zero = writer.add("Mul", writer.add("Abs", rest), writer.add("Sign", y))
    return writer.finish("Where", [writer.add("Equal", rest, zero), signed_zero, moved])


def _prelu(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Expand slopes of any broadcastable shape, of integers and of scalars too.

    Before version 7 slopes that do not broadcast belong to the channels, dim 1.
    """
    writer, (x, slope) = NodeWriter(node), node.input
    shape, slopes = seen.shape(x), seen.shape(slope)
    if shape is None or slopes is None:
        return None
    if version < 7 and len(slopes) == 1 and len(shape) > 1 and not _fits(slopes, shape):
        sizes = writer.constant([slopes[0]] + [1] * (len(shape) - 2), "int64")
        return writer.finish("PRelu", [x, writer.add("Reshape", slope, sizes)])
    if _kind(seen, x) in _FLOATS and shape and _fits(slopes, shape):
        return None
    negative = writer.add("Less", x, writer.constant(0, _dtype(seen, x)))
    return writer.finish("Where", [negative, writer.add("Mul", x, slope), x])


def _fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether a shape broadcasts to another."""
    pairs = zip(reversed(shape), reversed(full))
    return len(shape) <= len(full) and all(a in (1, b) for a, b in pairs)


def _pad(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Expand negative pads into a crop."""
    shape = seen.shape(node.input[0])
    amounts = attribute_of(node, "pads", None)
    if version >= 11:
        amounts = seen.values.get(node.input[1])
    if shape is None or amounts is None:
        return None
    pads = np.asarray(amounts, "int64")
    if not (pads < 0).any():
        return None
    axes = np.arange(len(shape))
    if len(node.input) > 3 and node.input[3]:
        if node.input[3] not in seen.values:
            return None
        axes = np.asarray(seen.values[node.input[3]], "int64") % len(shape)
    writer = NodeWriter(node)
    begin, end = np.split(np.maximum(-pads, 0), 2)
    ends = np.maximum(np.asarray(shape)[axes] - end, begin)
    part = node.input[0]
    if version < 10:  # TVM reads no slices with attributes
        for axis, bounds in zip(axes.tolist(), zip(begin, ends, strict=True), strict=True):
            positions = writer.constant(np.arange(*bounds), "int64")
            part = writer.add("Gather", part, positions, axis=axis)
    else:
        operands = [writer.constant(values, "int64") for values in (begin, ends, axes)]
        part = writer.add("Slice", part, *operands)
    rest = np.maximum(pads, 0)
    if not rest.any():
        return writer.finish("Identity", [part])
    attributes = attributes_of(node)
    if version < 11:
        return writer.finish("Pad", [part], **{**attributes, "pads": rest.tolist()})
    operands = [part, writer.constant(rest, "int64"), *node.input[2:]]
    return writer.finish("Pad", operands, **attributes)


def _resize(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Expand a resize in its dtype where float32 is not exact."""
    mode = attribute_of(node, "mode", "nearest")
    exact: tuple[int, ...] = (TensorProto.DOUBLE,)
    if mode == "nearest":
        exact += (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
    shape = seen.shape(node.input[0])
    if _kind(seen, node.input[0]) not in exact or shape is None or version < 11:
        return None
    stretched = attribute_of(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
    other = [attribute_of(node, name, 0) for name in ("antialias", "exclude_outside")]
    if not stretched or any(other):
        return None
    scaled = _scaled(node, seen, shape)
    if scaled is None:
        return None
    attributes: dict[str, str | float] = {
        "mode": str(mode),
        "coordinate_transformation_mode": str(
            attribute_of(node, "coordinate_transformation_mode", "half_pixel")
        ),
        "nearest_mode": str(attribute_of(node, "nearest_mode", "round_prefer_floor")),
        "cubic_coeff_a": float(str(attribute_of(node, "cubic_coeff_a", -0.75))),
    }
    return resized(node, attributes, shape, *scaled, _dtype(seen, node.input[0]))


def _scaled(
    node: onnx.NodeProto, seen: Seen, shape: tuple[int, ...]
) -> tuple[list[int], list[float]] | None:
    """Return the result sizes and scales of a Resize, or None if unknown."""
    operands = [seen.values.get(name) if name else None for name in [*node.input, "", "", ""][2:4]]
    scales, sizes = (None if a is None or not a.size else a.tolist() for a in operands)
    axes = attribute_of(node, "axes", list(range(len(shape))))
    factors = sizes if scales is None else scales
    if factors is None or not isinstance(axes, list) or len(factors) != len(axes):
        return None
    result, ratios = list(shape), [1.0] * len(shape)
    for axis, value in zip(axes, factors, strict=True):
        result[axis] = int(value) if scales is None else int(np.floor(shape[axis] * value))
        ratios[axis] = value / shape[axis] if scales is None else float(value)
    return result, ratios


def _if(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Inline the chosen branch of a known condition, or make the condition scalar."""
    if node.input[0] in seen.values:
        return chosen(node, bool(seen.values[node.input[0]].all()))
    return with_scalar_condition(node, seen.shape(node.input[0]))


_EXPANSIONS: dict[tuple[str, str], Callable[[onnx.NodeProto, Seen, int], Nodes | None]] = {
    **{("", name): _in_float32 for name in "Acos Acosh Asin Asinh Atan Cosh Sinh".split()},
    ("", "Attention"): attention_nodes,
    ("", "If"): _if,
    ("", "Mod"): _mod,
    ("", "PRelu"): _prelu,
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    (MICROSOFT, "GroupQueryAttention"): group_query_attention_nodes,
    (MICROSOFT, "MultiHeadAttention"): multi_head_attention_nodes,
    **EXPANSIONS,
}
"""Expansions by the domain and the name of the operator."""
