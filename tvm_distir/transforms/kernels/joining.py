# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Join elementwise kernels that follow each other, such as those of an optimizer's update.

Before::

    lv = R.call_tir(cls.multiply, (m,), out_ty=R.Tensor((1024,), "float32"))
    lv1 = R.call_tir(cls.multiply1, (grad,), out_ty=R.Tensor((1024,), "float32"))
    m_updated = R.call_tir(cls.add, (lv, lv1), out_ty=R.Tensor((1024,), "float32"))

After::

    m_updated = R.call_tir(cls.joined, (m, grad), out_ty=R.Tensor((1024,), "float32"))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.rewriting import (
    BlockWriter,
    all_bindings,
    called_name,
    variables,
    with_body,
    with_functions,
)

from .elementwise import Elementwise
from .joined_kernels import Member, joined_kernel
from .parallel_loops import is_on_gpu

Kernels = Mapping[ir.GlobalVar, Elementwise]


class _Groups:
    """Finder of the kernels of a block that run as one.

    A kernel joins the open groups of its shape whose results it reads, or that read what it reads,
    which become one. A group is closed where something else reads its results, or where another
    kernel, a collective or a function runs: so no value lives longer than before.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._positions: list[list[int]] = []
        self._merged: list[int] = []  # by the number of a group: that of which it is a part
        self._closed: set[int] = set()
        self._made: dict[Var, int] = {}  # groups by their results
        self._read: dict[Var, int] = {}  # groups by their operands

    def find(self, rows: Sequence[Binding]) -> dict[int, list[int]]:
        """Return the positions of each group of more than one kernel, by the last of them."""
        for position, binding in enumerate(rows):
            self._add(position, binding.var, binding.value)
        return {max(group): sorted(group) for group in self._positions if len(group) > 1}

    def _add(self, position: int, var: Var, value: Expr) -> None:
        kernel = elementwise(value, self.kernels)
        if kernel is None and isinstance(value, ir.Call | relax.If):
            self._made.clear()
            self._read.clear()
        used = variables(value)
        makers = self._open(self._made, used)
        if kernel is None or math.prod(kernel.shape) == 1:
            self._closed |= makers
            return
        beside = [v for v in used if [int(n) for n in v.ty.shape] == list(kernel.shape)]
        joined = self._open(self._made, beside) | self._open(self._read, beside)
        self._closed |= makers - joined
        number = min(joined, default=len(self._positions))
        if not joined:
            self._positions.append([])
            self._merged.append(number)
        self._positions[number].append(position)
        for other in joined - {number}:
            self._positions[number] += self._positions[other]
            self._positions[other], self._merged[other] = [], number
        self._made[var] = number
        self._read.update(dict.fromkeys(beside, number))

    def _open(self, owners: Mapping[Var, int], used: Iterable[Var]) -> set[int]:
        """Return the open groups that own some of the variables."""
        found = set[int]()
        for number in [owners[v] for v in used if v in owners]:
            while self._merged[number] != number:
                number = self._merged[number]
            found.add(number)
        return found - self._closed


def elementwise(value: Expr, kernels: Kernels) -> Elementwise | None:
    """Return the elementwise kernel that a value is computed by, or None."""
    if not isinstance(value, ir.Call) or called_name(value) != "relax.call_tir":
        return None
    if len(value.args) != 2 or not all(isinstance(x, relax.Var) for x in value.args[1].fields):
        return None
    return kernels.get(value.args[0])


class _Joiner:
    """Rewriter of a function, which adds kernels to the module of the builder."""

    def __init__(self, builder: relax.BlockBuilder, fn: relax.Function, kernels: Kernels) -> None:
        self.builder, self.fn, self.kernels = builder, fn, kernels
        self.reads = Counter(v for b in all_bindings(fn.body) for v in variables(b.value))
        self.reads.update(variables(fn.body.body))

    def run(self) -> relax.Function:
        """Return the rewritten function, or the given function if no kernels are joined."""
        blocks, changed = [], False
        for block in self.fn.body.blocks:
            rows = list(block.bindings)
            groups = _Groups(self.kernels).find(rows)
            if groups:
                changed = True
                block = self._block(rows, groups, isinstance(block, relax.DataflowBlock))
            blocks.append(block)
        fn = self.fn
        if not changed:
            return fn
        return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))

    def _block(
        self, rows: Sequence[Binding], groups: Mapping[int, list[int]], dataflow: bool
    ) -> relax.BindingBlock:
        writer = BlockWriter(self.builder, dataflow)
        inside = {position for group in groups.values() for position in group}
        for position, binding in enumerate(rows):
            if position in groups:
                self._write(writer, [rows[n] for n in groups[position]])
            elif position not in inside:
                writer.bindings.append(binding)
        return writer.block()

    def _write(self, writer: BlockWriter, rows: Sequence[Binding]) -> None:
        """Write the call of the joined kernel of some bindings, and bind its results."""
        numbers: dict[Var, int] = {}
        members = []
        for row in rows:
            args = row.value.args[1].fields
            operands = [numbers.setdefault(arg, len(numbers)) for arg in args]
            result = numbers.setdefault(row.var, len(numbers))
            kernel: Any = elementwise(row.value, self.kernels)
            members.append(Member(kernel, tuple(operands), result))
        inner = Counter(v for row in rows for v in variables(row.value))
        made = {row.var: row.value for row in rows}
        results = [
            var
            for var in made
            if not isinstance(var, relax.DataflowVar) or self.reads[var] > inner[var]
        ]
        operands = [var for var in numbers if var not in made]
        by_number = dict.fromkeys(numbers[var] for var in results)
        kernel = joined_kernel(members, [numbers[var] for var in operands], by_number)
        name = self.builder.add_func(kernel, "joined")
        types = [made[var].ty for var in results]
        call = self.builder.normalize(relax.op.call_tir(name, relax.Tuple(operands), types))
        if len(results) == 1:
            writer.bind(results[0], call)
            return
        computed = writer.add(call, "joined")
        for n, var in enumerate(results):
            writer.bind(var, self.builder.normalize(relax.TupleGetItem(computed, n)))


def _join_all(mod: ir.IRModule, _: tvm.transform.PassContext) -> ir.IRModule:
    if is_on_gpu():
        return mod
    found = {
        gv: Elementwise.of(fn) for gv, fn in mod.functions.items() if isinstance(fn, tirx.PrimFunc)
    }
    kernels = {gv: kernel for gv, kernel in found.items() if kernel is not None}
    builder = relax.BlockBuilder(mod)
    joined = {
        gv: _Joiner(builder, fn, kernels).run()
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function)
    }
    if all(fn.same_as(mod[gv]) for gv, fn in joined.items()):
        return mod
    called = set[ir.GlobalVar]()
    for fn in joined.values():
        tvm_ffi.structural_walk(fn, [(ir.GlobalVar, called.add)])
    functions = {**builder.get().functions, **joined}
    unused = kernels.keys() - called
    return with_functions(mod, {gv: fn for gv, fn in functions.items() if gv not in unused})


join_elementwise = tvm.transform.module_pass(
    _join_all, opt_level=0, name="tvm_distir.JoinElementwise"
)
"""Pass that joins elementwise kernels. Level: any with PrimFuncs; on GPUs ``FuseOps`` does it."""
