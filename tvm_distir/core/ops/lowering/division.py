# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines integer division by a number that is read from memory for every pair of operands.

A processor answers a zero divisor, and the least number over -1, with a signal that ends the
process. Values decide whether that happens, those in the padding of an uneven shard among them,
so kernels choose another divisor where it would:

Before::

    c[i] = a[i] // b[i]

After::

    c[i] = Select(b[i] == 0, -1, a[i] // Select(b[i] == 0 or b[i] == -1 and a[i] < -MAX, 1, b[i]))

The results are those of StableHLO on XLA: all bits of a quotient by zero are set, the remainder is
the dividend, and the least number over -1 is itself.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tvm
from tvm import ir, tirx

_QUOTIENTS = ("prim.Div", "prim.FloorDiv")
_REMAINDERS = ("prim.Mod", "prim.FloorMod")
_INTEGER = re.compile(r"u?int\d+")
_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value", "args")
"""Fields of an expression's node that hold expressions."""


class _Kernel:
    """A function in TVM's JSON form: nodes that refer to each other by number."""

    def __init__(self, fn: tirx.PrimFunc) -> None:
        self.whole: dict[str, Any] = json.loads(ir.save_json(fn))
        self.nodes: list[dict[str, Any]] = self.whole["nodes"]
        self.divisions = [
            number
            for number, node in enumerate(self.nodes)
            if node["type"] in _QUOTIENTS + _REMAINDERS
            and _INTEGER.fullmatch(self.dtype(number))
            and self.sources(node["data"]["b"])
        ]

    def dtype(self, number: int) -> str:
        """Return the element type of an expression."""
        return str(self.nodes[self.nodes[number]["data"]["ty"]]["data"].get("dtype", ""))

    def sources(self, number: int) -> set[int]:
        """Return the buffers that an expression reads."""
        node = self.nodes[number]
        if node["type"] == "ir.TensorLoad":
            return {int(node["data"]["source"])}
        if node["type"] == "ffi.Array":
            return set().union(*map(self.sources, node["data"]))
        if not node["type"].startswith("prim.") and node["type"] != "ir.Call":
            return set()
        fields = [node["data"][key] for key in _OPERANDS if key in node["data"]]
        return set().union(*map(self.sources, fields))

    def define(self, number: int) -> None:
        """Give a division a result for every pair of operands."""
        division, dtype = self.nodes[number], self.dtype(number)
        ty, a, b = (division["data"][key] for key in ("ty", "a", "b"))
        zero = unsafe = self._add("prim.EQ", "bool", a=b, b=self._number(0, ty))
        if dtype.startswith("int"):
            # Not `a == MIN`: TVM makes it `a - MIN == 0`, which LLVM takes to be false.
            bound = self._number(1 - (1 << int(dtype[3:]) - 1), ty)
            is_least = self._add("prim.LT", "bool", a=a, b=bound)
            is_minus = self._add("prim.EQ", "bool", a=b, b=self._number(-1, ty))
            overflow = self._add("prim.And", "bool", a=is_minus, b=is_least)
            unsafe = self._add("prim.Or", "bool", a=zero, b=overflow)
        unit = self._number(1, ty)
        divisor = self._add("prim.Select", ty, condition=unsafe, true_value=unit, false_value=b)
        result = self._add(division["type"], ty, a=a, b=divisor)
        by_zero = a
        if division["type"] in _QUOTIENTS:
            by_zero = self._add("prim.BitwiseNot", ty, a=self._number(0, ty))
        chosen = self._add(
            "prim.Select", ty, condition=zero, true_value=by_zero, false_value=result
        )
        self.nodes[number] = self.nodes[chosen]

    def function(self) -> tirx.PrimFunc:
        """Return the function that the nodes represent."""
        return ir.load_json(json.dumps(self.whole))

    def _node(self, node: dict[str, Any]) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _add(self, kind: str, ty: int | str, **operands: int) -> int:
        if isinstance(ty, str):
            ty = self._node({"type": "ir.PrimType", "data": {"span": 0, "dtype": ty}})
        return self._node({"type": kind, "data": {"span": 0, "ty": ty, **operands}})

    def _number(self, value: int, ty: int) -> int:
        stored = self._node({"type": "int", "data": value})
        return self._add("ir.IntImm", ty, value=stored)


def _defined(fn: Any) -> Any:
    if not isinstance(fn, tirx.PrimFunc):
        return fn
    kernel = _Kernel(fn)
    for number in kernel.divisions:
        kernel.define(number)
    return kernel.function() if kernel.divisions else fn


def _define_all(mod: ir.IRModule, _: Any) -> ir.IRModule:
    functions = {gv: _defined(fn) for gv, fn in mod.functions.items()}
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


define_division = tvm.transform.module_pass(
    _define_all, opt_level=0, name="tvm_distir.DefineDivision"
)
"""Pass that defines integer divisions. Level: any with TIR functions, before the build."""


def divisor_parameters(fn: tirx.PrimFunc) -> tuple[int, ...]:
    """Return the positions of parameters from which an integer division reads its divisor."""
    kernel = _Kernel(fn)
    divisors = [kernel.nodes[number]["data"]["b"] for number in kernel.divisions]
    root = kernel.nodes[kernel.whole["root_index"]]["data"]
    params = kernel.nodes[root["params"]]["data"]
    sources = set().union(*map(kernel.sources, divisors))
    return tuple(position for position, param in enumerate(params) if param in sources)
