# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Maps a function's variables and expressions to flat values."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import tensor_type
from tvm_distir.core.rewriting.native.survey import FunctionIndex
from tvm_distir.support import GenericConst

from .graph import CONST, FlatValue, Graph
from .types import ModuleTypes, leaf_types


class Leaves:
    """Adds the values of variables to a graph, and looks up those of expressions.

    Parameters
    ----------
    facts : ModuleTypes
        The types of the module.
    g : Graph
    survey : FunctionIndex
        The index of the graph's function.

    Attributes
    ----------
    read : set of int
        Variables read since it was emptied, by handle.
    """

    def __init__(self, facts: ModuleTypes, g: Graph, survey: FunctionIndex) -> None:
        self._facts, self.g = facts, g
        self._names, self._handles, self._first = survey.names, survey.handles, survey.first
        self._types, self._begin, self._operands = survey.types, survey.begin, survey.operands
        self.read: set[int] = set()
        self._of_class: dict[int, FlatValue] = {}

    def of(self, number: int, var: relax.Var) -> tuple[int, ...]:
        """Return the values of a variable, which is the ``number``-th of the survey."""
        name, first = self._names[number], self._first[number]
        if first < 0:
            return tuple([self.make(name, ty) for ty in leaf_types(var.ty)])
        known = self.like_others(number)
        if known:
            return known
        values, ty = self.g.values, var.ty
        shape, item, size = self._facts.like(self._types[number], ty)
        self._of_class[first] = FlatValue(name, shape or (), item, size, self._facts.only_mesh, ty)
        values.append(self._of_class[first])
        return (len(values) - 1,)

    def like_others(self, number: int) -> tuple[int, ...]:
        """Return the value of a tensor whose type was met before; nothing for other variables."""
        known, values = self._of_class.get(self._first[number]), self.g.values
        if known is None:
            return ()
        _, shape, item, size, mesh, ty = known
        values.append(FlatValue(self._names[number], shape, item, size, mesh, ty))
        return (len(values) - 1,)

    def copied(self, name: str, like: Sequence[FlatValue]) -> tuple[int, ...]:
        """Add new values with the types of others."""
        values = self.g.values
        first = len(values)
        for _, shape, item, size, mesh, ty in like:
            values.append(FlatValue(name, shape, item, size, mesh, ty))
        return tuple(range(first, len(values)))

    def make(self, name: str, ty: ir.Type) -> int:
        """Add a new value of a type that is no tuple.

        Raises
        ------
        PropagationError
            DIST0402 for a tensor of which the rank or a dim is not known.
        """
        g, mesh = self.g, self._facts.only_mesh
        tensor = ty if type(ty) is relax.TensorType else tensor_type(ty)
        if tensor is None:
            return g.add_value(name, (), 0, mesh)
        shape, item, size = self._facts.tensor(tensor)
        if shape is None:
            if isinstance(ty, relax.TensorType) and int(ty.ndim) == 0:
                g.values.append(FlatValue(name, (), item, item, mesh, tensor))
                return len(g.values) - 1
            remedy = "Give it a shape (symbolic dims are allowed), or fold the op that computes it."
            raise self.g.error("DIST0402", name, f"the shape of {ty} is not known", remedy)
        g.values.append(FlatValue(name, shape, item, size, mesh, tensor))
        return len(g.values) - 1

    def flat(self, expr: ir.Expr, label: str) -> tuple[int, ...]:
        """Return the flat value numbers of an expression; none for shapes and scalars."""
        key = handle(expr)
        cached = self.g.env.get(key)
        if cached is not None:
            self.read.add(key)
            return cached
        if type(expr) is relax.Tuple:
            return tuple([v for field in expr.fields[:] for v in self.flat(field, label)])
        if type(expr) is relax.TupleGetItem:
            starts = self._facts.starts(expr.tuple_value.ty)
            return self.flat(expr.tuple_value, label)[starts[expr.index] : starts[expr.index + 1]]
        if isinstance(expr, GenericConst):
            return (CONST,)
        if not isinstance(expr, ir.Call | relax.If):
            return ()
        problem = f"a nested {type(expr).__name__} is not supported"
        raise self.g.error("DIST0412", label, problem, "Run relax.transform.Normalize first.")

    def operands(self, number: int) -> tuple[int, ...]:
        """Return the flat operands of a call that the survey resolved."""
        env, handles, read, leaves = self.g.env, self._handles, self.read, list[int]()
        for variable in self._operands[self._begin[number] : self._begin[number + 1]]:
            if variable < 0:
                leaves.append(CONST)
                continue
            key = handles[variable]
            read.add(key)
            leaves += env[key]
        return tuple(leaves)
