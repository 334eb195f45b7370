# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower a function for a mesh from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import ir, relax
from tvm.ir import Expr, Type
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import TENSORS_ONLY, flat_types, is_object, is_shape
from tvm_distir.core.ops.terms import attribute_axes, axes_of, sums
from tvm_distir.core.rewriting.calls import bindings_of, is_tensors, leaves_of, tuple_of
from tvm_distir.core.rewriting.native.function_index import FunctionView
from tvm_distir.core.rewriting.native.making import make_variables
from tvm_distir.core.rewriting.native.pruning import pruned_bindings
from tvm_distir.core.rewriting.repeated_bindings import RepeatedBindings
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.support import LevelError, LoweringError

from .bindings import Bindings
from .values import LocalValues, VariableState


class Leaf(NamedTuple):
    """A parameter of an entry.

    Attributes
    ----------
    position : int
        The position of the parameter of the function that the leaf is, or of which it is a field.
    name : str
    ty : DTensorType
        The type at level 4.
    like : int
        Number of that type, as a reading gives it; -1 where it gives none.
    """

    position: int
    name: str
    ty: Type
    like: int


class Output(NamedTuple):
    """A flattened result that the function gives on its mesh: position and level-4 type.

    ``like`` is as in :class:`Leaf`.
    """

    position: int
    ty: Type
    like: int


