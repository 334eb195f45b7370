# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the ops that read a value."""

from __future__ import annotations

import re
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import static_shape
from tvm_distir.core.ir.attributes import DROPOUT_KERNEL
from tvm_distir.core.rewriting import VARIABLES, forward_bindings
from tvm_distir.transforms import ADAPTER_DELTA

_DELTA = re.compile(rf"{ADAPTER_DELTA}\d*$")
DROPOUT = "relax.nn.dropout"
SAME = ("relax.astype", "relax.dist.annotate_sharding", "relax.dist.redistribute")
"""Operators that return the values of their argument."""


def drops(value: relax.Expr, var: relax.Expr) -> bool:
    """Return whether it is a dropout of the value, as training steps draw it."""
    if op_title(value) not in ("relax.call_tir", "relax.call_tir_with_grad"):
        return False
    name = str(value.args[0].name_hint)
    return name.startswith(DROPOUT_KERNEL) and value.args[1].fields[0].same_as(var)


def is_bias_add(call: ir.Call, position: int) -> bool:
    """Return whether an addition adds a vector to its operand at a position."""
    shape = static_shape(call.args[1 - position].ty)
    return shape is not None and sum(1 for n in shape if n != 1) <= 1


def is_adapter_add(call: ir.Call) -> bool:
    """Return whether an addition adds what an adapter makes to a product."""
    return any(_DELTA.search(str(getattr(arg, "name", ""))) for arg in call.args)


def equal_shapes(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Return whether shapes have equal sizes, where they are known."""
    return len(first) == len(second) and all(
        a == b if isinstance(a, int) and isinstance(b, int) else a is b
        for a, b in zip(first, second, strict=True)
    )


def op_title(value: relax.Expr) -> str:
    """Return the name of an op, of a function, or of the kind of an expression."""
    if isinstance(value, ir.Call):
        op = value.op
        return str(op.name if isinstance(op, ir.Op) else getattr(op, "name_hint", "call"))
    return type(value).__name__


def read_index(fn: relax.Function) -> dict[Any, list[tuple[Any, Any, int]]]:
    """Return what reads each variable: the bound variable, the expression, the position."""
    readers: dict[Any, list[tuple[Any, Any, int]]] = {}
    for binding in forward_bindings(fn):
        value = binding.value
        if type(value) in VARIABLES:
            readers.setdefault(value, []).append((binding.var, value, -1))
        elif isinstance(value, ir.Call):
            for position, arg in enumerate(value.args[:]):
                is_tuple = type(arg) is relax.Tuple
                at = -1 if is_tuple else position
                for leaf in arg.fields[:] if is_tuple else [arg]:
                    if type(leaf) in VARIABLES:
                        readers.setdefault(leaf, []).append((binding.var, value, at))
        elif isinstance(value, relax.TupleGetItem):
            readers.setdefault(value.tuple_value, []).append((binding.var, value, -1))
        elif isinstance(value, relax.Tuple):
            for leaf in value.fields:
                if isinstance(leaf, relax.Var):
                    readers.setdefault(leaf, []).append((binding.var, value, -1))
    return readers
