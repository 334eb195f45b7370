# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Who defines and who reads the values of a function at level 3, and what only converts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...ir import mesh_key
from ...ir.ops import dist_op_name
from ..legalize.emit import variables
from ..legalize.rewrite import is_redistribute

Path = tuple[int, ...]
"""Where a leaf stands in a nested tuple."""


class Scene:
    """Who defines and who reads the variables of a function.

    Attributes
    ----------
    value : dict
        Per variable what it is bound to.
    readers : dict
        Per variable the bindings that read it, None for the function's result; one entry per
        mention.
    """

    def __init__(self, fn: relax.Function) -> None:
        self.value: dict[Any, Any] = {}
        self.readers: dict[Any, list[Any]] = {}
        for block in fn.body.blocks:
            for b in block.bindings:
                self.value[b.var] = b.value
                for used in variables(b.value):
                    self.readers.setdefault(used, []).append(b)
        for used in variables(fn.body.body):
            self.readers.setdefault(used, []).append(None)

    def before(self, arg: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        """Conversions that lead to an argument and to nothing else, first one first.

        A ``partial`` goes along only with the redistribute that it leaves unfinished: alone it
        may be what keeps an op's own reduction open.
        """
        steps: list[tuple[Any, Any]] = []
        here = arg
        while isinstance(here, ir.Var) and len(self.readers.get(here, [])) == 1:
            value: Any = self.value.get(here)
            if redistributes(value):
                steps.append((here, value))
            elif dist_op_name(value) == "partial" and redistributes(self.value.get(value.args[0])):
                if len(self.readers[value.args[0]]) != 1:
                    break
                steps.append((here, value))
            else:
                break
            here = value.args[0]
        return (here, steps[::-1]) if isinstance(here, ir.Var) else (arg, [])

    def after(self, leaf: Any) -> list[tuple[Any, Any]]:
        """Conversions of a result that nothing else reads."""
        steps: list[tuple[Any, Any]] = []
        here = leaf
        while len(self.readers.get(here, [])) == 1:
            reader = self.readers[here][0]
            if reader is None:
                break
            if not redistributes(reader.value) and dist_op_name(reader.value) != "partial":
                break
            steps.append((reader.var, reader.value))
            here = reader.var
        return steps

    def leaves(self, var: Any, path: Path) -> Iterator[tuple[Path, Any]]:
        """Variables that hold the leaves of a (nested) tuple variable, each read off once."""
        if not isinstance(var.ty, relax.TupleType):
            yield path, var
            return
        items: dict[int, list[Any]] = {}
        for reader in self.readers.get(var, []):
            if reader is not None and isinstance(reader.value, relax.TupleGetItem):
                items.setdefault(int(reader.value.index), []).append(reader.var)
        for index, found in sorted(items.items()):
            if len(found) == 1:
                yield from self.leaves(found[0], (*path, index))

    def moved(self, var: Any) -> tuple[Any, list[Any]]:
        """What redistributes lead to a variable, across meshes too, and from which one.

        Returns
        -------
        source : Var
            What is no redistribute of a variable.
        steps : list of Var
            The redistributes, last one first.
        """
        steps = []
        while is_redistribute(self.value.get(var)) and isinstance(self.value[var].args[0], ir.Var):
            steps.append(var)
            var = self.value[var].args[0]
        return var, steps


def redistributes(value: Any) -> bool:
    """Whether a value is a redistribute of a variable within one mesh."""
    if not is_redistribute(value):
        return False
    have = value.args[0].ty
    return isinstance(have, DTensorType) and mesh_key(have.device_mesh) == mesh_key(
        value.attrs.device_mesh
    )
