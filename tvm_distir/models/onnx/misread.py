# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reject nodes that TVM's importer would silently misread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tvm_distir.support import ModelError

from .batch import Seen, node_location
from .protos import attribute_of


def check_read(node: onnx.NodeProto, seen: Seen) -> None:
    """Reject a node that would be imported with another meaning (DIST0312)."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _FAULTS:
        return
    fault = _FAULTS[node.op_type](node, seen)
    if fault is not None:
        problem = f"TVM's importer translates it incorrectly: {fault[0]}"
        raise ModelError("DIST0312", problem, location=node_location(node), remedy=fault[1])


Fault = tuple[str, str] | None
"""The part that is misread, and a remedy."""


TOPK_TYPES = tuple(
    TensorProto.DataType.Value(name)
    for name in "FLOAT DOUBLE FLOAT16 INT8 INT32 INT64 UINT8".split()
)
"""The types that TVM's sort compares; a program with other types fails as it runs."""


def reads(node: onnx.NodeProto, first: int, seen: Seen) -> bool:
    """Return whether a result of the given number, or a later result, is read."""
    return any(name in seen.readers for name in list(node.output)[first:] if name)


def attention_fault(node: onnx.NodeProto, seen: Seen) -> Fault:
    """Return what of an ``Attention`` of ONNX is not written out (:mod:`.attention_nodes`)."""
    if reads(node, 3, seen):
        return "it has no result qk_matmul_output", "Compute the scores with MatMul."
    for name in ("left_window_size", "right_window_size"):
        if attribute_of(node, name, -1) != -1:
            return f"{name} is ignored", "Give attn_mask instead."
    q, k, _v, mask, past = (list(node.input) + [""] * 4)[:5]
    if any(shape is None for shape in [seen.shape(name) for name in (q, k, mask, past) if name]):
        return "the sizes of its operands are unknown", "Export the model with static shapes."
    keys = (seen.shape(k) or (0,))[-2] + ((seen.shape(past) or (0, 0))[-2] if past else 0)
    if mask and (seen.shape(mask) or (keys,))[-1] not in (1, keys):
        return "attn_mask has fewer columns than there are keys", "Pad it to the number of keys."
    return None


def _conv_transpose(node: onnx.NodeProto, seen: Seen) -> Fault:
    fault = "output_shape is ignored", "Give pads and output_padding instead."
    return fault if any(a.name == "output_shape" for a in node.attribute) else None


def _is_inf(node: onnx.NodeProto, seen: Seen) -> Fault:
    if not (attribute_of(node, "detect_positive", 1) and attribute_of(node, "detect_negative", 1)):
        return "both signs are detected", "Leave detect_positive and detect_negative at 1."
    return None


def _upsample(node: onnx.NodeProto, seen: Seen) -> Fault:
    fault = "it computes in float32", "Cast the operand to float32."
    return fault if seen.types[node.input[0]].tensor_type.elem_type == TensorProto.DOUBLE else None


def _resize(node: onnx.NodeProto, seen: Seen) -> Fault:
    for name in ("antialias", "exclude_outside"):
        if attribute_of(node, name, 0):
            return f"{name} is ignored", f"Leave {name} at 0."
    scales = seen.values.get(node.input[2]) if len(node.input) > 2 else None
    shape = seen.shape(node.input[0])
    if scales is None or shape is None or scales.size != len(shape):
        return _upsample(node, seen)
    sizes = np.asarray(scales, "float64") * np.asarray(shape)
    if np.abs(sizes - np.round(sizes)).max(initial=0.0) > 1e-4:
        return "it scales by the ratio of the rounded sizes", "Give sizes instead of scales."
    return _upsample(node, seen)


def _roi_align(node: onnx.NodeProto, seen: Seen) -> Fault:
    fault = "the mode max interpolates before it compares", "Use the mode avg."
    return fault if attribute_of(node, "mode", "") == "max" else None


def _space_to_depth(node: onnx.NodeProto, seen: Seen) -> Fault:
    fault = "the mode is ignored", "Use the mode DCR."
    return fault if attribute_of(node, "mode", "") == "CRD" else None


def _topk(node: onnx.NodeProto, seen: Seen) -> Fault:
    if seen.types[node.input[0]].tensor_type.elem_type not in TOPK_TYPES:
        return "its sort does not support the type", "Cast the operand to float32 or int64."
    return None


_FAULTS: dict[str, Callable[[onnx.NodeProto, Seen], Fault]] = {
    "Attention": attention_fault,
    "ConvTranspose": _conv_transpose,
    "IsInf": _is_inf,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
    "TopK": _topk,
    "Upsample": _upsample,
}
