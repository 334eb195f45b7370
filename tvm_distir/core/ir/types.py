# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Query and build Relax types and functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.distributed import DeviceMesh, DTensorType

from .arrays import unpack
from .attributes.keys import CODEGEN_ATTR
from .handles import handle
from .placement import placement_of

_DTENSOR_TYPE = tvm_ffi.get_global_func("relax.distributed.DTensorType")


TENSOR_TYPES = (relax.TensorType, DTensorType)
"""Types of tensors; TVM's type classes have no subclasses."""


def tensor_type(ty: ir.Type) -> relax.TensorType | None:
    """Return the plain tensor type of a Tensor or DTensor type, None for other types."""
    kind = type(ty)  # TVM's type classes have no subclasses, and isinstance costs six times this
    if kind is relax.TensorType:
        return ty
    return ty.tensor_ty if kind is DTensorType else None


TENSORS_ONLY = "Pass tensors, (nested) tuples of tensors, or objects (R.Any)."
"""What to do about a parameter of a public function of another type."""


def is_object(ty: ir.Type) -> bool:
    """Return whether a type is that of an opaque object, of which each device has its own."""
    return type(ty) is relax.AnyType


def is_shape(ty: ir.Type) -> bool:
    """Return whether a type is that of a shape whose dims are all static."""
    known = type(ty) is relax.ShapeType and ty.values is not None
    return known and all(type(n) is tirx.IntImm for n in ty.values[:])


def flat_types(ty: ir.Type) -> list[ir.Type]:
    """Return the leaves of a (nested) tuple type, in order."""
    if type(ty) is not relax.TupleType:
        return [ty]
    leaves, pending = [], unpack(ty.fields)[::-1]
    while pending:
        ty = pending.pop()
        if type(ty) is relax.TupleType:
            pending += unpack(ty.fields)[::-1]
        else:
            leaves.append(ty)
    return leaves


def named_leaves(name: str, ty: ir.Type) -> list[tuple[str, Any]]:
    """Return the names and types of the tensors of a parameter, as in ``x_0``, ``x_1_0``."""
    if not isinstance(ty, relax.TupleType):
        return [(name, ty)]
    return [
        leaf for i, field in enumerate(ty.fields) for leaf in named_leaves(f"{name}_{i}", field)
    ]


def carries_value(ty: ir.Type) -> bool:
    """Return whether a leaf type is a tensor or an opaque object (not a shape or a scalar)."""
    return type(ty) in (relax.TensorType, DTensorType, relax.AnyType)


def value_types(ty: ir.Type) -> list[ir.Type]:
    """Return the leaves of a (nested) tuple type that carry values, in order."""
    return [leaf for leaf in flat_types(ty) if carries_value(leaf)]


class FieldLeaves:
    """The positions of the leaves of a field among those of its tuple, cached by tuple.

    Parameters
    ----------
    leaves : callable
        Leaves of a type: :func:`flat_types` or :func:`value_types`.
    """

    def __init__(self, leaves: Callable[[Any], list[Any]] = flat_types) -> None:
        self._leaves = leaves
        self._ends: dict[int, tuple[ir.Expr, list[int]]] = {}  # by handle of the tuple

    def of(self, item: relax.TupleGetItem) -> range:
        """Return the numbers of the leaves of a field."""
        full, index = item.tuple_value, int(item.index)
        known = self._ends.get(handle(full))
        if known is None:
            counts = [len(self._leaves(field)) for field in unpack(full.ty.fields)]
            known = self._ends[handle(full)] = full, [0, *itertools.accumulate(counts)]
        return range(known[1][index], known[1][index + 1])


def as_dtensor(ty: ir.Type, mesh: DeviceMesh, labels: Sequence[int]) -> DTensorType:
    """Return the DTensor type of a Tensor (or DTensor) type on a mesh."""
    return _DTENSOR_TYPE(tensor_type(ty), mesh, placement_of(labels), None)


def plain_type(ty: ir.Type) -> ir.Type:
    """Return a type with plain tensors in place of those on a mesh."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([plain_type(field) for field in ty.fields])
    return ty.tensor_ty if isinstance(ty, DTensorType) else ty


def static_shape(ty: ir.Type) -> tuple[Any, ...] | None:
    """Return the dims of a (D)Tensor type, ints or symbolic expressions; None if unknown."""
    tensor = tensor_type(ty)
    shape = None if tensor is None else tensor.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(n.value if type(n) is tirx.IntImm else n for n in shape.values[:])


def known_shape(ty: ir.Type) -> tuple[int, ...] | None:
    """Return the dims of a (D)Tensor type; None where some are symbolic, or it is no tensor."""
    shape = static_shape(ty)
    return None if shape is None or not all(isinstance(n, int) for n in shape) else shape


def element_type(ty: ir.Type) -> str:
    """Return the element type of a tensor type."""
    tensor: Any = tensor_type(ty)
    return str(tensor.dtype)


def is_number(ty: ir.Type) -> bool:
    """Return whether it is the type of a float without dims."""
    tensor = tensor_type(ty)
    return tensor is not None and int(tensor.ndim) == 0 and "float" in str(tensor.dtype)


def is_private(fn: relax.Function) -> bool:
    """Return whether a function is called from inside the module only, as one of a library is."""
    attrs = fn.attrs
    return attrs is None or "global_symbol" not in attrs or CODEGEN_ATTR in attrs


def relax_functions(mod: ir.IRModule) -> list[tuple[ir.GlobalVar, relax.Function]]:
    """Return the module's Relax functions, in order of name."""
    functions = [(gv, fn) for gv, fn in mod.functions.items() if isinstance(fn, relax.Function)]
    return sorted(functions, key=lambda item: str(item[0].name_hint))
