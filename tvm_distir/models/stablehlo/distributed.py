# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import modules of levels 3 and 4: placements of values, and the resharding between them.

What is read first is what the module computes on full tensors; when all functions are there their
values get the types that the text says, and the steps stand where it has composites for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core import (
    PARTIAL_ATTR,
    as_dtensor,
    callees_first,
    check_placement,
    make_binding,
    make_var,
    mesh_shape,
    parse_placement,
    placement_of,
    rebuild,
    retyped,
    variables,
    with_body,
)
from tvm_distir.core.ir import ops
from tvm_distir.models.mlir.tree import Module, Operation
from tvm_distir.support import DistIRError

from .emitter import Emitter
from .grids import KINDS
from .shardings import Shardings
from .values import Unsupported, Value, shape_of

PLACEMENT = "tvm_distir.placement"
"""The attribute of arguments and operations: ``"mesh0: S[0], R"``, or a list of such texts."""
PARTIAL = "tvm_distir.partial"
"""The attribute of a private function that says which parameters and results are partial."""
_STEP = "tvm_distir.dist."
_STEPS = (
    *("partial", "redistribute", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("local_slice", "exchange", "collective_permute"),
)
_FUNCTION = "tvm_distir.function"  # keeps functions apart that compute the same


class Distributed:
    """Placements and redistributions of a module, by variable.

    Parameters
    ----------
    module : Module
    shardings : Shardings
    annotates : bool
        Whether values get the placements of the text.

    Attributes
    ----------
    is_said : bool
        Whether the text has placements of values; it then is of level 3 or 4.
    """

    def __init__(self, module: Module, shardings: Shardings, annotates: bool) -> None:
        self.is_said = any(PLACEMENT in notes for notes in _edges(module))
        self._annotates = annotates
        self._shardings = shardings
        self._lies: dict[Any, tuple[Any, Sequence[int]]] = {}
        self._steps: dict[Any, tuple[str, dict[str, Any]]] = {}
        self._count = 0

    @property
    def is_read(self) -> bool:
        """Return whether the imported module is of level 3 or 4."""
        return self.is_said and self._annotates

    def place(self, var: Any, attributes: Mapping[str, Any]) -> None:
        """Record the placement of an argument."""
        if self.is_read and PLACEMENT in attributes:
            self._lies[var] = self._placement(attributes[PLACEMENT], var)

    def note(self, operation: Operation, values: Sequence[Value]) -> None:
        """Record the placement of an operation's result."""
        said = operation.attributes.get(PLACEMENT)
        if said is None or not self.is_read:
            return
        listed = said if isinstance(said, list) else [said]
        if len(listed) != len(values):
            raise Unsupported(f"{len(listed)} placements of {len(values)} results")
        for text, value in zip(listed, values):
            if value.is_whole and isinstance(value.expr, relax.Var):
                self._lies.setdefault(value.expr, self._placement(text, value.expr))

    def step(
        self, operation: Operation, operands: Sequence[Value], write: Emitter
    ) -> list[Value] | None:
        """Return a composite that changes a placement, to be inserted later, or None."""
        name = str(operation.attributes.get("name", ""))
        kind = name.removeprefix(_STEP)
        if not self.is_said or kind == name or kind not in _STEPS or len(operands) != 1:
            return None
        if not self._annotates:
            return list(operands)
        write.hint = kind
        expr = write.whole(operands[0])
        mesh, labels = self._placement(operation.attributes.get(PLACEMENT), expr)
        var = write.emit(relax.op.distributed.annotate_sharding(expr, mesh, placement_of(labels)))
        self._steps[var] = kind, dict(operation.attributes.get("composite_attributes") or {})
        return [write.value(var)]

    def marked(self, function: Any, operation: Operation) -> Any:
        """Return a function marked with its annotations, distinct from any other."""
        if not self.is_read:
            return function
        self._count += 1
        said = operation.attributes.get(PARTIAL)
        if isinstance(said, str):
            function = function.with_attr(PARTIAL_ATTR, _partial(said))
        return function.with_attr(_FUNCTION, self._count)

    def placed(self, mod: ir.IRModule) -> ir.IRModule:
        """Return the module with its placements and redistributions.

        Raises
        ------
        Unsupported
            Values of which the text does not say it, and steps that do not lead there.
        """
        if not self.is_read:
            return mod
        made: dict[str, Any] = {}
        functions = {}
        for gv, fn in callees_first(mod):
            done = _Function(self._lies, self._steps, self._shardings, made).run(fn)
            name = str(gv.name_hint)
            made[name] = retyped(gv, done.ty)
            functions[made[name]] = done.without_attr(_FUNCTION)
        return ir.IRModule(functions, attrs=mod.attrs)

    def _placement(self, said: Any, expr: Any) -> tuple[Any, Sequence[int]]:
        name, separator, text = str(said).partition(": ")
        if not isinstance(said, str) or not separator:
            raise Unsupported(f'the {PLACEMENT} "{said}"')
        _, mesh = self._shardings.grid(name)
        try:
            labels = parse_placement(text)
            check_placement(labels, mesh_shape(mesh), len(shape_of(expr)), PLACEMENT)
        except DistIRError as error:
            raise Unsupported(f'the {PLACEMENT} "{said}": {error}') from error
        return mesh, labels


class _Function:
    """Rewriter of a function of full tensors into one of DTensors."""

    def __init__(
        self, lies: Mapping[Any, Any], steps: Mapping[Any, Any], shardings: Shardings,
        made: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._lies, self._steps, self._shardings = lies, steps, shardings
        self._made = made
        self._env: dict[Any, Any] = {}
        self._fields: dict[tuple[Any, int], Any] = {}
        self._mesh: Any = None
        self._builder = relax.BlockBuilder()

    def run(self, fn: Any) -> Any:
        """Return the rewritten function."""
        for param in fn.params:
            self._env[param] = make_var(param.name, self._type(param))
        bindings = [b for block in fn.body.blocks for b in block.bindings]
        for binding in bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and binding.var in self._lies:
                self._fields[value.tuple_value, int(value.index)] = self._lies[binding.var]
        read = set(variables(fn.body.body))
        for binding in reversed(bindings):
            if binding.var in read:
                read.update(variables(binding.value))
        blocks = []
        for block in fn.body.blocks:
            kept_bindings = [self._binding(b.var, b.value) for b in block.bindings if b.var in read]
            blocks.append(type(block)(kept_bindings))
        result = self._expr(fn.body.body)
        return with_body(fn, [self._env[p] for p in fn.params], blocks, result, bool(fn.is_pure))

    def _type(self, var: Any) -> Any:
        """Return the type of a variable, as annotated."""
        if var in self._lies:
            self._mesh, labels = self._lies[var]
            return as_dtensor(var.ty, self._mesh, labels)
        if isinstance(var.ty, relax.TupleType):
            fields = var.ty.fields[:]
            lies = [self._fields.get((var, i)) for i in range(len(fields))]
            placed = [as_dtensor(ty, *lie) for ty, lie in zip(fields, lies) if lie is not None]
            if len(placed) == len(fields):
                return relax.TupleType(placed)
        raise Unsupported(f"{var.name}, of which no {PLACEMENT} says how it lies")

    def _binding(self, var: Any, value: Any) -> Any:
        if isinstance(value, ir.Call):
            new = self._call(var, value, self._type(var))
        else:
            new = self._expr(value)
        kind = isinstance(var, relax.DataflowVar)
        self._env[var] = made = make_var(var.name, new.ty, kind)
        return make_binding(made, new)

    def _call(self, var: Any, call: Any, ty: Any) -> Any:
        args = [self._expr(arg) for arg in call.args]
        if var not in self._steps:
            named = isinstance(call.op, ir.GlobalVar)
            return rebuild(call, self._made[str(call.op.name_hint)] if named else call.op, args, ty)
        kind, said = self._steps[var]
        given = {key: value for key, value in said.items() if key != "device_mesh"}
        _, mesh = self._shardings.grid(str(said.get("device_mesh")))
        if given.get("op", "sum") not in KINDS.values():
            raise Unsupported(f"R.dist.{kind} of {said}")
        try:
            if kind == "redistribute":
                labels = parse_placement(str(given["placement"]))
                step = relax.op.distributed.redistribute(args[0], mesh, placement_of(labels))
            else:
                step = ops.CONSTRUCTORS[kind](args[0], device_mesh=mesh, **given)
            normalized: Any = self._builder.normalize(step)
        except (KeyError, TypeError, ValueError, RuntimeError, DistIRError) as error:
            raise Unsupported(f"R.dist.{kind} of {said}: {error}") from error
        if not tvm_ffi.structural_equal(normalized.ty, ty):
            raise Unsupported(f"R.dist.{kind} that gives {normalized.ty}, {ty} is written")
        return normalized

    def _expr(self, expr: Any) -> Any:
        if expr in self._env:
            return self._env[expr]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._expr(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return self._builder.normalize(
                relax.TupleGetItem(self._expr(expr.tuple_value), int(expr.index))
            )
        if isinstance(expr, ir.GenericConst) and not isinstance(expr.ty, DTensorType):
            if self._mesh is None:
                raise Unsupported("a constant on no mesh")
            whole = [-1] * len(mesh_shape(self._mesh))
            return ir.GenericConst(expr.value, as_dtensor(expr.ty, self._mesh, whole))
        return expr


def _edges(module: Module) -> Iterator[Mapping[str, Any]]:
    """Return the attributes of all arguments and results of functions."""
    for function in (op for op in module.operations if op.name == "func.func"):
        for argument in function.regions[0].arguments:
            yield argument.attributes
        yield from function.attributes.get("res_attrs") or []


def _partial(said: str) -> dict[str, dict[str, list[int]]]:
    """Return the ``dist.partial`` of a function."""
    try:
        loads = json.loads(said)
        return {
            str(side): {str(n): [int(a) for a in axes] for n, axes in held.items()}
            for side, held in loads.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise Unsupported(f'the {PARTIAL} "{said}"') from error
