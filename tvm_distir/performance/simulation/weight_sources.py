# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Follow the weights of a program to the ops that read them, through calls and buckets."""

from __future__ import annotations

import functools

from tvm_distir.core.plan import plain_name
from tvm_distir.performance.memory.buffer_names import BufferNames
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import memoized

_SAME = (".astype", ".reshape", ".permute_dims")
"""Ops whose result is their operand in another type or order."""


class WeightSources:
    """Weights behind the values of a program.

    Parameters
    ----------
    program : Program
        Its ops are those of the model, not yet grouped into kernels.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._climbed: set[str] = set()

    @functools.cached_property
    def _names(self) -> BufferNames:
        return BufferNames(self.program)

    @functools.cached_property
    def _sites(self) -> dict[str, tuple[str, Op]]:
        """Return a call of each function that is called, with its caller."""
        functions = self.program.functions.items()
        return {callee: (name, op) for name, fn in functions for op in fn.ops
                for callee in op.callees if op.kind == "call"}  # fmt: skip

    @memoized
    def path(self, caller: str, op: Op) -> str:
        """Return the path of the module that a call runs, with a dot behind it, or nothing."""
        fn, callee = self.program.functions[caller], self.program.functions[op.callee]
        for argument, param in zip(op.inputs, callee.params, strict=False):
            full, name = self.of(caller, argument), callee.values[param].name
            if full.endswith(f".{name}"):
                return full.removesuffix(name)
        for maker, _ in filter(None, map(fn.makers.get, op.inputs)):
            if maker.kind == "call" and all(self.of(caller, index) for index in maker.inputs):
                return self.path(caller, maker)  # it gathers the weights
        return ""

    @memoized
    def of(self, function: str, index: int, part: tuple[int, int] | None = None) -> str:
        """Return the weight that a value is but for its type, order or sharding, or nothing.

        Its name is relative to the module of the function. ``part`` is the operand that is asked
        for of tensors which are joined, and the number of pieces that they are split into.
        """
        fn = self.program.functions[function]
        if index not in fn.makers:
            name = self._names.parameter(fn.values[index].name).partition(" ")[0]
            weight = next((n for n in (name, name.rpartition(".")[0]) if n in self._weights), "")
            known = index in fn.params and function in self._sites
            if weight or not known or function in self._climbed:  # it reads its own results
                return weight
            caller, site = self._sites[function]
            self._climbed.add(function)
            full = self.of(caller, site.inputs[fn.params.index(index)], part)
            self._climbed.discard(function)
            return full.removeprefix(self.path(caller, site)) if full else ""
        op, number = fn.makers[index]
        if op.kind == "call":
            name = self.of(op.callee, self.program.functions[op.callee].results[number], part)
            return f"{self.path(function, op)}{name}" if name else ""
        if op.op.endswith(".split"):
            return self.of(function, op.inputs[0], (number, len(op.outputs)))
        if op.op.endswith(".concat"):
            if part is None or part[1] != len(op.inputs):
                return ""
            return self.of(function, op.inputs[part[0]])
        if op.kind in ("view", "wait") or op.op.endswith(_SAME):
            return self.of(function, op.inputs[0], part)
        if op.kind in ("collective", "copy") and len(op.inputs) == len(op.outputs):
            return self.of(function, op.inputs[number], part)
        return ""

    @functools.cached_property
    def _weights(self) -> set[str]:
        """Return the names of weights, also within the modules that hold them."""
        staged, names = self.program.staged, set[str]()
        slots = [slot for kind in staged.stage_kinds for slot in kind.slots] if staged else []
        for value in (*slots, *(value for _, _, value in self.program.inputs())):
            if value.is_weight:
                parts = self._names.parameter(value.name).partition(" ")[0].split(".")
                names.update(".".join(parts[k:]) for k in range(len(parts)))
        return names

    @functools.cached_property
    def plain(self) -> dict[str, str]:
        """Return the weights by their names in a module of Relax."""
        return {plain_name(name): name for name in sorted(self._weights)}
