# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create and read IR nodes fast, through TVM's constructors without their Python layers.

The Python constructors convert and check arguments that are known to be right here; a pass that
rewrites each binding of a large module spends most of its time there. A container read by a
slice, ``array[:]``, comes at a third of the cost of iterating over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax  # noqa: F401  (they register the constructors)

_VAR = tvm_ffi.get_global_func("ir.Var")
_DATAFLOW_VAR = tvm_ffi.get_global_func("relax.DataflowVar")
_CALL = tvm_ffi.get_global_func("ir.Call")
_MISSING = ir.Type.missing()
_ITEM = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_BINDING = tvm_ffi.get_global_func("relax.VarBinding")


def argument(call: Any, number: int) -> Any:
    """Return an argument of a call."""
    return _ITEM(call.args, number)


def make_var(name: str, ty: Any, dataflow: bool = False) -> Any:
    """Return a Relax variable; ``dataflow``: a variable that its dataflow block hides."""
    return (_DATAFLOW_VAR if dataflow else _VAR)(name, ty, None)


def make_call(
    op: Any, args: Sequence[Any], attrs: Any, ty_args: Any, ty: Any, span: Any = None
) -> Any:
    """Return a call; its type is inferred later where it is None."""
    return _CALL(_MISSING if ty is None else ty, op, args, attrs, ty_args, span)


def make_binding(var: Any, value: Any) -> Any:
    """Return the binding ``var = value``."""
    return _BINDING(var, value, None)
