# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate modules of narrow float types (16 and 8 bits) in float32.

Two evaluations of a module use float32 kernels alone, so that no fault of a kernel of a narrow type
is in either of them:

- the *reference* rounds nothing to a narrow type: casts to such a type change no value either;
- the *rounded reference* rounds the result of each op to the type that the module gives it, and
  nothing within an op. This is the best that a device with values of that type can do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_distir.core.rewriting import called_name, map_functions
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import GenericConst, visits_constants

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
WIDE = "float32"

_ROUND = "tvm_distir.verification.round_to_"
_COPIES = frozenset(
    f"relax.{name}"
    for name in (
        *("broadcast_to", "concat", "expand_dims", "flatten", "flip", "gather_elements"),
        *("permute_dims", "repeat", "reshape", "split", "squeeze", "stack", "strided_slice"),
        *("take", "tile", "where", "nn.relu"),
    )
)
"""Ops whose results are values of their operands, which are rounded already."""


@mutator
@visits_constants
class _WideConstants(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Converts the values of constants whose type was widened."""

    def __init__(self, mod: ir.IRModule, wide: str) -> None:
        super().__init__(mod)
        self._wide = wide

    def visit_generic_const_(self, const: GenericConst) -> GenericConst:
        value = const.value
        if not isinstance(value, tvm.runtime.Tensor):
            return const
        if str(value.dtype) not in _widened_types(self._wide):
            return const
        return relax.const(value.numpy().astype(np_dtype(self._wide)), self._wide)


@mutator
class _Rounded(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Calls a function behind each op of a narrow type that rounds to this type."""

    def visit_call_(self, call: ir.Call) -> relax.Expr:
        result = super().visit_call_(call)
        if not isinstance(call.op, ir.Op) or called_name(call) in _COPIES:
            return result
        return self._rounded(result, call.ty)

    def _rounded(self, value: relax.Expr, ty: ir.Type) -> relax.Expr:
        if isinstance(ty, relax.TupleType):
            full = self.builder_.emit(value)
            fields = [
                self._rounded(relax.TupleGetItem(full, i), t) for i, t in enumerate(ty.fields)
            ]
            return relax.Tuple([self.builder_.emit(field) for field in fields])
        if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in NARROW:
            return value
        operand = self.builder_.emit(value)
        return relax.op.call_pure_packed(f"{_ROUND}{ty.dtype}", operand, ty_args=ty)


def _rounding_to(dtype: str) -> Callable[[tvm.runtime.Tensor], tvm.runtime.Tensor]:
    """Return the packed function that rounds a ``float32`` tensor to a narrow type."""

    def rounded(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        with np.errstate(over="ignore"):
            values = tensor.numpy().astype(np_dtype(dtype)).astype(WIDE)
        return tvm.runtime.tensor(values)

    return rounded


def _widened_types(wide: str) -> tuple[str, ...]:
    return NARROW if wide == WIDE else (*NARROW, WIDE)


def _widened_node(node: dict[str, Any], wide: str) -> dict[str, Any]:
    """Return a node of TVM's JSON form with the narrow types that it names made wide."""
    data, narrow = node.get("data"), _widened_types(wide)
    if node["type"] in ("DataType", "ffi.String") and data in narrow:
        return {**node, "data": wide}
    if isinstance(data, dict):
        fields = {k: wide if k.endswith("dtype") and v in narrow else v for k, v in data.items()}
        return {**node, "data": fields}
    return node


def widened(mod: ir.IRModule, wide: str = WIDE) -> ir.IRModule:
    """Copy a module with a wide type in place of every narrow float type.

    Types, attributes, constants and the module's kernels are widened; a cast to a narrow type
    becomes one to the wide type. The input is not changed.

    Parameters
    ----------
    mod : IRModule
        The module, of any level.
    wide : str
        ``float32``, or ``float64``, which replaces ``float32`` as well.
    """
    graph = json.loads(ir.save_json(mod))
    graph["nodes"] = [_widened_node(node, wide) for node in graph["nodes"]]
    copy = ir.load_json(json.dumps(graph))
    return map_functions(copy, lambda fn: _WideConstants(copy, wide).visit_expr(fn))


def rounded(mod: ir.IRModule) -> ir.IRModule:
    """Return a module at level 1 widened, with the result of each op rounded to its narrow type."""
    out = map_functions(mod, lambda fn: _Rounded(mod).visit_expr(fn))
    for dtype in NARROW:
        tvm_ffi.register_global_func(_ROUND + dtype, _rounding_to(dtype), override=True)
    return widened(out)


def widened_inputs(values: Sequence[Array], wide: str = WIDE) -> list[Array]:
    """Return arrays with narrow floats as a wide type, which holds them exactly."""
    narrow = {np_dtype(name) for name in _widened_types(wide)}
    return [a.astype(np_dtype(wide)) if a.dtype in narrow else a for a in values]


class Float32Reference:
    """Both evaluations of an original; inputs are of the types that its parameters have.

    Parameters
    ----------
    mod : IRModule
        The original, at level 1.

    Raises
    ------
    EngineError, ModelError
        As :class:`tvm_distir.execution.runtime.engines.reference.Reference`.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self._exact, self._rounded = Reference(widened(mod)), Reference(rounded(mod))

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the flattened results of the rounded reference, in ``float32``."""
        return self._rounded.run(widened_inputs(inputs))

    def truth(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the flattened results of the reference, in ``float32``."""
        return self._exact.run(widened_inputs(inputs))
