# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and make the messages of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Message = TypeVar("Message", onnx.NodeProto, onnx.ModelProto, onnx.TensorProto)


def copied(message: Message) -> Message:
    """Return a copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def refill(field: Any, messages: Iterable[object]) -> None:
    """Replace the messages of a repeated field."""
    values = list(messages)
    del field[:]
    field.extend(values)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node, by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def attribute_of(node: onnx.NodeProto, name: str, default: object) -> Any:
    """Return an attribute of a node, texts decoded."""
    values = [helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    value = values[0] if values else default
    return value.decode() if isinstance(value, bytes) else value


def constant_node(
    name: str, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None
) -> onnx.NodeProto:
    """Return a node named after its result, a constant."""
    tensor = numpy_helper.from_array(np.asarray(values, dtype), name)
    return helper.make_node("Constant", [], [name], name=name, value=tensor)
