# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name buffers by the module that makes them and by what they are.

``layers.3.mlp.up_proj output`` is made by a kernel that reads the weight
``layers.3.mlp.up_proj.weight``. A function that several layers share calls the weight
``mlp.up_proj.weight``; the path of the layer is known from the arguments of its call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tvm.ir import Op as TvmOp

from tvm_distir.core.plan import plain_name
from tvm_distir.performance.fusion.quantization import QUANTIZE
from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import StageKind

_SAME = (
    *("relax.astype", "relax.reshape", "relax.permute_dims", "relax.dist.annotate_sharding"),
    QUANTIZE,
)
"""Ops whose result is their operand in another type or order."""

_PRODUCTS = ("matmul", "einsum", "product", "linear")
_GRADIENT = re.compile(r"(.+)_grad\d*")
_DEPTH = 32
"""Most calls and casts that a name is looked for through."""


class CallPath(NamedTuple):
    """Call of a function, within the calls around it."""

    caller: str
    op: Op
    outer: CallPath | None


class BufferNames:
    """Names of the values of a program.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self.functions, self.staged = program.functions, program.staged
        self._slots: dict[tuple[str, int], tuple[StageKind, int]] = {}
        self._slot_names: dict[tuple[int, int], str] = {}  # by identity of kind, and slot
        self._positions_of: dict[int, dict[int, int]] = {}  # by identity of a tuple
        self._paths: dict[tuple[str, tuple[int, ...], str], str] = {}
        names = {value.name for fn in program.functions.values() for value in _params(fn)}
        self.dotted = {plain_name(name): name for name in sorted(names) if "." in name}
        for stage_kind in program.staged.stage_kinds if program.staged is not None else ():
            for phase in stage_kind.phases:
                params = program.functions[phase.function].params
                for slot, param in zip(phase.inputs, params, strict=True):
                    self._slots[phase.function, param] = stage_kind, slot

    def path(self, function: str, op: Op) -> str:
        """Return the path of the module that a call runs, with a dot behind it, or nothing."""
        key = function, op.outputs, op.callee
        if key not in self._paths:
            self._paths[key] = self._path(function, op)
        return self._paths[key]

    def _path(self, function: str, op: Op) -> str:
        values, callee = self.functions[function].values, self.functions[op.callee]
        for arg, param in zip(op.inputs, _params(callee), strict=False):
            if "." in param.name:
                full = self.parameter(values[arg].name)
                if full.endswith(f".{param.name}"):
                    return full.removesuffix(param.name)
        return ""

    def _positions(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the first place of each number of a tuple of the program."""
        known = self._positions_of.get(id(numbers))
        if known is None:
            known = {number: position for position, number in reversed([*enumerate(numbers)])}
            self._positions_of[id(numbers)] = known
        return known

    def _position(self, numbers: Sequence[int], number: int) -> int | None:
        return self._positions(numbers).get(number)

    def parameter(self, name: str) -> str:
        """Return the name of a parameter of the step as the model writes it.

        What belongs to a weight follows its name: ``fc.weight master``.
        """
        if name in self.dotted:
            return self.dotted[name]
        stem = name
        while "_" in stem:
            stem, _, _ = stem.rpartition("_")
            if stem in self.dotted:
                return f"{self.dotted[stem]} {name.removeprefix(stem).lstrip('_')}"
        return name

    def resident(self, name: str, dtype: str) -> str:
        """Return the name of what is there from the beginning."""
        full = self.parameter(name)
        return f"{full} ({dtype})" if " " in full else full

    def slot(self, stage_kind: StageKind, slot: int) -> str:
        """Return the name of a value that phases of a stage of the program pass to each other."""
        key = id(stage_kind), slot
        if key not in self._slot_names:
            self._slot_names[key] = self._slot_name(stage_kind, slot)
        return self._slot_names[key]

    def _slot_name(self, stage_kind: StageKind, slot: int) -> str:
        value = stage_kind.slots[slot]
        for phase in stage_kind.phases:
            position = self._position(phase.outputs, slot)
            if position is not None:
                fn = self.functions[phase.function]
                return self.value(phase.function, fn.results[position])
        return self.parameter(value.name)

    def value(self, function: str, index: int, path: CallPath | None = None) -> str:
        """Return the name of a value of a function, which a call may have run."""
        value = self.functions[function].values[index]
        name, dtype = self._base(function, index, path, _DEPTH)
        is_gradient = name.endswith(".grad")
        return f"{name} ({value.dtype})" if is_gradient or dtype not in ("", value.dtype) else name

    def _base(
        self, function: str, index: int, path: CallPath | None, depth: int
    ) -> tuple[str, str]:
        """Return the name of what a value holds, and the type that it is known in."""
        value, op = self.functions[function].values[index], self._maker(function, index)
        prefix = self._prefix(path)
        if op is None:
            return self._parameter(function, index, path, depth)
        if depth and op.kind == "call":
            result = self.functions[op.callee].results[self._positions(op.outputs)[index]]
            return self._base(op.callee, result, CallPath(function, op, path), depth - 1)
        if depth and op.op == QUANTIZE:
            name, _ = self._base(function, op.inputs[0], path, depth - 1)
            return f"{name} ({value.dtype} copy)", value.dtype
        gradient = _GRADIENT.fullmatch(value.name)
        if gradient is not None:
            name = self._forward(function, gradient[1])
            if name.endswith(")") or " (" in name:  # a shape, no name
                return f"gradient of {name}", ""
            return f"{prefix}{name}.grad", value.dtype
        if depth and op.inputs and (op.kind in ("view", "wait") or op.op in _SAME):
            return self._base(function, op.inputs[0], path, depth - 1)
        if depth and op.kind in ("collective", "copy") and len(op.inputs) == len(op.outputs):
            operand = op.inputs[self._positions(op.outputs)[index]]
            name, dtype = self._base(function, operand, path, depth - 1)
            return f"{name} {op.collective}", dtype
        module = self._module(function, op)
        if module:
            if "backward" not in function:
                return f"{prefix}{module} output", value.dtype
            if any(word in op.op for word in _PRODUCTS):
                return f"{prefix}{module} input.grad", value.dtype
        if _is_generated(value.name):
            module = f"{prefix[:-1]} " if prefix else ""
            return described(f"{module}{op.op.rpartition('.')[2] or op.kind} output", value), ""
        return f"{prefix}{value.name}", ""

    def _parameter(
        self, function: str, index: int, path: CallPath | None, depth: int
    ) -> tuple[str, str]:
        """Return the name of a parameter: that of the argument, or of the slot it is read from."""
        fn = self.functions[function]
        value = fn.values[index]
        position = self._position(fn.params, index)
        if path is not None and depth and position is not None:
            return self._base(path.caller, path.op.inputs[position], path.outer, depth - 1)
        if (function, index) in self._slots and depth:
            stage_kind, slot = self._slots[function, index]
            for phase in stage_kind.phases:
                position = self._position(phase.outputs, slot)
                if position is not None and phase.function != function:
                    result = self.functions[phase.function].results[position]
                    return self._base(phase.function, result, None, depth - 1)
        return self.parameter(value.name), value.dtype

    def _forward(self, function: str, name: str) -> str:
        """Return the name of the forward value of which a backward pass makes the gradient."""
        if name in self.dotted:
            return self.dotted[name]
        for other in (function.replace("_backward", "_forward"), function):
            if other != function or "backward" not in function:
                for index, value in enumerate(self._values(other)):
                    if value == name:
                        return self._base(other, index, None, _DEPTH)[0]
        return name

    def _values(self, function: str) -> tuple[str, ...]:
        fn = self.functions.get(function)
        return () if fn is None else tuple(value.name for value in fn.values)

    def _prefix(self, path: CallPath | None) -> str:
        while path is not None:
            prefix = self.path(path.caller, path.op)
            if prefix:
                return prefix
            path = path.outer
        return ""

    def _maker(self, function: str, index: int) -> Op | None:
        return self.functions[function].makers.get(index, (None, 0))[0]

    def _module(self, function: str, op: Op) -> str:
        """Return the module whose weight an op reads, or an empty string."""
        values = self.functions[function].values
        for index in op.inputs:
            maker = self._maker(function, index)
            for _ in range(_DEPTH):
                if maker is None or not (maker.kind == "view" or maker.op in _SAME):
                    break
                index = maker.inputs[0]
                maker = self._maker(function, index)
            if maker is None:
                module, _, last = self.parameter(values[index].name).rpartition(".")
                if module and last in ("weight", "bias"):
                    return module
        return ""


def described(label: str, value: Value) -> str:
    """Return the name of a value of which no more than its shape is known."""
    return f"{label} ({', '.join(map(str, value.shape))}) {value.dtype}"


def _params(fn: Function) -> list[Value]:
    return [fn.values[index] for index in fn.params]


@functools.cache
def _op_names() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in TvmOp.list_op_names())


def _is_generated(name: str) -> bool:
    """Return whether a builder made up a name: a number, or that of an op."""
    stem = name.rstrip("0123456789.")
    return stem in ("", "lv", "gv", "mul", "sub", "div") or stem in _op_names()
