# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plan the storage of a level-5 module by TVM, without generating code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import ir, relax

from tvm_distir.core.ir import check_module, known_shape, outline_branches
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.performance import (
    BRANCH,
    CALL,
    FREE,
    RETURN,
    TAKE,
    Storage,
    StorageFunction,
    StorageStep,
)
from tvm_distir.support import Steps, unrolled
from tvm_distir.transforms import ExpandSchedule, kernel_passes

from .async_calls import split_starts
from .compilation import not_compiled
from .dist_io import entries
from .targets import target_in_scope

_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
_KILLS = ("relax.memory.kill_tensor", "relax.memory.kill_storage", "relax.vm.kill_object")
_SEND = "tvm_distir.ccl.send"

Tree = Any
"""Number of a block, None for what has none, or a tuple of trees; of the n-th tensor among the
parameters, ``-1 - n``."""


def plan_storage(mod: ir.IRModule) -> Storage:
    """Plan the storage of a module as TVM does when it compiles it.

    A step in stages is written out for it, as for a run.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.

    Returns
    -------
    storage : Storage
        The storage of its entries, in their order; it belongs into the program: ``replace(program,
        storage=plan_storage(mod))``.

    Raises
    ------
    EngineError
        DIST0606 where TVM cannot plan it; DIST0603 for another level.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> storage = td.plan_storage(dist)
    >>> [step.bytes for step in storage.functions["main"].steps if step.kind == "take"]
    [128, 128, 128]
    """
    check_module(mod, "td.plan_storage")
    mod = ExpandSchedule()(mod)
    names = tuple(entry.function for entry in entries(mod))
    planned = _planned(mod)
    known: dict[str, tuple[StorageFunction, Tree]] = {}
    for name in names:
        unrolled(_Reader.read(planned, name, known))
    return Storage({name: fn for name, (fn, _) in known.items()}, names)


