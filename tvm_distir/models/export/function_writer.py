# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write Relax functions as MLIR functions, binding by binding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import flat_types, labels_of, tensor_type
from tvm_distir.core.ir.attributes import VALUE_MARK, param_names, stated_orders
from tvm_distir.core.rewriting import all_bindings, op_name
from tvm_distir.support import GenericConst, ModelError
from tvm_distir.transforms import WRITTEN_OPS

from . import collectives, contraction, elementwise, indexing, reductions, shapes
from .body_writer import Body, Ssa
from .composites import Composites, leaves
from .step import DeviceInterface, ExportStep, Write, dims, dtype
from .text import Unwritable, string

WRITERS: dict[str, Write] = {
    **elementwise.WRITERS,
    **shapes.WRITERS,
    **contraction.WRITERS,
    **reductions.WRITERS,
    **indexing.WRITERS,
    **collectives.WRITERS,
}
"""The writer of each op's calls, by the op's name without ``relax.``."""
_REMEDY = "Write the module at an earlier level, or rewrite this part of the model."
Written: TypeAlias = "Ssa | tuple[Written, ...]"
"""Value of the text, or the values of a tuple."""
_STARTED = "_start"


def fault(location: str, problem: str) -> ModelError:
    """Return an error at a place (DIST0380)."""
    return ModelError("DIST0380", problem, location=location, remedy=_REMEDY)


