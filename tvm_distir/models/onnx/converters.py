# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the operators that this package converts to Relax, in place of TVM's importer.

These are operators of ONNX Runtime's domain ``com.microsoft``, which it also writes without a
domain, and operators of ONNX that TVM's importer does not know, such as optimizers, or reads only
in part.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from . import gradient_nodes, loss_nodes, norm_nodes, runtime_nodes, update_nodes
from .attention_nodes import MICROSOFT
from .batch import Seen
from .misread import reads
from .node_call import PREFIX, Converter
from .protos import attribute_of, copied

CONVERTERS: dict[str, Converter] = {
    **gradient_nodes.CONVERTERS,
    **loss_nodes.CONVERTERS,
    **norm_nodes.CONVERTERS,
    **runtime_nodes.CONVERTERS,
    **update_nodes.CONVERTERS,
}
"""Converters by the name of the operator."""

_STANDARD: dict[str, Callable[[onnx.NodeProto, Seen], bool]] = {
    "BatchNormalization": lambda node, seen: bool(attribute_of(node, "training_mode", 0)),
    "Dropout": lambda node, seen: len(node.input) > 2 or reads(node, 1, seen),
    "LayerNormalization": lambda node, seen: reads(node, 1, seen),
    "NegativeLogLikelihoodLoss": lambda node, seen: True,
    "SoftmaxCrossEntropyLoss": lambda node, seen: True,
}
"""When operators of ONNX are converted here."""


def converter_of(node: onnx.NodeProto, seen: Seen, version: int) -> Converter | None:
    """Return the converter of a node, or None if TVM's importer reads it."""
    converter, domain = CONVERTERS.get(node.op_type), node.domain
    if converter is None or domain in (MICROSOFT, update_nodes.PREVIEW):
        return converter
    if domain not in ("", "ai.onnx"):
        return None
    condition = _STANDARD.get(node.op_type)
    if onnx.defs.has(node.op_type, version, "") and not (condition and condition(node, seen)):
        return None
    return converter


def marked(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a copy of a converted node, whose operator says so."""
    copy = copied(node)
    copy.op_type, copy.domain = PREFIX + node.op_type, ""
    return copy
