# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register the repaired maximum and minimum as reductions that threads of a GPU can share.

TVM reduces across threads by the reductions that it knows by their form. :mod:`.repair` changes
the form of a maximum, so that it keeps NaN.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .repair import repaired_extreme


@functools.cache
def register_gpu_reducers() -> None:
    """Register the reductions, once per process."""
    register = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")
    for extreme, begin in ((tirx.Max, -math.inf), (tirx.Min, math.inf)):
        functions = [
            tvm_ffi.convert(functools.partial(_combined, extreme)),
            tvm_ffi.convert(functools.partial(_identity, begin)),
        ]
        for function in functions:
            # TVM holds it until the process ends, when no Python function can be released.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
        register(1, *functions)


def _combined(extreme: Any, left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> list[ir.Expr]:
    return [repaired_extreme(extreme(left[0], right[0]))]


def _identity(begin: float, values: Sequence[ir.Expr]) -> list[ir.Expr]:
    dtype = str(values[0].ty.dtype)
    if "float" in dtype:
        return [tirx.const(begin, dtype)]
    return [tirx.min_value(dtype) if begin < 0 else tirx.max_value(dtype)]