class LocalFunction:
    """A lowering of a function for a mesh.

    Parameters
    ----------
    values : LocalValues
        The local values of the function on the mesh.
    fn : relax.Function
        The function at level 4.
    reading : FunctionView
        The view of the function.
    entry : bool
        Whether it is a public function: its inputs arrive padded with zeros, its tuple
        parameters and results are flattened.
    """

    def __init__(
        self, values: LocalValues, fn: relax.Function, reading: FunctionView, entry: bool
    ) -> None:
        self.values, self.fn, self.reading, self.entry = values, fn, reading, entry
        self.bindings = Bindings(values)
        self.repeated = RepeatedBindings(
            values, reading, values.context.templates_on(values.number)
        )
        self.params: list[relax.Var | None] = []
        self.param_leaves: list[Leaf] = []
        self.outputs: list[Output] = []

    def _open(self) -> None:
        values = self.values
        boundary = attribute_axes(self.fn, "params")
        known = values.context.local_types_on(values.number)
        equal_params: list[tuple[int, int, Any]] = []
        at = 0
        for position, like in enumerate(self.reading.types[: self.reading.params]):
            if like in known:
                equal_params.append((len(self.params), position, boundary.get(at)))
                self.params.append(None)
                if self.entry:
                    name, full = self.repeated.names[position], self.reading.variables[position].ty
                    self.param_leaves.append(Leaf(position, name, full, like))
                at += 1
                continue
            param = self.reading.variables[position]
            leaves = flat_types(param.ty)
            tensors = is_tensors(param.ty)
            for i in range(len(leaves) if tensors else 0):
                terms = sums(boundary.get(at, ()))
                if terms:
                    values.terms[(param, i)] = terms
                if self.entry:
                    values.zero[(param, i)] = True
                at += 1
            if self.entry:
                self._entry_param(position, param)
            else:
                self.params.append(values.declare(param))
            self.repeated.note(position)
            local = values.env.get(param)
            if type(param.ty) is DTensorType and local is not None and local.ty.vdevice is None:
                known[like] = local.ty
        self._like_params(equal_params)

    def _like_params(self, equal_params: Sequence[tuple[int, int, Any]]) -> None:
        """Make parameters that are tensors of types that have their local forms.

        Given are the place of each among the new ones, its position, and its partial axes.
        """
        values, types = self.values, self.reading.types
        known, names = values.context.local_types_on(values.number), self.repeated.names
        kinds = list(dict.fromkeys([types[position] for _, position, _ in equal_params]))
        numbers = {like: i for i, like in enumerate(kinds)}
        variables = make_variables(
            [names[position] for _, position, _ in equal_params],
            [known[like] for like in kinds],
            [numbers[types[position]] for _, position, _ in equal_params],
        )
        complete = VariableState((sums(()),), (self.entry,))
        number = self.repeated.templates.number(complete)
        for (param_number, position, axes), local in zip(equal_params, variables):
            self.params[param_number] = local
            if axes:
                self.repeated.know(position, local, VariableState((sums(axes),), (self.entry,)))
            else:
                self.repeated.know(position, local, complete, number)

    def _entry_param(self, position: int, param: relax.Var) -> None:
        """Write the parameters of an entry: tensors on its mesh, with flattened tuples."""
        values = self.values
        if is_object(param.ty):
            self._object_param(position, param)
            return
        if not is_tensors(param.ty):
            problem = f"an input has the type {param.ty}"
            raise LoweringError(
                "DIST0504", problem, location=f"{values.name}/{param.name}", remedy=TENSORS_ONLY
            )

        full = param.ty

        def make(ty: Type, name: str) -> Any:
            if isinstance(ty, relax.TupleType):
                fields = [make(t, f"{name}_{i}") for i, t in enumerate(ty.fields)]
                return None if any(f is None for f in fields) else tuple_of(fields)
            if not isinstance(ty, DTensorType):
                values.local_type(ty, f"{values.name}/{name}")
            if values.context.mesh_number(ty.device_mesh) != values.number:
                return None
            var = relax.Var(name, values.local_type(ty, f"{values.name}/{name}"))
            self.params.append(var)
            like = self.reading.types[position] if ty is full else -1
            self.param_leaves.append(Leaf(position, name, ty, like))
            return var

        value = make(full, str(param.name))
        if value is not None:
            values.env[param] = value

    def _object_param(self, position: int, param: relax.Var) -> None:
        """Write a parameter that is an object of each device."""
        values = self.values
        self._refuse_several_meshes(f"{values.name}/{param.name}", "an input")
        var = relax.Var(param.name, param.ty)
        self.params.append(var)
        self.param_leaves.append(Leaf(position, str(param.name), param.ty, -1))
        values.env[param] = var

    def _refuse_several_meshes(self, location: str, problem: str) -> None:
        """Refuse an object of a module with several meshes: it is not known which has it."""
        if len(set(self.values.context.firsts)) > 1:
            raise LoweringError(
                "DIST0504",
                f"{problem} is an object, and the module has several meshes",
                location=location,
                remedy="Use a single mesh, or create the object inside from tensors.",
            )

    def _result(self) -> Expr:
        """Return the result, after checking that it is reduced as the boundary declares."""
        values, reading = self.values, self.reading
        result = self.fn.body.body
        self.repeated.recall(reading.result)
        self._check_reduced(result)
        if not self.entry:
            return values.local(result)
        # The very objects that ``values`` has as keys are looked up without a comparison.
        positions = {handle(reading.variables[n]): n for n in reading.result if n >= 0}
        mine = []
        for index, (expr, number, ty) in enumerate(self._open_tuples(result)):
            variable_number = positions.get(handle(expr), -1)
            full = reading.variables[variable_number] if variable_number >= 0 else expr
            like = reading.types[variable_number] if variable_number >= 0 and number == 0 else -1
            if type(ty) is DTensorType and not self._here(ty, like):
                continue
            value, like = self._output(index, full, number, ty, like)
            mine.append(value)
            self.outputs.append(Output(index, ty, like))
        return mine[0] if len(mine) == 1 else tuple_of(mine)

    def _check_reduced(self, result: Expr) -> None:
        """Refuse a result that is partial along other axes than its callers expect."""
        values, result_axes = self.values, attribute_axes(self.fn, "results")
        leaves = leaves_of(result) if values.terms or result_axes else ()
        for i, (expr, number, _) in enumerate(leaves):
            have, want = axes_of(values.terms_of(expr, number)), result_axes.get(i, ())
            if have != want:
                problem = (
                    f"result {i} is partial along {list(have)}, its callers expect {list(want)}"
                )
                remedy = "Run LegalizeRedistribute first."
                raise LevelError("DIST0451", problem, location=values.name, remedy=remedy)

    def _here(self, ty: DTensorType, like: int) -> bool:
        """Return whether a tensor is on the mesh of this function."""
        values = self.values
        if like in values.context.local_types_on(values.number):
            return True
        return bool(values.context.mesh_number(ty.device_mesh) == values.number)

    def _output(self, index: int, full: Expr, number: int, ty: Type, like: int) -> tuple[Any, int]:
        """Return the local value of a leaf of the result, and the class of its type."""
        values = self.values
        known = values.context.local_types_on(values.number)
        if like in known:
            return values.local(full), like
        if is_shape(ty):  # a constant, the same on each device
            self._refuse_several_meshes(values.name, f"result {index}")
            return values.writer.emit(relax.ShapeExpr(list(ty.values)), "result"), -1
        if is_object(ty):
            self._refuse_several_meshes(values.name, f"result {index}")
        elif not isinstance(ty, DTensorType):
            values.local_type(ty, values.name)
            problem = f"result {index} is of type {ty}, which has no global value"
            remedy = "Return tensors, static shapes, or objects of each device."
            raise LoweringError("DIST0504", problem, location=values.name, remedy=remedy)
        value = values.local(full)
        if isinstance(full.ty, relax.TupleType):
            return self._item(value, number), -1
        if is_object(ty):
            return value, -1
        if like >= 0 and value.ty.vdevice is None:
            known[like] = values.local_type(ty, values.name)
        return value, like

    def _item(self, value: Expr, number: int) -> Expr:
        """Return the flattened leaf of a (nested) local tuple."""
        values = self.values
        for i, part_ty in enumerate(value.ty.fields):
            count = len(flat_types(part_ty))
            if number < count:
                part = (
                    value.fields[i]
                    if isinstance(value, relax.Tuple)
                    else values.writer.emit(relax.TupleGetItem(value, i), "result")
                )
                return self._item(part, number) if isinstance(part_ty, relax.TupleType) else part
            number -= count
        problem = "a result is not a tensor"
        raise LoweringError("DIST0504", problem, location=values.name, remedy="Return tensors.")

    def _open_tuples(self, expr: Expr) -> list[tuple[Any, int, Any]]:
        """Return the leaves of a result, tuples that span meshes opened."""
        values = self.values
        if isinstance(expr, relax.Tuple):
            return [x for f in expr.fields[:] for x in self._open_tuples(f)]
        if isinstance(expr, ir.Var) and expr in values.tuples:
            return [x for f in values.tuples[expr] for x in self._open_tuples(f)]
        return list(leaves_of(expr))

    def run(self) -> relax.Function:
        """Return the function at level 5; :attr:`outputs` and :attr:`param_leaves` then hold
        what ``dist.io`` says.
        """
        values, reading = self.values, self.reading
        if not reading.plain:  # refuses what has no local form, before anything is written
            list(bindings_of(self.fn, values.name))
        self._open()
        blocks: list[tuple[bool, list[Any]]] = []
        end = 0
        for block in self.fn.body.blocks[:]:
            dataflow = isinstance(block, relax.DataflowBlock)
            values.open_block(dataflow)
            first, end = end, end + len(block.bindings)
            self.repeated.write(first, end, self._binding)
            blocks.append((dataflow, values.writer.bindings))
        values.open_block(False)
        result = self._result()
        blocks.append((False, values.writer.bindings))
        # Inputs that nothing reads stay: callers give all inputs of the original function.
        live_blocks, pure = pruned_bindings(blocks, result)
        return with_body(self.fn, self.params, live_blocks, result, pure)

    def _binding(self, number: int) -> None:
        """Write the local form of a binding."""
        reading = self.reading
        self.bindings.visit(reading.bound(number), reading.values[number], reading.like[number])
