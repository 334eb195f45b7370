# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function, for one mesh, from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError, LoweringError
from ...ir import dist_op_name, flat_types
from ...ir.rewrite import (
    VARIABLES,
    bindings_of,
    is_tensors,
    leaves_of,
    make_binding,
    make_var,
    pruned_bindings,
    tensor_args,
    typed,
    with_body,
)
from ...native import Reading
from ...ops import attribute_axes, axes_of, registration_of, sums
from .bindings import Bindings
from .templates import constants_of
from .values import Values


@dataclass(frozen=True)
class Output:
    """A flattened result that the function gives on its mesh: position and level-4 type."""

    index: int
    ty: Any


class LocalFunction:
    """Lowers one function for one mesh.

    Parameters
    ----------
    values : Values
        Of the function on the mesh.
    fn : relax.Function
        The function at level 4.
    reading : Reading
        Of it.
    entry : bool
        Whether it is a public function: its inputs arrive padded with zeros, its tuple
        parameters and results are flattened.
    """

    def __init__(self, values: Values, fn: relax.Function, reading: Reading, entry: bool) -> None:
        self.values, self.fn, self.reading, self.entry = values, fn, reading, entry
        self.bindings = Bindings(values)
        self.templates = values.context.templates_on(values.number)
        self.params: list[Any] = []
        self.param_leaves: list[tuple[int, str, Any]] = []
        self.outputs: list[Output] = []
        self._locals: list[Any] = [None] * len(reading.variables)
        self._states: list[int | None] = [None] * len(reading.variables)

    def _open(self) -> None:
        values = self.values
        boundary = attribute_axes(self.fn, "params")
        at = 0
        for position, param in enumerate(self.fn.params):
            leaves = flat_types(param.ty)
            tensors = is_tensors(param.ty)
            for i in range(len(leaves) if tensors else 0):
                terms = sums(boundary.get(at, ()))
                if terms:
                    values.terms[(param, i)] = terms
                if self.entry:
                    values.zero[(param, i)] = True
                at += 1
            if not self.entry:
                self.params.append(values.declare(param))
                continue
            self._entry_param(position, param)

    def _entry_param(self, position: int, param: Any) -> None:
        """Parameters of an entry are tensors on its mesh; tuples are taken apart."""
        values = self.values
        if not is_tensors(param.ty):
            raise LoweringError(
                "DIST0504",
                f"an input of type {param.ty}",
                place=f"{values.name}/{param.name}",
                remedy="Pass tensors; make an object inside, from tensors (each device its own).",
            )

        def make(ty: Any, name: str) -> Any:
            if isinstance(ty, relax.TupleType):
                fields = [make(t, f"{name}_{i}") for i, t in enumerate(ty.fields)]
                if any(f is None for f in fields):
                    return None
                return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
            if not isinstance(ty, DTensorType):
                values.local_type(ty, f"{values.name}/{name}")
            if values.context.mesh_number(ty.device_mesh) != values.number:
                return None
            var = relax.Var(name, values.local_type(ty, f"{values.name}/{name}"))
            self.params.append(var)
            self.param_leaves.append((position, name, ty))
            return var

        value = make(param.ty, str(param.name))
        if value is not None:
            values.env[param] = value

    def _result(self) -> Any:
        """Result expression, after checking that it is as finished as the boundary says."""
        values = self.values
        result = self.fn.body.body
        wanted = attribute_axes(self.fn, "results")
        leaves = list(leaves_of(result))
        for i, (expr, number, _) in enumerate(leaves):
            if axes_of(values.terms_of(expr, number)) != wanted.get(i, ()):
                raise LevelError(
                    "DIST0451",
                    f"result {i} is partial along {list(axes_of(values.terms_of(expr, number)))}, "
                    f"its callers expect {list(wanted.get(i, ()))}",
                    place=values.name,
                    remedy="Run LegalizeRedistribute first.",
                )
        if not self.entry:
            return values.local(result)
        mine = []
        for index, (expr, number, ty) in enumerate(self._open_tuples(result)):
            if not isinstance(ty, DTensorType):
                values.local_type(ty, values.name)
                raise LoweringError(
                    "DIST0504",
                    f"result {index} is of type {ty}: it lives on its device and has no whole",
                    place=values.name,
                    remedy="Return tensors; an object cannot be gathered.",
                )
            if values.context.mesh_number(ty.device_mesh) != values.number:
                continue
            value = values.local(expr)
            if isinstance(expr.ty, relax.TupleType):
                value = self._item(value, number)
            mine.append(value)
            self.outputs.append(Output(index, ty))
        if len(mine) == 1:
            return mine[0]
        return typed(relax.Tuple(mine), relax.TupleType([v.ty for v in mine]))

    def _item(self, value: Any, number: int) -> Any:
        """Flattened leaf of a (nested) local tuple."""
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
        raise LoweringError(
            "DIST0504",
            "a result that is no tensor",
            place=values.name,
            remedy="Return tensors.",
        )

    def _open_tuples(self, expr: Any) -> list[tuple[Any, int, Any]]:
        """Leaves of a result, tuples that span meshes opened."""
        values = self.values
        if isinstance(expr, relax.Tuple):
            return [x for f in expr.fields for x in self._open_tuples(f)]
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
        for place in range(reading.params):
            self._note(place)
        blocks: list[tuple[bool, list[Any]]] = []
        end = 0
        for block in self.fn.body.blocks[:]:
            dataflow = isinstance(block, relax.DataflowBlock)
            values.open_block(dataflow)
            first, end = end, end + len(block.bindings)
            for number in range(first, end):
                self._binding(number)
            blocks.append((dataflow, values.writer.bindings))
        values.open_block(False)
        result = self._result()
        blocks.append((False, values.writer.bindings))
        # Inputs that nothing reads stay: callers give all inputs of the original function.
        kept, pure = pruned_bindings(blocks, result)
        return with_body(self.fn, self.params, kept, result, pure)

    def _binding(self, number: int) -> None:
        """Write the local form of a binding, as that of one like it if there was one."""
        values, reading, states = self.values, self.reading, self._states
        place, like, used = reading.params + number, reading.like[number], reading.used(number)
        var, value = reading.variables[place], reading.values[number]
        key = (like, *[states[n] if n >= 0 else -1 for n in used])
        # A tuple over several meshes may let a variable out of its block under another name.
        template = None if values.tuples else self.templates.find(key)
        written = values.writer.bindings
        if template is not None:
            constants = self._constants(value, like) if -1 in used else ()
            new = template.value(value, [self._locals[n] for n in used], constants)
            local = make_var(var.name, template.ty, type(var) is relax.DataflowVar)
            written.append(make_binding(local, new))
            values.env[var] = local
            values.recall(var, template.state)
            self._locals[place], states[place] = local, template.number
            return
        before = len(written)
        self.bindings.visit(var, value, like)
        self._note(place)
        if like < 0 or len(written) != before + 1 or states[place] is None or None in key:
            return
        if written[-1].var.same_as(self._locals[place]) and not self._reads_data(value, used):
            operands = [self._locals[n] if n >= 0 else None for n in used]
            self.templates.keep(key, value, written[-1].value, operands, values.state(var))

    def _note(self, place: int) -> None:
        """Note the local form of a variable, if it is a variable like others of its state."""
        values = self.values
        var = self.reading.variables[place]
        local = values.env.get(var)
        if type(local) in VARIABLES and var not in values.foldable:
            self._locals[place] = local
            self._states[place] = self.templates.number(values.state(var))

    def _constants(self, value: Any, like: int) -> list[Any]:
        """Local forms of the constants that a value holds."""
        values = self.values
        form = self.bindings.forms.get(like)
        if form is None:
            return [values.local(c) for c in constants_of(value)]
        operands = [e for arg in tensor_args(value) for e, _, _ in leaves_of(arg)]
        return [
            values.constant(e, labels)
            for e, labels in zip(operands, form.ins)
            if type(e) is ir.GenericConst
        ]

    @staticmethod
    def _reads_data(value: Any, used: Sequence[int]) -> bool:
        """Whether the local form of a value may depend on the data of its constants."""
        if -1 not in used or type(value) is not ir.Call or dist_op_name(value) is not None:
            return False
        if type(value.op) is not ir.Op:
            return True
        said = registration_of(str(value.op.name))
        return said is not None and callable(said.local)
