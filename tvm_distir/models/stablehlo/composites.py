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
Conversion = Callable[[Any], Any]

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


def _one(kind: type, make: Conversion = lambda value: value) -> Conversion:
    """Return the conversion of a value of exactly a type; None for any other value."""
    return lambda value: make(value) if type(value) is kind else None


def _several(convert: Conversion) -> Conversion:
    """Return the conversion of a list; None unless all of its items can be converted."""

    def converted(value: Any) -> Any:
        items = [convert(item) for item in value] if isinstance(value, list) else [None]
        return None if any(item is None for item in items) else items

    return converted


_INTEGER = _one(int, lambda value: tirx.IntImm("int64", value))
_FLOAT = _one(float, lambda value: tirx.FloatImm("float32", value))
_INTEGERS = _several(_one(int))
_KINDS: dict[str, Conversion] = {
    **{kind.__name__: _one(kind) for kind in (int, bool, float, str)},
    "dtype": _one(str),
    "Array[int]": _INTEGERS,
    "Array[float]": _several(_one(float)),
    "Array[ir.FloatImm]": _several(_FLOAT),
    "Object": lambda value: (_several(_INTEGER) if isinstance(value, list) else _INTEGER)(value),
    "ir.FloatImm": _FLOAT,
    "ir.IntImm": _INTEGER,
}
"""The conversions of fields to these types; an ``Object`` is an integer or several, for splits."""


def _fields(key: str, attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return the attribute fields of an op, or None if any is missing, unknown or mistyped."""
    info: Any = type_info(key)
    kinds = {str(field.name): str(field.ty) for field in info.fields}
    if set(attributes) - set(kinds):
        return None
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        may_lack = kind.endswith(" | None")
        make = _KINDS.get(kind.removesuffix(" | None"))
        field_value = make(attributes.get(name)) if make else None
        if field_value is None and (name in attributes or not may_lack):
            return None
        fields[name] = field_value
    return fields


def _leaves(item: object) -> Iterator[object]:
    """Yield the items of nested lists."""
    if isinstance(item, list):
        for part in item:
            yield from _leaves(part)
    else:
        yield item


def _tensors(arguments: list[object]) -> int:
    """Return the number of tensors in arguments, or -1 if another tool wrote them."""
    leaves = list(_leaves(arguments))
    known = all(leaf is True or _is_shape(leaf) or _is_number(leaf) for leaf in leaves)
    return sum(leaf is True for leaf in leaves) if known else -1


def _is_shape(item: Any) -> bool:
    is_shape = isinstance(item, dict) and set(item) == {"shape"}
    return is_shape and _INTEGERS(item["shape"]) is not None


def _is_number(item: Any) -> bool:
    good = isinstance(item, dict) and set(item) == {"number", "type"}
    good = good and type(item["number"]) in (int, float, bool)
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
