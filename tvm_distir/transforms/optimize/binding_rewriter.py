# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the bindings of a function in order: shared base of the passes of this stage."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis import PartialState, has_dtensor
from tvm_distir.core.ir import mesh_key, relax_functions
from tvm_distir.core.ir.operators import PREFIX, call_axes
from tvm_distir.core.passes import Rewrite, branch_results, sink_collectives
from tvm_distir.core.rewriting import (
    BlockWriter,
    leaves_of,
    let_out,
    substitute,
    tensor_args,
    variables,
    with_body,
    with_branches,
    with_functions,
)
from tvm_distir.core.rewriting.native import Readings, is_pure, pruned
from tvm_distir.support import GenericConst

from .function_facts import Scan


class FunctionStep:
    """Rewrite of single functions, given as a subclass of :class:`Editor` with its arguments.

    Parameters
    ----------
    editor : type of Editor
    kinds : sequence of str
        Collectives without which a function is left as it is; empty for any.
    arguments
        Handed to the editor by name.
    """

    def __init__(self, editor: type[Editor], kinds: Sequence[str] = (), **arguments: Any) -> None:
        self.editor, self.kinds, self.arguments = editor, frozenset(kinds), arguments

    def apply(self, mod: ir.IRModule, name: str, fn: relax.Function, scan: Scan) -> relax.Function:
        """Return the rewritten function, or the given function if nothing changes.

        Every branch of an ``If`` is a separate scope, in which the bindings before the ``If``
        is known as parameters are: nothing moves into a branch, out of it, or over it to where
        it would be read before it is there.
        """
        if scan.branches:
            new = with_branches(fn, lambda scope: self.apply(mod, name, scope, Scan.of(scope)))
            if new is not fn:
                fn, scan = new, Scan.of(new)
        if not scan.straight or not (scan.kinds & self.kinds if self.kinds else scan.kinds):
            return fn
        return self.editor(mod, name, fn, scan, **self.arguments).run()


def rewrite_of(steps: Sequence[FunctionStep], level: int = 4) -> Rewrite:
    """Build the body of a pass from steps that rewrite each function separately.

    Parameters
    ----------
    steps : sequence of FunctionStep
        The steps, applied in sequence.
    level : int
        4 or 5: at 4, functions without DTensors are left as they are.
    """
    return lambda mod: stepped(mod, steps, level)


def stepped(
    mod: ir.IRModule,
    steps: Sequence[FunctionStep],
    level: int,
    readings: Readings | None = None,
) -> ir.IRModule:
    """Apply steps to the functions of a module at a level.

    At level 4 the branches of an ``If`` are functions (:mod:`tvm_distir.core.ir.branches`).
    Collectives that a step has moved to the boundary of a branch go inside, and the steps run
    again. ``readings`` then holds the views of the functions.
    """
    readings = Readings() if readings is None else readings
    while True:
        new = _stepped(mod, steps, level, readings)
        mod = sink_collectives(new) if level == 4 else new
        if mod is new:
            return mod


def _stepped(
    mod: ir.IRModule, steps: Sequence[FunctionStep], level: int, readings: Readings
) -> ir.IRModule:
    functions = dict(mod.functions.items())
    members = [(gv, fn) for gv, fn in relax_functions(mod) if level != 4 or has_dtensor(fn)]
    for (gv, fn), reading in zip(members, readings.of([fn for _, fn in members]), strict=True):
        scan = Scan(fn, reading)
        for step in steps:
            new = step.apply(mod, str(gv.name_hint), fn, scan)
            if new is not fn:
                fn, scan = new, Scan(new, readings.of([new])[0])
        functions[gv] = fn
    return with_functions(mod, functions)


def axes_dim(call: ir.Call) -> tuple[tuple[int, ...], int]:
    """Return the axes and dim of an ``all_gather``, ``local_slice`` or ``reduce_scatter``."""
    return call_axes(call), int(call.attrs["dim"])


def signature(value: ir.Call) -> Any:
    """Return a key that equal collectives share: op, operand and attributes."""
    attrs = [
        (str(k), mesh_key(v) if str(k).endswith("mesh") else str(v)) for k, v in value.attrs.items()
    ]
    operand = value.args[0]
    if isinstance(operand, GenericConst):  # equal when they share their data
        operand = (operand.value, str(operand.ty))
    return (str(value.op.name), operand, tuple(sorted(attrs)))


def is_plain_op(value: Expr, var: Var) -> bool:
    """Return whether a value is an op call other than a collective that returns a DTensor."""
    return (
        isinstance(var.ty, DTensorType)
        and isinstance(value, ir.Call)
        and isinstance(value.op, ir.Op)
        and not str(value.op.name).startswith(PREFIX)
        and len(value.args) > 0
        and not isinstance(value.args[0], ir.GlobalVar)
    )


def operands_of(call: ir.Call) -> list[Var]:
    """Return the tensor operands of a call, with tuples unpacked."""
    return [expr for arg in tensor_args(call) for expr, _, _ in leaves_of(arg)]


