# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Restore an ``If`` from lifted branches at level 5.

Before::

    y_then = cls.main_y_then(x, w)
    y_else = cls.main_y_else(x)
    y = R.where(c, y_then, y_else)

After::

    if c:
        y = cls.main_y_then(x, w)
    else:
        y = cls.main_y_else(x)

The branches stay functions: TVM plans the memory of each separately (see :mod:`.ir.branches`).
The condition has no dim to shard and no op is linear in it, so propagation leaves it reduced and
equal on all devices: all ranks of a mesh take the same branch and meet in its collectives.

Where another binding than the choice reads the result of a branch (it is sent to the mesh that
chooses), both calls and the ``R.where`` stay: both branches are pure, so both may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.ir.branches import SIDES, branch_of
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.functions import map_functions
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.core.rewriting.writer import with_body

from .def_use import Path
from .results import BranchResult, branch_results, is_choice

Results = Mapping[Any, BranchResult]


@dataclass
class Choice:
    """An ``If``: the calls of its branches, the choices between results, and their paths."""

    calls: tuple[Any, ...]
    wheres: list[Any] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the name of the variable of the ``If``."""
        return str(self.calls[0].var.name).removesuffix(f"_{SIDES[0]}")

    @property
    def cond(self) -> Any:
        """Return the condition."""
        return self.wheres[0].value.args[0]

    def fits(self, where: Any, left: BranchResult, other: BranchResult) -> bool:
        """Return whether another choice belongs to the same ``If``."""
        calls = all(a.var.same_as(b.call.var) for a, b in zip(self.calls, (left, other)))
        return calls and (not self.wheres or bool(self.cond.same_as(where.value.args[0])))


def restore_branches(mod: ir.IRModule) -> ir.IRModule:
    """Write an ``If`` for every pair of lifted branches that only a choice reads.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5; it is not changed (and returned when it has no lifted branch).
    """
    if not any(branch_of(fn) for _, fn in mod.functions.items()):
        return mod
    return map_functions(mod, lambda fn: _restored(mod, fn))


def choices(mod: ir.IRModule, fn: relax.Function) -> list[Choice]:
    """Find the pairs of branches that form an ``If``: only choices read their results.

    Parameters
    ----------
    mod : IRModule
        The module, at level 4 or 5.
    fn : Function
        A function of that module.
    """
    results = branch_results(mod, fn)
    by_var: dict[Any, Choice] = {}
    shared: set[Any] = set()
    for block in fn.body.blocks if results else ():
        for b in block.bindings:
            used = [results[v].call for v in variables(b.value) if v in results]
            if not used or b.var in results:
                continue
            ends = _ends(b, block, results)
            if ends is not None:
                calls = tuple(end.call for end in ends)
                choice = by_var.setdefault(calls[0].var, Choice(calls))
                if choice.fits(b, *ends):
                    choice.wheres.append(b)
                    choice.paths.append(ends[0].path)
                    continue
            shared.update(call.var for call in used)
    shared.update(results[v].call.var for v in variables(fn.body.body) if v in results)
    return [
        choice
        for choice in by_var.values()
        if not any(call.var in shared for call in choice.calls) and _same_types(choice)
    ]


def _ends(
    b: Any, block: relax.BindingBlock, results: Results
) -> tuple[BranchResult, BranchResult] | None:
    """Return the results of the branches between which a binding chooses, if it does."""
    if not is_choice(b.value) or isinstance(block, relax.DataflowBlock):
        return None
    left, other = (results.get(a) for a in b.value.args[1:])
    if left is None or other is None or not left.faces(other):
        return None
    return None if b.value.args[0] in results else (left, other)


def _restored(mod: ir.IRModule, fn: relax.Function) -> relax.Function:
    """Write the ``If`` of a function, or return it where it has none."""
    restorable = choices(mod, fn)
    if not restorable:
        return fn
    results = branch_results(mod, fn)
    of_where = {b.var: choice for choice in restorable for b in choice.wheres}
    calls = {call.var for choice in restorable for call in choice.calls}
    blocks = []
    for block in fn.body.blocks:
        bindings: list[relax.Binding] = []
        for b in block.bindings:
            if b.var in of_where:
                choice = of_where[b.var]
                if b.var.same_as(choice.wheres[0].var):
                    bindings.extend(_write_branch(choice))
            elif b.var not in results or results[b.var].call.var not in calls:
                bindings.append(b)
        blocks.append(type(block)(bindings))
    return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))


def _same_types(choice: Choice) -> bool:
    """Return whether both branches return the same types, in unused parts too."""
    left, other = (call.value.ty for call in choice.calls)
    return bool(tvm_ffi.structural_equal(left, other))


def _write_branch(choice: Choice) -> list[Any]:
    """Return the ``If`` and the bindings of the fields of its result."""
    first = choice.wheres[0]
    branches = []
    for side, call in zip(SIDES, choice.calls, strict=True):
        inner = relax.Var(f"{first.var.name}_{side}", call.value.ty)
        block = relax.BindingBlock([relax.VarBinding(inner, call.value)])
        branches.append(typed(relax.SeqExpr([block], inner), inner.ty))
    ty = branches[0].ty
    value = typed(relax.If(choice.cond, *branches), ty)
    if choice.paths == [()]:
        return [relax.VarBinding(first.var, value)]
    full = relax.Var(choice.name, ty)
    values: dict[Path, Any] = {(): full}
    bindings = [relax.VarBinding(full, value)]
    for b, path in zip(choice.wheres, choice.paths, strict=True):
        for depth in range(len(path) - 1):
            inside = path[: depth + 1]
            if inside not in values:
                item = relax.TupleGetItem(values[path[:depth]], path[depth])
                values[inside] = relax.Var(choice.name, values[path[:depth]].ty.fields[path[depth]])
                bindings.append(relax.VarBinding(values[inside], item))
        item = relax.TupleGetItem(values[path[:-1]], path[-1])
        bindings.append(relax.VarBinding(b.var, typed(item, b.var.ty)))
    return bindings