def _planned(mod: ir.IRModule) -> ir.IRModule:
    """Return the passes of TVM's build up to where storage is decided."""
    passes = [
        *kernel_passes(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
    ]
    try:
        with target_in_scope():
            return tvm.transform.Sequential(passes)(split_starts(outline_branches(mod)))
    except Exception as err:
        raise not_compiled(err, "storage plan") from err


class _Reader:
    """Reads the blocks of a function: their users, and the end of their last reference.

    Parameters
    ----------
    mod : IRModule
        Planned.
    known : dict of str to (StorageFunction, Tree)
        Functions read so far, with what they return; those that are called are added.
    """

    def __init__(self, mod: ir.IRModule, known: dict[str, tuple[StorageFunction, Tree]]) -> None:
        self.mod, self.known = mod, known
        self.steps: list[StorageStep] = []
        self.count: list[int] = []
        self.at: dict[object, Tree] = {}  # by variable; tuples inside expressions by number
        self.makers: dict[int, str] = {}

    @staticmethod
    def read(
        mod: ir.IRModule, name: str, known: dict[str, tuple[StorageFunction, Tree]]
    ) -> Steps[tuple[StorageFunction, Tree]]:
        """Read a function, callees first."""
        if name not in known:
            known[name] = yield from _Reader(mod, known)._run(mod[name])
        return known[name]

    def _run(self, fn: relax.Function) -> Steps[tuple[StorageFunction, Tree]]:
        numbers = itertools.count(-1, -1)
        for param in fn.params:
            self.at[param] = _leaf_numbers(param.ty, numbers)
        for binding in all_bindings(fn.body):
            yield from self._bind(binding.var, binding.value)
        result = self._tree(fn.body.body)
        results = tuple(dict.fromkeys(_leaves(result)))
        self._hold(result)
        self.steps.append(StorageStep(RETURN, results))
        for var in list(self.at):
            self._drop(self.at.pop(var))
        steps = (
            step._replace(names=(self.makers.get(step.blocks[0]) or step.names[0],))
            if step.kind == TAKE
            else step
            for step in self.steps
        )
        return StorageFunction(tuple(steps), results), result

    def _bind(self, var: relax.Var, value: relax.Expr) -> Steps[None]:
        if isinstance(value, relax.If):
            yield from self._choose(var, value)
            return
        if not isinstance(value, ir.Call):
            for field in value.fields if isinstance(value, relax.Tuple) else ():
                if isinstance(field, relax.Tuple):
                    self._keep(field)
            self._put(var, self._tree(value))
            return
        op = value.op
        if isinstance(op, ir.GlobalVar) and isinstance(self.mod[op], relax.Function):
            name = str(op.name_hint)
            body, tree = yield _Reader.read(self.mod, name, self.known)
            for arg in value.args:
                if isinstance(arg, relax.Tuple):
                    self._keep(arg)
            arguments = self._arguments(self.mod[op], value.args)
            self._returned(var, CALL, (name,), body.results, tree, arguments)
            return
        name = str(op.name) if isinstance(op, ir.Op) else ""
        if name == "relax.memory.alloc_storage":
            self._take(var, int(value.args[0].values[0]), str(var.name))
        elif isinstance(op, relax.ExternFunc) and str(op.global_symbol) == _SEND:  # it copies
            sent = value.args[0].ty
            self._take(var, size_bytes(known_shape(sent) or (), str(sent.dtype)), "send")
        elif name in _KILLS:
            self._drop(self.at.pop(value.args[0], None))
        elif name == "relax.memory.alloc_tensor" or name in _VIEWS:
            self._put(var, self._tree(value.args[0]))
        else:
            self._name(value)
            self._put(var, None)

    def _keep(self, part: relax.Tuple) -> None:
        """Hold a tuple of an expression until the function ends, since TVM frees only variables."""
        self._put(("tuple", len(self.steps), len(self.at)), self._tree(part))

    def _take(self, var: relax.Var, size: int, name: str) -> None:
        """Take a block for a variable."""
        self.steps.append(StorageStep(TAKE, (len(self.count),), size, (name,)))
        self.count.append(0)
        self._put(var, len(self.count) - 1)

    def _choose(self, var: relax.Var, value: relax.If) -> Steps[None]:
        """Read a branch, each of whose sides is a call."""
        names, sides = [], []
        for side in (value.true_branch, value.false_branch):
            called = [b.value for b in all_bindings(side) if isinstance(b.value, ir.Call)]
            (call,) = [c for c in called if isinstance(c.op, ir.GlobalVar)]
            names.append(str(call.op.name_hint))
            arguments = self._arguments(self.mod[call.op], call.args)
            body, tree = yield _Reader.read(self.mod, names[-1], self.known)
            sides.append((body, tree, arguments))
        body, tree, arguments = max(sides, key=lambda side: len(side[0].results))
        self._returned(var, BRANCH, tuple(names), body.results, tree, arguments)

    def _arguments(self, fn: relax.Function, args: Sequence[relax.Expr]) -> list[Tree]:
        """Return the results of a call, in the order of the callee's numbers."""
        return [
            part
            for param, arg in zip(fn.params, args, strict=True)
            for part in _parts(param.ty, self._tree(arg))
        ]

    def _returned(
        self,
        var: relax.Var,
        kind: str,
        names: tuple[str, ...],
        results: Sequence[int],
        tree: Tree,
        arguments: Sequence[Tree],
    ) -> None:
        """Take over the blocks that a call returns; each is held by all that it returns."""
        first = len(self.count)
        blocks = tuple(range(first, first + len(results)))
        self.count += [0] * len(results)
        self.steps.append(StorageStep(kind, blocks, 0, names))
        at = dict(zip(results, blocks, strict=True))

        def mine(part: Tree) -> Tree:
            if isinstance(part, tuple):
                return tuple(map(mine, part))
            if part is None or part >= 0:
                return None if part is None else at[part]
            return arguments[-1 - part]

        self._put(var, mine(tree))

    def _name(self, call: ir.Call) -> None:
        """Name the block of the last argument, which a kernel writes, as the first argument."""
        args = list(call.args)
        for arg in args[-1:] if args else ():
            for block in _leaves(self._tree(arg)):
                called = call.op if not isinstance(call.op, ir.Op) else args[0]
                name = getattr(called, "name_hint", None) or getattr(called, "global_symbol", "")
                self.makers.setdefault(block, str(name))

    def _put(self, var: object, tree: Tree) -> None:
        self._hold(tree)
        self._drop(self.at.get(var))
        self.at[var] = tree

    def _hold(self, tree: Tree) -> None:
        for block in _leaves(tree):
            self.count[block] += 1

    def _drop(self, tree: Tree) -> None:
        for block in _leaves(tree):
            self.count[block] -= 1
            if not self.count[block]:
                self.steps.append(StorageStep(FREE, (block,)))

    def _tree(self, expr: relax.Expr) -> Tree:
        if isinstance(expr, relax.Var):
            return self.at.get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self._tree(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            source = self._tree(expr.tuple_value)
            return source[int(expr.index)] if isinstance(source, tuple) else source
        return None


def _leaf_numbers(ty: ir.Type, numbers: Iterator[int]) -> Tree:
    """Return a number below 0 for each tensor in a parameter, none of which is a block."""
    if isinstance(ty, relax.TupleType):
        return tuple(_leaf_numbers(field, numbers) for field in ty.fields)
    return next(numbers)


def _parts(ty: ir.Type, tree: Tree) -> Iterator[Tree]:
    """Yield the parts of an argument of a parameter, as :func:`_leaf_numbers` counts them."""
    if not isinstance(ty, relax.TupleType):
        yield tree
        return
    fields = tree if isinstance(tree, tuple) else (tree,) * len(ty.fields)
    for field, part in zip(ty.fields, fields, strict=True):
        yield from _parts(field, part)


def _leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, tuple):
        for part in tree:
            yield from _leaves(part)
    elif tree is not None and tree >= 0:
        yield tree
