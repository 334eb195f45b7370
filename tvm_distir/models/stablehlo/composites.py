# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import composites that name Relax ops, as exported, as calls of these ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax import Expr

from tvm_distir.models.export.composites import ARGUMENTS
from tvm_distir.models.export.port_attributes import PREFIX
from tvm_distir.models.mlir.tree import Operation
from tvm_distir.support import shipped_data, type_info

from .emitter import Emitter
from .translated_values import Tensors, TranslatedTensor, array_type

COMPOSITE = "stablehlo.composite"

OPS = frozenset(shipped_data(__file__, "composite_ops.json"))
"""Names of the ops that composites may name, without ``relax.``."""
_STATISTICS = ("max", "mean", "min", "prod", "std", "sum", "variance")
_UNREGISTERED_TYPES = {
    "matmul": "relax.attrs.MatmulAttrs",
    **{name: "relax.attrs.ArgmaxArgminAttrs" for name in ("argmax", "argmin")},
    **{name: "relax.attrs.StatisticalAttrs" for name in _STATISTICS},
}
"""Types of attributes where TVM's registry of ops does not say them: without, it would crash."""


def is_known(operation: Operation) -> bool:
    """Return whether a composite names an op and has all of its attributes."""
    return operation.name == COMPOSITE and _maker(operation) is not None


def read_composite(operation: Operation, operands: Tensors, write: Emitter) -> Tensors | None:
    """Return the results of a composite that names an op, or None for any other."""
    make = _maker(operation)
    if make is None:
        return None
    write.hint = str(operation.attributes["name"]).rpartition(".")[2]
    return write.values(write.emit(make([_full(value, write) for value in operands])))


def _full(value: TranslatedTensor, write: Emitter) -> Expr:
    """Return an operand, with constants of equal numbers unexpanded."""
    number = value.scalar
    if number is None or not value.shape:
        return write.full(value)
    return relax.const(np.full(value.shape, number, array_type(value.dtype)), value.dtype)


def _maker(operation: Operation) -> Callable[[list[Expr]], Expr] | None:
    """Return the maker of a composite's call, or None if it does not fit the op."""
    stated: Any = operation.attributes.get("composite_attributes") or {}
    title = str(operation.attributes.get("name", ""))
    name = title.removeprefix(f"{PREFIX}.")
    if name == title or not isinstance(stated, dict):
        return None
    arguments = stated.get(ARGUMENTS, [True] * len(operation.operands))
    attributes = {key: value for key, value in stated.items() if key != ARGUMENTS}
    if name not in OPS or not isinstance(arguments, list):
        return None
    if _tensors(arguments) != len(operation.operands):
        return None
    op = ir.Op.get(f"relax.{name}")
    key = attributes_type(name, op)
    fields = _fields(key, attributes) if key else attributes
    if fields is None or (fields and not key):
        return None
    attrs = ir.make_node(key, **fields) if key else None

    def make(operands: list[Expr]) -> Expr:
        values = iter(operands)
        return relax.Call(op, [_argument(item, values) for item in arguments], attrs)

    return make


_KINDS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: value if type(value) is int else None,
    "bool": lambda value: value if type(value) is bool else None,
    "float": lambda value: value if type(value) is float else None,
    "str": lambda value: value if type(value) is str else None,
    "dtype": lambda value: value if type(value) is str else None,
    "Array[int]": lambda value: _listed(value, int),
    "Array[float]": lambda value: _listed(value, float),
    "Array[ir.FloatImm]": lambda value: _floats(value),
    "Object": lambda value: _integers(value),
    "ir.FloatImm": lambda value: tirx.FloatImm("float32", value) if _is(value, float) else None,
    "ir.IntImm": lambda value: tirx.IntImm("int64", value) if _is(value, int) else None,
}
"""The conversions of fields to these types; None for any other value."""


def _nothing(_: object) -> Any:
    return None


def _is(value: object, kind: type) -> bool:
    return type(value) is kind


def _listed(value: object, kind: type) -> Any:
    good = isinstance(value, list) and all(type(item) is kind for item in value)
    return value if good else None


def _integers(value: object) -> Any:
    """Return an integer or several, as ``split`` has them."""
    if _is(value, int):
        return tirx.IntImm("int64", value)
    items = _listed(value, int)
    return None if items is None else [tirx.IntImm("int64", item) for item in items]


def _floats(value: object) -> Any:
    items = _listed(value, float)
    return None if items is None else [tirx.FloatImm("float32", item) for item in items]


def _fields(key: str, attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return the attribute fields of an op, or None if any is missing, unknown or mistyped."""
    info: Any = type_info(key)
    kinds = {str(field.name): str(field.ty) for field in info.fields}
    if set(attributes) - set(kinds):
        return None
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        may_lack = kind.endswith(" | None")
        make: Callable[[Any], Any] = _KINDS.get(kind.removesuffix(" | None"), _nothing)
        field_value = make(attributes.get(name))
        if field_value is None and (name in attributes or not may_lack):
            return None
        fields[name] = field_value
    return fields


def _tensors(arguments: list[object]) -> int:
    """Return the number of tensors in arguments, or -1 if another tool wrote them."""
    count = 0
    for item in arguments:
        inner = 1 if item is True else 0
        if isinstance(item, list):
            inner = _tensors(item)
        elif isinstance(item, dict):
            inner = 0 if _is_shape(item) or _is_number(item) else -1
        elif item is not True:
            inner = -1
        if inner < 0:
            return -1
        count += inner
    return count


def _is_shape(item: dict[str, object]) -> bool:
    return set(item) == {"shape"} and _listed(item["shape"], int) is not None


def _is_number(item: dict[str, object]) -> bool:
    good = set(item) == {"number", "type"} and type(item["number"]) in (int, float, bool)
    return good and item["type"] in ("int64", "int32", "float32", "float64", "bool")


def _argument(item: Any, values: Iterator[Expr]) -> Any:
    if item is True:
        return next(values)
    if isinstance(item, list):
        return relax.Tuple([_argument(part, values) for part in item])
    if "shape" in item:
        return relax.ShapeExpr(item["shape"])
    return tirx.const(item["number"], item["type"])


def attributes_type(name: str, op: Any) -> str:
    """Return the attribute type of an op, or an empty text if it has none."""
    return _UNREGISTERED_TYPES.get(name, str(op.attrs_type_key))
