# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent a node that this package converts to Relax, in place of TVM's importer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import astype, expand_dims, permute_dims, reshape, where

from tvm_distir.core.rewriting import scalar
from tvm_distir.models.common.quiet import IMPORT_ERRORS, drop_half_built, reason
from tvm_distir.models.common.translation import HALVES, Unsupported, dtype_of, shape_of
from tvm_distir.support import GenericConst, ModelError

from .batch import node_location
from .protos import attributes_of

PREFIX = "com.microsoft."
"""Begins the operator of a converted node, which TVM's importer cannot have a converter for."""


@dataclass(frozen=True)
class NodeCall:
    """Operands of a node in Relax, and the writer of its results.

    Attributes
    ----------
    inputs : sequence of Expr or None
        The operands; None for an optional one that is left out.
    attributes : mapping
        By name; texts are bytes.
    count : int
        The number of results that the node names.
    builder : BlockBuilder
        A builder, inside a block.
    """

    inputs: Sequence[Expr | None]
    attributes: Mapping[str, Any]
    count: int
    builder: BlockBuilder

    def __getitem__(self, index: int) -> Expr:
        value = self.get(index)
        if value is None:
            raise Unsupported(f"operand {index} is missing")
        return value

    def get(self, index: int) -> Expr | None:
        """Return an optional operand."""
        return self.inputs[index] if index < len(self.inputs) else None

    def numbers(self, index: int) -> npt.NDArray[np.generic]:
        """Return the values of a constant operand."""
        value = self[index]
        if not isinstance(value, GenericConst):
            raise Unsupported(f"operand {index} is no constant")
        return np.asarray(value.value.numpy())

    def number(self, key: str, usual: float) -> float:
        """Return an attribute that is a number."""
        return float(self.attributes.get(key, usual))

    def whether(self, key: str, usual: bool = False) -> bool:
        """Return an attribute that is a flag."""
        return bool(self.attributes.get(key, usual))

    def text(self, key: str, usual: str) -> str:
        """Return an attribute that is a text."""
        value = self.attributes.get(key, usual)
        return value.decode() if isinstance(value, bytes) else str(value)

    def emit(self, value: Expr) -> Expr:
        """Bind an expression to a variable."""
        return value if isinstance(value, ir.Var) else self.builder.emit(value)

    def cast(self, value: Expr, dtype: str) -> Expr:
        """Cast a tensor."""
        value = self.builder.normalize(value)
        return value if dtype_of(value) == dtype else self.emit(astype(value, dtype))

    def wide(self, value: Expr) -> Expr:
        """Cast a 16-bit float to float32."""
        return self.cast(value, "float32") if dtype_of(value) in HALVES else value

    def like(self, values: Sequence[Expr], *examples: Expr) -> list[Expr]:
        """Cast values to the types of others, one by one."""
        return [self.cast(v, dtype_of(x)) for v, x in zip(values, examples, strict=True)]

    def constant(self, number: float, like: Expr) -> Expr:
        """Return a number of the type of a tensor."""
        return scalar(number, dtype_of(like))

    def shaped(self, value: Expr, shape: Sequence[int]) -> Expr:
        """Reshape a tensor, if it has another shape."""
        value = self.builder.normalize(value)
        return value if shape_of(value) == tuple(shape) else self.emit(reshape(value, list(shape)))

    def swapped(self, value: Expr, first: int, other: int) -> Expr:
        """Swap two dims."""
        order = list(range(len(shape_of(value))))
        order[first], order[other] = order[other], order[first]
        return self.emit(permute_dims(value, order))

    def column(self, value: Expr, rank: int) -> Expr:
        """Reshape a vector of channels to broadcast with a tensor whose dim 1 they are."""
        return self.emit(expand_dims(value, [0, *range(2, rank)])) if rank > 1 else value

    def unless(self, flag: Expr | None, old: Expr, new: Expr) -> Expr:
        """Return ``new`` where a flag of one element is true or absent, ``old`` elsewhere."""
        return new if flag is None else self.emit(where(self.shaped(flag, ()), new, old))


Converter = Callable[[NodeCall], Sequence[Expr]]
"""A function from a node to its results, more or as many as it names, not all emitted."""


def size_of(value: Expr) -> int:
    """Return the number of elements of a tensor."""
    return math.prod(shape_of(value))


def converted_types(
    converter: Converter,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, npt.NDArray[np.generic]],
) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of a node, by converting it on variables.

    Raises
    ------
    ModelError
        DIST0312 where a part of the node is not converted; DIST0310 types that do not fit.
    """
    try:
        results = _results(converter, node, types, values)
    except Unsupported as error:
        drop_half_built(error)
        remedy = "Write it in standard ONNX operators."
        location = node_location(node)
        raise ModelError("DIST0312", str(error), location=location, remedy=remedy) from error
    except IMPORT_ERRORS as error:
        drop_half_built(error)
        problem = f"the operands or attributes do not fit: {reason(error)}"
        remedy = "Compare the node with the operator's documentation."
        location = node_location(node)
        raise ModelError("DIST0310", problem, location=location, remedy=remedy) from error
    return {name: _type(value) for name, value in zip(node.output, results, strict=True) if name}


def _results(
    converter: Converter,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, npt.NDArray[np.generic]],
) -> list[Expr]:
    """Convert a node on variables, and on constants where values are known."""
    builder = BlockBuilder()
    params = {
        name: _variable(types[name], name) for name in node.input if name and name not in values
    }
    inputs = [
        relax.const(values[name]) if name in values else params[name] if name else None
        for name in node.input
    ]
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            count = len(node.output)
            call = NodeCall(inputs, attributes_of(node), count, builder)
            results = [call.emit(value) for value in converter(call)[:count]]
            if len(results) < count:
                raise Unsupported(f"it has {len(results)} results here, not {count}")
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return results


def _variable(kind: onnx.TypeProto, name: str) -> relax.Var:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise Unsupported(f'the sizes of "{name}" are unknown')
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return relax.Var(name, relax.TensorType([d.dim_value for d in tensor.shape.dim], dtype))


def _type(value: Expr) -> onnx.TypeProto:
    kind = onnx.TensorProto.DataType.Value(
        _ONNX_NAMES.get(dtype_of(value), dtype_of(value).upper())
    )
    return helper.make_tensor_type_proto(kind, shape_of(value))


_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}
