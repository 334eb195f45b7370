# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function, for one mesh, from level 4 to level 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError, LoweringError
from ...ir import (
    flat_types,
    mesh_shape,
)
from ..legalize.emit import (
    BlockWriter,
    bindings_of,
    is_tensors,
    leaves_of,
    typed,
    with_body,
)
from ..legalize.terms import (
    attribute_axes,
    axes_of,
    sums,
)
from .bindings import Bindings
from .prune import pruned
from .values import Context


@dataclass(frozen=True)
class Output:
    """A flattened result that the function gives on its mesh: position and level-4 type."""

    index: int
    ty: Any


class LocalFunction(Bindings):
    """Lowers one function for one mesh.

    Parameters
    ----------
    context : Context
    name : str
        Name of the function at level 4.
    fn : relax.Function
    number : int
        The mesh.
    entry : bool
        Whether it is a public function: its inputs arrive padded with zeros, its tuple
        parameters and results are flattened.
    """

    def __init__(
        self, context: Context, name: str, fn: relax.Function, number: int, entry: bool
    ) -> None:
        super().__init__(context, name, fn, number, entry)
        self.params: list[Any] = []
        self.param_leaves: list[tuple[int, str, Any]] = []
        self.outputs: list[Output] = []

    def _open(self, mesh: Any) -> None:
        self.mesh, self.sizes = mesh, mesh_shape(mesh)
        boundary = attribute_axes(self.fn, "params")
        at = 0
        for position, param in enumerate(self.fn.params):
            leaves = flat_types(param.ty)
            tensors = is_tensors(param.ty)
            for i in range(len(leaves) if tensors else 0):
                terms = sums(boundary.get(at, ()))
                if terms:
                    self.terms[(param, i)] = terms
                if self.entry:
                    self.zero[(param, i)] = True
                at += 1
            if not self.entry:
                self.params.append(self._declare(param))
                continue
            self._entry_param(position, param)

    def _entry_param(self, position: int, param: Any) -> None:
        """Parameters of an entry are tensors on its mesh; tuples are taken apart."""
        if not is_tensors(param.ty):
            raise LoweringError(
                "DIST0504",
                f"an input of type {param.ty}",
                place=f"{self.name}/{param.name}",
                remedy="Pass tensors; make an object inside, from tensors (each device its own).",
            )

        def make(ty: Any, name: str) -> Any:
            if isinstance(ty, relax.TupleType):
                fields = [make(t, f"{name}_{i}") for i, t in enumerate(ty.fields)]
                if any(f is None for f in fields):
                    return None
                return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
            if not isinstance(ty, DTensorType):
                self.local_type(ty, f"{self.name}/{name}")
            if self.context.mesh_number(ty.device_mesh) != self.number:
                return None
            var = relax.Var(name, self.local_type(ty, f"{self.name}/{name}"))
            self.params.append(var)
            self.param_leaves.append((position, name, ty))
            return var

        value = make(param.ty, str(param.name))
        if value is not None:
            self.env[param] = value

    def _result(self) -> Any:
        """Result expression, after checking that it is as finished as the boundary says."""
        result = self.fn.body.body
        wanted = attribute_axes(self.fn, "results")
        leaves = list(leaves_of(result))
        for i, (expr, number, _) in enumerate(leaves):
            if axes_of(self._terms_of(expr, number)) != wanted.get(i, ()):
                raise LevelError(
                    "DIST0451",
                    f"result {i} is partial along {list(axes_of(self._terms_of(expr, number)))}, "
                    f"its callers expect {list(wanted.get(i, ()))}",
                    place=self.name,
                    remedy="Run LegalizeRedistribute first.",
                )
        if not self.entry:
            return self._local(result)
        mine = []
        for index, (expr, number, ty) in enumerate(self._open_tuples(result)):
            if not isinstance(ty, DTensorType):
                self.local_type(ty, self.name)
                raise LoweringError(
                    "DIST0504",
                    f"result {index} is of type {ty}: it lives on its device and has no whole",
                    place=self.name,
                    remedy="Return tensors; an object cannot be gathered.",
                )
            if self.context.mesh_number(ty.device_mesh) != self.number:
                continue
            value = self._local(expr)
            if isinstance(expr.ty, relax.TupleType):
                value = self._item(value, number)
            mine.append(value)
            self.outputs.append(Output(index, ty))
        if len(mine) == 1:
            return mine[0]
        return typed(relax.Tuple(mine), relax.TupleType([v.ty for v in mine]))

    def _item(self, value: Any, number: int) -> Any:
        """Flattened leaf of a (nested) local tuple."""
        for i, part_ty in enumerate(value.ty.fields):
            count = len(flat_types(part_ty))
            if number < count:
                part = (
                    value.fields[i]
                    if isinstance(value, relax.Tuple)
                    else self.writer.emit(relax.TupleGetItem(value, i), "result")
                )
                return self._item(part, number) if isinstance(part_ty, relax.TupleType) else part
            number -= count
        raise LoweringError(
            "DIST0504", "a result that is no tensor", place=self.name, remedy="Return tensors."
        )

    def _open_tuples(self, expr: Any) -> list[tuple[Any, int, Any]]:
        """Leaves of a result, tuples that span meshes opened."""
        if isinstance(expr, relax.Tuple):
            return [x for f in expr.fields for x in self._open_tuples(f)]
        if isinstance(expr, ir.Var) and expr in self.tuples:
            return [x for f in self.tuples[expr] for x in self._open_tuples(f)]
        return list(leaves_of(expr))

    def run(self, mesh: Any) -> relax.Function:
        """Return the function at level 5; :attr:`outputs` and :attr:`param_leaves` then hold
        what ``dist.io`` says.
        """
        self._open(mesh)
        for _ in bindings_of(self.fn, self.name):
            pass  # refuses what has no local form, before anything is written
        blocks = []
        for block in self.fn.body.blocks:
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            self.constants.clear()
            self.caches.clear()
            for binding in block.bindings:
                self._visit(binding.var, binding.value)
            blocks.append(self.writer.block())
        self.writer = BlockWriter(self.builder, False)
        self.constants.clear()
        result = self._result()
        blocks.append(self.writer.block())
        # Inputs that nothing reads stay: callers give all inputs of the original function.
        kept, pure = pruned(blocks, result)
        return with_body(self.fn, self.params, kept, result, pure)
