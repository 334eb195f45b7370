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

from tvm_distir.core.analysis import ParamAliases, param_aliases
from tvm_distir.core.ir import relax_functions
from tvm_distir.core.ir.attributes import donated_params
from tvm_distir.core.rewriting import (
    BlockWriter,
    all_bindings,
    called_name,
    variables,
    with_body,
    with_functions,
)

from .elementwise import Elementwise
from .joined_kernels import JoinedOp, joined_kernel
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

    def find(self, rows: Sequence[Binding], least: int) -> dict[int, list[int]]:
        """Return the positions of each group of so many kernels or more, by the last of them."""
        for position, binding in enumerate(rows):
            self._add(position, binding.var, binding.value)
        return {max(group): sorted(group) for group in self._positions if len(group) >= least}

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
        groups = set[int]()
        for number in [owners[v] for v in used if v in owners]:
            while self._merged[number] != number:
                number = self._merged[number]
            groups.add(number)
        return groups - self._closed


def elementwise(value: Expr, kernels: Kernels) -> Elementwise | None:
    """Return the elementwise kernel that a value is computed by, or None.

    One that compares a tensor with itself, as for NaN, is none: it needs two buffers. Nor is one
    of bfloat16 or float8, which TVM does not round between the parts of a kernel.
    """
    if not isinstance(value, ir.Call) or called_name(value) != "relax.call_tir":
        return None
    if len(value.args) != 2 or not all(isinstance(x, relax.Var) for x in value.args[1].fields):
        return None
    kernel, operands = kernels.get(value.args[0]), value.args[1].fields
    if kernel is None or str(value.ty.dtype).startswith(("bfloat16", "float8")):
        return None
    if len(set(operands)) < len(operands) and kernel.separates_operands:
        return None
    return kernel


class _Joiner:
    """Rewriter of a function, which adds kernels to the module of the builder."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        fn: relax.Function,
        kernels: Kernels,
        aliases: ParamAliases | None,
    ) -> None:
        self.builder, self.fn, self.kernels, self.aliases = builder, fn, kernels, aliases
        self.donated = {fn.params[i]: i for i in donated_params(fn)}
        self.reads = Counter(v for b in all_bindings(fn.body) for v in variables(b.value))
        self.reads.update(variables(fn.body.body))

    def run(self) -> relax.Function:
        """Return the rewritten function, or the given function if no kernels are joined."""
        blocks, changed = [], False
        for block in self.fn.body.blocks:
            rows = list(block.bindings)
            groups = _Groups(self.kernels).find(rows, 1 if self.donated else 2)
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
            members.append(JoinedOp(kernel, tuple(operands), result))
        inner = Counter(v for row in rows for v in variables(row.value))
        values = {row.var: row.value for row in rows}
        results = [
            var
            for var in values
            if not isinstance(var, relax.DataflowVar) or self.reads[var] > inner[var]
        ]
        operands = [var for var in numbers if var not in values]
        overwritten = self._overwritten(rows, operands, results)
        if len(rows) == 1 and not overwritten:
            writer.bindings.append(rows[0])
            return
        kernel = joined_kernel(
            members,
            [numbers[var] for var in operands],
            {numbers[var]: numbers.get(overwritten.get(var)) for var in results},
        )
        name = self.builder.add_func(kernel, "joined")
        types, args = [values[var].ty for var in results], relax.Tuple(operands)
        value = relax.op.call_tir(name, args, types)
        if overwritten:
            at = [operands.index(overwritten[v]) if v in overwritten else -1 for v in results]
            value = relax.op.call_tir_inplace(name, args, at, types)
        call = self.builder.normalize(value)
        if len(results) == 1:
            writer.bind(results[0], call)
            return
        computed = writer.add(call, "joined")
        for n, var in enumerate(results):
            writer.bind(var, self.builder.normalize(relax.TupleGetItem(computed, n)))

    def _overwritten(
        self, rows: Sequence[Binding], operands: Sequence[Var], results: Sequence[Var]
    ) -> dict[Var, Var]:
        """Return the operands in whose memory results are written, by the results.

        They are donated parameters that nothing reads later, and that no other operand may share
        memory with. A result takes the nearest of those that it is computed of.
        """
        aliases, free = self.aliases, set[Var]()
        if aliases is None or not self.donated:
            return {}
        last = max(aliases.numbers[row.var] for row in rows)
        for var in operands:
            number = self.donated.get(var)
            others = (v for v in operands if not v.same_as(var))
            if number is not None and number not in aliases.union(others):
                if aliases.last_read.get(number, last + 1) <= last:
                    free.add(var)
        values, chosen = {row.var: row.value for row in rows}, dict[Var, Var]()
        for result in results:
            layer: list[Var] = [result]
            while layer and result not in chosen:
                layer = [v for var in layer if var in values for v in variables(values[var])]
                for var in layer:
                    if var in free and tvm_ffi.structural_equal(var.ty, result.ty):
                        chosen[result] = var
                        free.remove(var)
                        break
        return chosen


def _join_all(mod: ir.IRModule, _: tvm.transform.PassContext) -> ir.IRModule:
    if is_on_gpu():
        return mod
    described = {
        gv: Elementwise.of(fn) for gv, fn in mod.functions.items() if isinstance(fn, tirx.PrimFunc)
    }
    kernels = {gv: kernel for gv, kernel in described.items() if kernel is not None}
    builder = relax.BlockBuilder(mod)
    relaxed = dict(relax_functions(mod))
    computing = {gv for gv, kernel in kernels.items() if kernel.computes}
    donates = any(map(donated_params, relaxed.values()))
    aliases = param_aliases(mod, computing) if donates else {}
    joined = {
        gv: _Joiner(builder, fn, kernels, aliases.get(gv)).run() for gv, fn in relaxed.items()
    }
    if all(fn.same_as(mod[gv]) for gv, fn in joined.items()):
        return mod
    called = set[ir.GlobalVar]()
    for fn in joined.values():
        tvm_ffi.structural_walk(fn, [(ir.GlobalVar, called.add)])
    unused = kernels.keys() - called
    functions = {**builder.get().functions, **joined}
    return with_functions(mod, {gv: fn for gv, fn in functions.items() if gv not in unused})


join_elementwise = tvm.transform.module_pass(
    _join_all, opt_level=0, name="tvm_distir.JoinElementwise"
)
"""Pass that joins elementwise kernels. Level: any with PrimFuncs; on GPUs ``FuseOps`` does it."""