class FunctionWriter:
    """Writer of a function.

    Parameters
    ----------
    name : str
    fn : relax.Function
    devices : DeviceInterface
    composites : Composites or None
        The writer of composites; None: calls are written without composites.
    """

    def __init__(
        self, name: str, fn: relax.Function, devices: DeviceInterface, composites: Composites | None
    ) -> None:
        self._name, self._fn, self._devices = name, fn, devices
        self._composites = composites
        self.body = Body()
        self._values: dict[Expr, Any] = {}
        self.arguments: list[Ssa] = []
        self._notes: list[str] = []

    def run(self) -> list[Ssa]:
        """Write all bindings; return the values of the flattened results.

        Raises
        ------
        ModelError
            DIST0380 naming the binding that cannot be expressed in StableHLO.
        """
        for param in self._fn.params:
            try:
                self._values[param] = self._packed(param.ty, self._new_arguments(param.ty))
            except Unwritable as error:
                raise fault(f"{self._name}/{param.name}", str(error)) from error
        for binding in all_bindings(self._fn.body):
            self._bind(binding.var, binding.value)
        try:
            return list(leaves(self._value(self._fn.body.body)))
        except Unwritable as error:
            raise fault(self._name, str(error)) from error

    def _new_arguments(self, ty: ir.Type) -> Iterator[Ssa]:
        for leaf in flat_types(ty):
            value = Ssa(f"%arg{len(self.arguments)}", dims(leaf), dtype(leaf))
            self.arguments.append(value)
            self._notes.append(self._note_of(leaf))
            yield value

    def _note_of(self, ty: ir.Type) -> str:
        if not isinstance(ty, DTensorType):
            return ""
        text = self._devices.sharding(ty.device_mesh, labels_of(ty.placement), len(dims(ty)), None)
        return f"sdy.sharding = #sdy.sharding{text}"

    def _packed(self, ty: ir.Type, values: Iterator[Ssa]) -> Written:
        if isinstance(ty, relax.TupleType):
            return tuple(self._packed(field, values) for field in ty.fields)
        return next(values)

    def _bind(self, var: relax.Var, value: Expr) -> None:
        location = f"{self._name}/{var.name} ({op_name(value)})"
        try:
            bound = self._value(value)
            for leaf, ty in zip(leaves(bound), flat_types(var.ty)):
                self._check(leaf, ty)
        except Unwritable as error:
            raise fault(location, str(error)) from error
        self._values[var] = bound

    @staticmethod
    def _check(result: Ssa, ty: ir.Type) -> None:
        """Check that a value has its variable's type; a mismatch is an internal error."""
        if (result.shape, result.dtype) != (dims(ty), dtype(ty)):
            raise Unwritable(f"it would be {result.type}, not of the shape {list(dims(ty))}")

    def _value(self, expr: Expr) -> Any:
        if expr in self._values:
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, GenericConst):
            return self.body.constant(expr.value.numpy(), dtype(expr.ty))
        if isinstance(expr, ir.Call):
            return self._call(expr)
        raise Unwritable(f"{type(expr).__name__} cannot be expressed in StableHLO")

    def _call(self, call: ir.Call) -> Any:
        if isinstance(call.op, ir.GlobalVar):
            return self._called(call)
        if str(getattr(call.op, "name", "")) in WRITTEN_OPS:
            return self._written_out(call)
        name = str(getattr(call.op, "name", "")).removeprefix("relax.").removesuffix(_STARTED)
        operation = self._devices.operation(call.args[0]) if name == "call_tir" else None
        if operation is not None:
            operands = [self._value(arg) for arg in call.args[1].fields]
            return self.body.op(operation, operands, dims(call.ty), dtype(call.ty))
        if name not in WRITERS:
            raise Unwritable(f"{op_name(call)} cannot be expressed in StableHLO")
        args = [self._argument(arg) for arg in call.args]
        step, write = ExportStep(call, args, self.body, self._devices), WRITERS[name]
        return self._composites.write(step, name, write) if self._composites else write(step)

    def _written_out(self, call: ir.Call) -> Any:
        """Write a call of attention as the products and sums that define it."""
        operands = [relax.Var("x", tensor_type(arg.ty)) for arg in call.args]
        self._values.update(zip(operands, map(self._value, call.args), strict=True))
        builder = BlockBuilder()
        with builder.function("main", operands):
            plain = ir.Call(call.op, operands, call.attrs)
            result = WRITTEN_OPS[str(call.op.name)](builder, plain)
            builder.emit_func_output(builder.emit(result))
        body = builder.get()["main"].body
        for binding in all_bindings(body):
            self._bind(binding.var, binding.value)
        return self._value(body.body)

    def _called(self, call: ir.Call) -> Written:
        operands = [leaf for arg in call.args for leaf in leaves(self._value(arg))]
        results = [(dims(ty), dtype(ty)) for ty in flat_types(call.ty)]
        notes = f"callee = @{call.op.name_hint}"
        if len(results) == 1:
            results_out = [self.body.op("func.call", operands, *results[0], notes)]
        else:
            results_out = self.body.several("func.call", operands, results, notes)
        return self._packed(call.ty, iter(results_out))

    def _argument(self, arg: Expr) -> Any:
        """Return a value, a tuple of values, a list of integers or a number."""
        if isinstance(arg, relax.ShapeExpr):
            return [_number(value) for value in arg.values]
        if isinstance(arg, relax.Tuple) and len(arg.fields) and _is_number(arg.fields[0]):
            return [_number(field) for field in arg.fields]
        return _number(arg) if _is_number(arg) else self._value(arg)

    def signature(self, port_texts: Sequence[str] | None = None, public: bool = True) -> list[str]:
        """Return the arguments as text, with names and, for public functions, placements."""
        first = self._first_annotations() if public else {}
        names = _leaf_names(self._fn)
        lines = []
        for value, note, name in zip(self.arguments, port_texts or self._notes, names):
            text = (note or first.get(value.name, "")) if public else ""
            location = f" loc({string(name)})" if name else ""
            notes = f" {{{text}}}" if text else ""
            lines.append(f"{value.name}: {value.type}{notes}{location}")
        return lines

    def _first_annotations(self) -> dict[str, str]:
        """Return the first annotation of each parameter, by name of the argument."""
        first_annotations: dict[str, str] = {}
        for binding in all_bindings(self._fn.body):
            call = binding.value
            if op_name(call) != "dist.annotate_sharding" or call.args[0] not in self._fn.params:
                continue
            attrs = call.attrs
            labels = labels_of(attrs.placement)
            value = self._values[call.args[0]]
            text = self._devices.sharding(attrs.device_mesh, labels, len(value.shape), call)
            first_annotations.setdefault(value.name, f"sdy.sharding = #sdy.sharding{text}")
        return first_annotations

    def results(self, values: Sequence[Ssa], port_texts: Sequence[str] | None = None) -> list[str]:
        """Return the types of the results as text, with their placements."""
        notes = port_texts or [self._note_of(ty) for ty in flat_types(self._fn.body.ty)]
        return [v.type + (f" {{{note}}}" if note else "") for v, note in zip(values, notes)]


def annotation_orders(fn: relax.Function) -> dict[Expr, list[tuple[int, ...]]]:
    """Return the stated orders of axes of annotations of parameters, results and other values."""
    stated, result, orders = stated_orders(fn), fn.body.body, {}
    results = result.fields if isinstance(result, relax.Tuple) else [result]
    for binding in all_bindings(fn.body) if stated else ():
        var, call = binding.var, binding.value
        if op_name(call) == "dist.annotate_sharding":
            ends = [f"#{n}" for n, field in enumerate(results) if field.same_as(var)]
            ends += [f"{VALUE_MARK}{var.name}", str(getattr(call.args[0], "name", ""))]
            orders[call] = next((stated[end] for end in ends if end in stated), [])
    return orders


def _leaf_names(fn: relax.Function) -> list[str]:
    names = []
    for param, name in zip(fn.params, param_names(fn)):
        count = len(flat_types(param.ty))
        names += [name] if count == 1 else [f"{name}.{i}" for i in range(count)]
    return names


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, str)) or isinstance(
        getattr(value, "ty", None), ir.PrimType
    )


def _number(value: object) -> bool | int | float:
    number = getattr(value, "value", value)
    if hasattr(number, "value"):
        number = number.value
    if not isinstance(number, (int, float, bool)):
        raise Unwritable(f"{value} is not known")
    return number
