# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the values of a function that are results of lifted branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.branches import SIDES, branch_calls
from tvm_distir.core.rewriting.calls import op_name

from .def_use import Path


@dataclass(frozen=True)
class BranchResult:
    """A result of a branch, or a part of it.

    Attributes
    ----------
    call : Binding
        The call of the branch.
    name : str
        The name of the ``If``.
    side : str
        ``then`` or ``else``.
    path : tuple of int
        The position in the (nested) tuple that the branch returns.
    """

    call: ir.Call
    name: str
    side: str
    path: Path

    def faces(self, other: BranchResult | None) -> bool:
        """Return whether this result of "then" corresponds to ``other`` of "else"."""
        if other is None or (self.side, other.side) != SIDES:
            return False
        return self.name == other.name and self.path == other.path


def branch_results(mod: ir.IRModule, fn: relax.Function) -> dict[Any, BranchResult]:
    """Return the variables that hold results of branches.

    Parameters
    ----------
    mod : IRModule
        The module, at level 3 to 5, with lifted branches.
    fn : Function
        A function of that module.
    """
    results = {b.var: BranchResult(b, name, side, ()) for b, name, side in branch_calls(mod, fn)}
    if not results:
        return results
    for block in fn.body.blocks:
        for b in block.bindings:
            if isinstance(b.value, relax.TupleGetItem) and b.value.tuple_value in results:
                source = results[b.value.tuple_value]
                path = (*source.path, int(b.value.index))
                results[b.var] = BranchResult(source.call, source.name, source.side, path)
    return results


def is_choice(value: ir.Expr) -> bool:
    """Return whether a value is an ``R.where``, as which an ``If`` chooses."""
    return op_name(value) == "where"
