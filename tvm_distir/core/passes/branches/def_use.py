# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Index the definitions and uses of the values of a function, and their conversions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_key
from tvm_distir.core.ir.operators.names import COLLECTIVES
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.rewriting.calls import is_redistribute
from tvm_distir.core.rewriting.substitute import variables

Path = tuple[int, ...]
"""The path of a leaf in a nested tuple."""

MOVES = (*COLLECTIVES, "local_slice")
"""Ops that convert a value within its mesh at level 4."""


class DefUse:
    """The definitions and uses of the variables of a function.

    Attributes
    ----------
    value : dict
        The value that each variable is bound to.
    readers : dict
        The bindings that read each variable, with None for the function's result; an entry per
        mention.
    legalized : bool
        Whether the function is at level 4, where collectives convert; at 3 redistributes do.
    """

    def __init__(self, fn: relax.Function, *, legalized: bool = False) -> None:
        self.legalized = legalized
        self.value: dict[Any, Any] = {}
        self.readers: dict[Any, list[Any]] = {}
        for block in fn.body.blocks:
            for b in block.bindings:
                self.value[b.var] = b.value
                for used in variables(b.value):
                    self.readers.setdefault(used, []).append(b)
        for used in variables(fn.body.body):
            self.readers.setdefault(used, []).append(None)

    def before(self, arg: ir.Expr) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return the conversions that lead to an argument and to nothing else, in order.

        At level 3 a ``partial`` goes along only with the redistribute that it leaves unfinished:
        alone it may be what keeps an op's reduction open.
        """
        steps: list[tuple[Any, Any]] = []
        here = arg
        while isinstance(here, ir.Var) and len(self.readers.get(here, [])) == 1:
            value: Any = self.value.get(here)
            if self._converts(value):
                steps.append((here, value))
            elif self._leaves_open(value) and redistributes(self.value.get(value.args[0])):
                if len(self.readers[value.args[0]]) != 1:
                    break
                steps.append((here, value))
            else:
                break
            here = value.args[0]
        return (here, steps[::-1]) if isinstance(here, ir.Var) else (arg, [])

    def after(self, leaf: Any) -> list[tuple[Any, Any]]:
        """Return the conversions of a result that nothing else reads."""
        steps: list[tuple[Any, Any]] = []
        here = leaf
        while len(self.readers.get(here, [])) == 1:
            reader = self.readers[here][0]
            if reader is None:
                break
            if not self._converts(reader.value) and not self._leaves_open(reader.value):
                break
            steps.append((reader.var, reader.value))
            here = reader.var
        return steps

    def _converts(self, value: Any) -> bool:
        return dist_op_name(value) in MOVES if self.legalized else redistributes(value)

    def _leaves_open(self, value: Any) -> bool:
        return not self.legalized and dist_op_name(value) == "partial"

    def leaves(self, var: relax.Var, path: Path) -> Iterator[tuple[Path, Any]]:
        """Return the variables that hold the leaves of a (nested) tuple variable."""
        if not isinstance(var.ty, relax.TupleType):
            yield path, var
            return
        items: dict[int, list[Any]] = {}
        for reader in self.readers.get(var, []):
            if reader is not None and isinstance(reader.value, relax.TupleGetItem):
                items.setdefault(int(reader.value.index), []).append(reader.var)
        for index, uses in sorted(items.items()):
            if len(uses) == 1:
                yield from self.leaves(uses[0], (*path, index))

    def moved(self, var: relax.Var) -> tuple[Any, list[Any]]:
        """Return the redistributes that lead to a variable, across meshes too, and their source.

        Returns
        -------
        source : Var
            The variable at the start, which is not bound to a redistribute.
        steps : list of Var
            The redistributes, in reverse order.
        """
        steps = []
        while is_redistribute(self.value.get(var)) and isinstance(self.value[var].args[0], ir.Var):
            steps.append(var)
            var = self.value[var].args[0]
        return var, steps


def redistributes(value: Any) -> bool:
    """Return whether a value is a redistribute of a variable within a single mesh."""
    if not is_redistribute(value):
        return False
    have = value.args[0].ty
    return isinstance(have, DTensorType) and mesh_key(have.device_mesh) == mesh_key(
        value.attrs.device_mesh
    )
