# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the PrimFunc of a call once for all modules of a process.

To legalize a call, TVM writes it as a tensor expression and makes a PrimFunc of that, which takes
most of the time of compiling small models. The function of the expression and its arguments
determine the PrimFunc, which is immutable: modules of other tests with the same call share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.relax import block_builder

_make = block_builder.gen_call_tir_inputs
_known: dict[Any, tuple[Any, Any, Callable[..., Any]]] = {}
"""PrimFuncs with the types of their results, and the functions that keys name by addresses."""
_PLAIN = (type(None), bool, int, float, str)


class _UnknownError(Exception):
    """An argument is of a type whose content is not known."""


def _of_function(function: Callable[..., Any]) -> Any:
    """Return what a function computes: its code, and the values that it holds."""
    code = getattr(function, "__code__", None)
    if code is None or function.__kwdefaults__:
        raise _UnknownError
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = function.__defaults__ or ()
    return code, id(function.__globals__), tuple(map(_key, held)), tuple(map(_key, defaults))


def _key(value: Any) -> Any:
    """Return the content of an argument of a tensor expression, but for the data of tensors."""
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return type(value), str(value.ty), repr(value.value)
    if isinstance(value, relax.ShapeExpr):
        return relax.ShapeExpr, tuple(map(_key, value.values))
    if isinstance(value, ir.Expr) and isinstance(value.ty, relax.TensorType):
        ty = value.ty
        if not isinstance(ty.shape, relax.ShapeExpr) or ty.vdevice is not None:
            raise _UnknownError
        # Parameters of the PrimFunc have the names of variables.
        name = str(value.name) if isinstance(value, relax.Var) else ""
        return relax.TensorType, name, str(ty.dtype), _key(ty.shape)
    if callable(value):
        return _of_function(value)
    raise _UnknownError


def _tensors(values: Any) -> list[Any]:
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    is_tensor = isinstance(values, ir.Expr) and isinstance(values.ty, relax.TensorType)
    return [values] if is_tensor else []


def quick_call_tir_inputs(function: Callable[..., Any], *values: Any, **more: Any) -> Any:
    """Return what TVM's ``gen_call_tir_inputs`` does."""
    operands = _tensors([*values, *more.values()])
    try:
        target = tvm.target.Target.current(allow_none=True)
        call = _of_function(function), _key(values), _key([*more.items()])
        key = str(target), call
    except (_UnknownError, RecursionError, ValueError):  # a function that holds itself, or nothing
        return _make(function, *values, **more)
    if key not in _known:
        made, operands_of_call, types = _make(function, *values, **more)
        same = len(operands) == len(operands_of_call)
        if not same or any(a is not b for a, b in zip(operands, operands_of_call, strict=True)):
            return made, operands_of_call, types
        _known[key] = made, types, function
    made, types, _ = _known[key]
    return made, operands, types


def install() -> None:
    """Let TVM 0.27 call the function of this file; in another version it may be another."""
    if not tvm.__version__.startswith("0.27."):
        return
    block_builder.gen_call_tir_inputs = quick_call_tir_inputs