class Editor:
    """Rewriter of a function that passes the bindings of interest through :meth:`visit`.

    Of interest are the collectives, and what :attr:`watched` holds.

    Attributes
    ----------
    known : dict
        Values by variable; of those before the present binding what they are bound to now.
    readers : Counter
        The number of reads of each variable: by bindings that are written already and by those to
        come.
    watched : set
        Variables bound to other values of interest.
    """

    def __init__(
        self, mod: ir.IRModule, name: str, fn: relax.Function, scan: Scan, **arguments: Any
    ) -> None:
        self.mod, self.name, self.fn, self.scan = mod, name, fn, scan
        self.watched: set[Var] = set()
        self.builder = relax.BlockBuilder()
        self.writer = BlockWriter(self.builder, False)
        self._env: dict[Var, Expr] = {}
        self._origin: dict[Var, Var] = {}
        self._stale: set[Var] = set()
        self._changed = False
        self.prepare(**arguments)

    def prepare(self, *_: Any, **arguments: Any) -> None:
        """Take the arguments of the step by name, before any binding is visited."""
        if arguments:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(arguments)}")

    @functools.cached_property
    def known(self) -> dict[Var, Expr]:
        """Return the values of all variables, computed on first use."""
        return dict(self.scan.values)

    @functools.cached_property
    def readers(self) -> Counter[Any]:
        """Return the number of readers per variable, computed on first use."""
        return Counter({var: len(some) for var, some in self.scan.readers.items()})

    @functools.cached_property
    def _partial(self) -> PartialState:
        state = PartialState(self.mod, self.name, self.fn, legalized=True)
        state.check(self.scan.reading)
        return state

    @functools.cached_property
    def branch_results(self) -> Mapping[Any, Any]:
        """Return the results of hoisted branches of an ``If``, by variable."""
        return branch_results(self.mod, self.fn)

    def unfinished(self, expr: Expr) -> frozenset[int]:
        """Return the mesh axes along which an operand of a call is a partial sum."""
        cached = self._origin.get(expr, expr) if isinstance(expr, ir.Var) else expr
        return frozenset().union(*self._partial.of(cached))

    def visit(self, var: Var, value: Any, kind: str | None) -> Any:
        """Return the value to bind ``var`` to, or a variable that replaces it.

        ``kind`` names the ``R.dist`` op that is called, if it is such an op.
        """
        raise NotImplementedError

    def watch_reader(self, var: Var) -> None:
        """Visit the only reader of a variable too."""
        self.watched.update(self.scan.readers.get(var, ()))

    def emit(self, value: Expr, name: str) -> Var:
        """Bind a new value that is read once to a new variable."""
        self._changed = True
        var = self.writer.emit(value, name)
        self.known[var] = self.writer.bindings[-1].value
        self.readers[var] = 1
        for used in variables(value):
            self.readers[used] += 1
        return var

    def single(self, var: Expr) -> Any:
        """Return the value of a variable that is read once, or None for other operands."""
        return self.known.get(var) if self.readers[var] == 1 else None

    def normalize(self, value: Expr) -> Expr:
        """Infer the type of a new value and count its reads."""
        for used in variables(value):
            self.readers[used] += 1
        return self.builder.normalize(value)

    def run(self) -> relax.Function:
        """Return the function without the bindings that became unread."""
        fn, blocks = self.fn, []
        for block, rows in zip(fn.body.blocks, self.scan.blocks, strict=True):
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            new_bindings, watched, stale = self.writer.bindings, self.watched, self._stale
            for row in rows:
                if row[3] is not None or row[1] in watched or row[1] in stale:
                    self._binding(*row)
                else:
                    new_bindings.append(row[0])
            blocks.append(self.writer)
        if not self._changed:
            return fn
        result = substitute(fn.body.body, self._env)
        new_bindings, result = let_out([writer.block() for writer in blocks], result)
        new_bindings, _ = pruned(new_bindings, result)
        return with_body(fn, fn.params, new_bindings, result, bool(fn.is_pure))

    def _binding(self, binding: Binding, var: Var, old: Expr, kind: str | None) -> None:
        if var in self._stale:
            old = self.known[var] = substitute(old, self._env)
            binding = relax.VarBinding(var, old)
        if kind is None and var not in self.watched:
            self.writer.bindings.append(binding)
            return
        new = self.visit(var, old, kind)
        if new.same_as(old):
            self.writer.bindings.append(binding)
            return
        self._changed = True
        leaves = isinstance(new, relax.DataflowVar) and not isinstance(var, relax.DataflowVar)
        if isinstance(new, ir.Var) and not leaves:
            self._env[var] = new
            self._origin.setdefault(new, self._origin.get(var, var))
            self._stale.update(self.scan.readers.get(var, ()))
            self.readers[new] += self.readers[var]
        else:
            self.writer.bind(var, new)
            self.known[var] = new
            if isinstance(new, ir.Var):
                self.readers[new] += 1
        self._release(old)

    def _release(self, value: Expr) -> None:
        """Drop the reads of a value that is no longer bound, recursively."""
        pending = [value]
        while pending:
            for used in variables(pending.pop()):
                self.readers[used] -= 1
                source = self.known.get(used)
                if not self.readers[used] and source is not None and is_pure(source):
                    pending.append(source)
