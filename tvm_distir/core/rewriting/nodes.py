# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create and read IR nodes fast, through TVM's constructors without their Python layers.

The Python constructors convert and check arguments that are known to be right here; a pass that
rewrites each binding of a large module spends most of its time there. A container read by a
slice, ``array[:]``, comes at a third of the cost of iterating over it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi
from tvm import ir, relax

from tvm_distir.support import GenericConst

_VAR = tvm_ffi.get_global_func("ir.Var")
_DATAFLOW_VAR = tvm_ffi.get_global_func("relax.DataflowVar")
_CALL = tvm_ffi.get_global_func("ir.Call")
_MISSING = ir.Type.missing()
_ITEM = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_BINDING = tvm_ffi.get_global_func("relax.VarBinding")


def argument(call: ir.Call, number: int) -> ir.Expr:
    """Return an argument of a call."""
    return _ITEM(call.args, number)


def make_var(name: str, ty: ir.Type, dataflow: bool = False) -> ir.Expr:
    """Return a Relax variable; ``dataflow``: a variable that its dataflow block hides."""
    return (_DATAFLOW_VAR if dataflow else _VAR)(name, ty, None)


def make_call(
    op: ir.Expr,
    args: Sequence[ir.Expr],
    attrs: Any,
    ty_args: Sequence[ir.Type] | None,
    ty: ir.Type | None,
    span: Any = None,
) -> ir.Call:
    """Return a call; its type is inferred later where it is None."""
    return _CALL(_MISSING if ty is None else ty, op, args, attrs, ty_args, span)


def make_binding(var: relax.Var, value: ir.Expr) -> relax.Binding:
    """Return the binding ``var = value``."""
    return _BINDING(var, value, None)


@functools.cache
def _scalar_of_digits(digits: str, dtype: str) -> ir.Expr:
    return relax.const(float.fromhex(digits), dtype)


def scalar(value: float, dtype: str) -> ir.Expr:
    """Make a constant (), a separate node; equal ones share their data, which costs most."""
    known = _scalar_of_digits(float(value).hex(), dtype)
    return GenericConst(known.value, known.ty)


@functools.lru_cache(maxsize=1 << 10)
def _scalar_of_bytes(data: bytes, dtype: str) -> ir.Expr:
    return relax.const(np.frombuffer(data, dtype).reshape(()), dtype)


def scalar_of(array: npt.NDArray[Any]) -> ir.Expr:
    """Return a constant as :func:`scalar` does, from a NumPy array of shape ()."""
    known = _scalar_of_bytes(array.tobytes(), str(array.dtype))
    return GenericConst(known.value, known.ty)
