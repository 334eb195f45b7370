# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lifted branches become an ``If`` again, at level 5.

Before::

    y_then = cls.main_y_then(x, w)
    y_else = cls.main_y_else(x)
    y = R.where(c, y_then, y_else)

After::

    if c:
        y = cls.main_y_then(x, w)
    else:
        y = cls.main_y_else(x)

The branches stay functions: TVM plans the memory of each on its own (see :mod:`...ir.branches`).
The condition has no dim to cut and is linear in nothing, so propagation leaves it complete and
the same on all devices: all ranks of a mesh take the same branch and meet in its collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, relax

from ...errors import LoweringError
from ...ir.branches import SIDES, branch_calls, branch_of
from ...ir.types import relax_functions
from ..blocks import merged_blocks
from ..legalize.emit import op_name, typed, variables

Path = tuple[int, ...]


@dataclass
class _Choice:
    """One ``If``: the variable it was, the calls of its branches, the choices between results."""

    name: str
    calls: dict[str, Any] = field(default_factory=dict)
    wheres: list[Any] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


def restore_branches(mod: ir.IRModule) -> ir.IRModule:
    """Write an ``If`` for every pair of lifted branches.

    Parameters
    ----------
    mod : IRModule
        At level 5; it is not changed (and returned when it has no lifted branch).

    Raises
    ------
    LoweringError
        DIST0504 where a branch's result is read by something else than its choice.
    """
    functions: dict[Any, Any] = dict(mod.functions.items())
    if not any(branch_of(fn) for fn in functions.values()):
        return mod
    for gv, fn in relax_functions(mod):
        if any(True for _ in branch_calls(mod, fn)):
            functions[gv] = _Restorer(mod, str(gv.name_hint), fn).run()
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


class _Restorer:
    """Rewrites one function."""

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function) -> None:
        self.mod, self.name, self.fn = mod, name, fn
        self.origin: dict[Any, tuple[Any, Path]] = {}
        self.choices: dict[Any, _Choice] = {}
        self.of_where: dict[Any, _Choice] = {}

    def run(self) -> relax.Function:
        """Return the function with its ``If``."""
        self._collect()
        blocks = []
        for block in self.fn.body.blocks:
            bindings: list[Any] = []
            for b in block.bindings:
                if b.var in self.of_where:
                    choice = self.of_where[b.var]
                    if b.var.same_as(choice.wheres[0].var):
                        bindings.extend(self._written(choice))
                elif b.var not in self.origin:
                    bindings.append(b)
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(merged_blocks(blocks), self.fn.body.body)
        relax.expr._update_type(body, self.fn.ret_ty)
        return relax.Function(self.fn.params, body, self.fn.ret_ty, self.fn.is_pure, self.fn.attrs)

    def _error(self, var: Any, what: str) -> LoweringError:
        return LoweringError(
            "DIST0504",
            what,
            place=f"{self.name}/{var.name} (If)",
            remedy="Keep the If whole: run no pass between propagation and lowering on it.",
        )

    def _collect(self) -> None:
        calls = {b.var: (name, side) for b, name, side in branch_calls(self.mod, self.fn)}
        for block in self.fn.body.blocks:
            for b in block.bindings:
                if b.var in calls:
                    self.origin[b.var] = (b, ())
                elif isinstance(b.value, relax.TupleGetItem) and b.value.tuple_value in self.origin:
                    call, path = self.origin[b.value.tuple_value]
                    self.origin[b.var] = (call, (*path, int(b.value.index)))
                elif any(v in self.origin for v in variables(b.value)):
                    if isinstance(block, relax.DataflowBlock):
                        raise self._error(b.var, "it stands in a dataflow block")
                    self._choose(b, calls)
        for used in variables(self.fn.body.body):
            if used in self.origin:
                raise self._error(used, "a branch's result is returned as it is")

    def _choose(self, b: Any, calls: dict[Any, tuple[str, str]]) -> None:
        ends = [self.origin.get(a) for a in b.value.args[1:]] if op_name(b.value) == "where" else []
        if len(ends) != 2 or None in ends:
            raise self._error(b.var, f"{op_name(b.value)} reads the result of a branch")
        (one, path), (other, other_path) = ends  # type: ignore[misc]
        pairs = [calls[one.var], calls[other.var]]
        name = pairs[0][0]
        if pairs != [(name, side) for side in SIDES] or path != other_path:
            raise self._error(b.var, "it chooses between results of different Ifs")
        variable = str(one.var.name).removesuffix(f"_{SIDES[0]}")
        choice = self.choices.setdefault(one.var, _Choice(variable))
        for side, call in zip(SIDES, (one, other), strict=True):
            if not choice.calls.setdefault(side, call).var.same_as(call.var):
                raise self._error(b.var, "a branch stands in two Ifs")
        first = choice.wheres[0].value.args[0] if choice.wheres else b.value.args[0]
        if not first.same_as(b.value.args[0]):
            raise self._error(b.var, "its results are chosen by different conditions")
        choice.wheres.append(b)
        choice.paths.append(path)
        self.of_where[b.var] = choice

    def _written(self, choice: _Choice) -> list[Any]:
        first = choice.wheres[0]
        types = [choice.calls[side].value.ty for side in SIDES]
        if not tvm_ffi.structural_equal(*types):
            raise self._error(first.var, f"its branches give {types[0]} and {types[1]}")
        branches = []
        for side in SIDES:
            call = choice.calls[side].value
            inner = relax.Var(f"{first.var.name}_{side}", call.ty)
            block = relax.BindingBlock([relax.VarBinding(inner, call)])
            branches.append(typed_sequence([block], inner))
        value = relax.If(first.value.args[0], *branches)
        relax.expr._update_type(value, types[0])
        if choice.paths == [()]:
            return [relax.VarBinding(first.var, value)]
        whole = relax.Var(choice.name, types[0])
        held: dict[Path, Any] = {(): whole}
        bindings = [relax.VarBinding(whole, value)]
        for b, path in zip(choice.wheres, choice.paths, strict=True):
            for depth in range(len(path) - 1):
                inside = path[: depth + 1]
                if inside not in held:
                    item = relax.TupleGetItem(held[path[:depth]], path[depth])
                    held[inside] = relax.Var(choice.name, held[path[:depth]].ty.fields[path[depth]])
                    bindings.append(relax.VarBinding(held[inside], item))
            item = relax.TupleGetItem(held[path[:-1]], path[-1])
            bindings.append(relax.VarBinding(b.var, typed(item, b.var.ty)))
        return bindings


def typed_sequence(blocks: list[Any], result: Any) -> relax.SeqExpr:
    """Make a typed body."""
    seq = relax.SeqExpr(blocks, result)
    relax.expr._update_type(seq, result.ty)
    return seq
