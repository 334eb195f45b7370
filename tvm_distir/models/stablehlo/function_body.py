# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate the body of a function to Relax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import BlockBuilder, Expr

from tvm_distir.models.common.quiet import IMPORT_ERRORS, reason
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.attributes import read_name
from tvm_distir.models.mlir.tree import Operation, RegionBlock, Type
from tvm_distir.support import ModelError

from .composites import read_composite
from .converters import CALLS, CONVERTERS, MANUAL, RETURNS, SHARDING_CALL
from .emitter import Emitter
from .local_collectives import MOVES
from .manual import ManualProgram, ManualShard
from .operation_call import HloCall
from .shardings import Sharding, sharding_of
from .translated_values import Tensors, TranslatedTensor, identifier, typed


class FunctionBody:
    """Translator of the body of a function."""

    def __init__(self, functions: Any, builder: BlockBuilder, module: BlockBuilder) -> None:
        self._functions = functions
        self._write = Emitter(builder, module)
        self._scopes: list[dict[str, TranslatedTensor]] = []

    def function(
        self,
        operation: Operation,
        params: Sequence[relax.Var],
        public: bool,
        placed: Sequence[Sharding] | None = None,
    ) -> list[Expr]:
        """Translate a function; return the expressions of its results.

        Parameters
        ----------
        placed : sequence of Sharding, optional
            Those of the arguments, of which the parameters are shards.
        """
        block, shardings = operation.regions[0], self._functions.shardings
        program, values = self._functions.program, []
        for i, (argument, param) in enumerate(zip(block.arguments, params)):
            expr = param
            if placed is not None:
                shard = ManualShard(typed(argument.type)[0], placed[i], param)
                program.inputs.append(shard)
                expr = program.array(self._write, shard)
            if public and shardings is not None:
                expr = self._placed(operation, expr, argument.attributes, str(param.name))
            values.append(self._write.value(expr))
        results = self.run(block, values)
        try:
            full_results = [self._write.full(value) for value in results]
        except IMPORT_ERRORS as error:
            problem = f"its results do not match: {reason(error)}"
            raise self._functions.fault(operation, problem) from error
        if placed is not None:
            program.outputs = [self._result(operation, *r) for r in enumerate(full_results)]
            return [shard.local for shard in program.outputs]
        if public and shardings is not None:
            notes = operation.attributes.get("res_attrs") or []
            for index, attributes in enumerate(notes):
                result = full_results[index]
                full_results[index] = self._placed(operation, result, attributes, f"#{index}")
        return full_results

    def _result(self, operation: Operation, index: int, array: Expr) -> ManualShard:
        """Return the shard of a result of a local program."""
        notes = operation.attributes.get("res_attrs") or []
        attributes = notes[index] if index < len(notes) else {}
        stated = self._functions.stated(operation, attributes)
        program: ManualProgram = self._functions.program
        return program.shard(self._write, array, stated)

    def _placed(
        self, operation: Operation, expr: Expr, attributes: dict[str, Any], name: str = ""
    ) -> Expr:
        shardings = self._functions.shardings
        sharding = sharding_of(attributes, f"{self._functions.location}:{operation.line}")
        if sharding is None or shardings is None:
            return expr
        try:
            return shardings.annotated(self._write.builder, expr, sharding, name)
        except Unsupported as error:
            raise self._functions.fault(operation, str(error)) from error

    def run(self, block: RegionBlock, values: Tensors) -> Tensors:
        """Translate a block with its arguments; return its results."""
        return self._in_scope(block, values, self._scopes)

    def _in_scope(
        self, block: RegionBlock, values: Tensors, scopes: list[dict[str, TranslatedTensor]]
    ) -> Tensors:
        """Translate a block inside of known scopes."""
        local_values = {a.name: value for a, value in zip(block.arguments, values)}
        before, self._scopes = self._scopes, [*scopes, local_values]
        try:
            for operation in block.operations:
                operands = [self._value(operation, name) for name in operation.operands]
                if operation.name in RETURNS:
                    return operands
                self._functions.count(operation)
                for name in operation.results:
                    if name in local_values:
                        raise self._functions.fault(operation, f"{name} is defined twice")
                local_values.update(zip(operation.results, self._operation(operation, operands)))
        finally:
            self._scopes = before
        problem = "a block returns no value"
        remedy = "Write the text again with JAX."
        raise ModelError("DIST0370", problem, location=self._functions.location, remedy=remedy)

    def _value(self, operation: Operation, name: str) -> TranslatedTensor:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise self._functions.fault(operation, f"the value {name} is not defined")

    def _operation(self, operation: Operation, operands: Tensors) -> Tensors:
        title = read_name(operation.location, self._functions.module.locations)
        short = title.rstrip(":").rpartition("/")[2] or operation.name.rpartition(".")[2]
        self._write.hint = identifier(short)[:40]
        try:
            self._check(operation, operands, operation.operand_types, "operand")
            results = self._results(operation, operands)
            self._check(operation, results, operation.result_types, "result")
        except Unsupported as error:
            raise self._functions.fault(
                operation, f"the importer does not support {error}"
            ) from error
        except IMPORT_ERRORS as error:
            problem = f"its operands do not match: {reason(error)}"
            raise self._functions.fault(operation, problem) from error
        return results

    def _check(
        self, operation: Operation, values: Tensors, types: Sequence[Type], label: str
    ) -> None:
        """Reject values of other types than declared."""
        if len(values) != len(types):
            raise self._functions.fault(operation, f"{len(values)} {label}s of {len(types)} types")
        for value, kind in zip(values, types):
            shape, dtype = typed(kind)
            if (value.shape, value.dtype) != (shape, dtype):
                is_ = f"{value.dtype}{list(value.shape)}"
                raise self._functions.fault(operation, f"an {label} is {is_}, {kind} is written")

    def _results(self, operation: Operation, operands: Tensors) -> Tensors:
        if operation.name in CALLS:
            return self._called(operation, operands)
        if operation.name == MANUAL:
            program: ManualProgram = self._functions.program
            return program.run(operation, operands, self._write, self.run)
        if operation.name in MOVES:
            mesh = self._functions.mesh_of_collective(operation)
            return MOVES[operation.name](HloCall(operation, operands, self._write, self.run), mesh)
        attributes = operation.attributes
        if attributes.get("call_target_name", SHARDING_CALL) != SHARDING_CALL:
            return self._opaque(operation, operands)
        if operation.name in ("sdy.sharding_constraint", "stablehlo.custom_call"):
            if "sharding" in attributes:
                attributes = {"sdy.sharding": attributes["sharding"]}
            if self._functions.shardings is None:
                return operands
            placed = self._placed(operation, self._write.full(operands[0]), attributes)
            return [self._write.value(placed)]
        call = HloCall(operation, operands, self._write, self.run, self._functions.loops)
        converted = CONVERTERS[operation.name](call)
        return [converted] if isinstance(converted, TranslatedTensor) else list(converted)

    def _opaque(self, operation: Operation, operands: Tensors) -> Tensors:
        """Call the packed function that has the name of a custom call."""
        types = [relax.TensorType(*typed(kind)) for kind in operation.result_types]
        args = [self._write.full(value) for value in operands]
        name = str(operation.attributes["call_target_name"])
        called = relax.op.call_pure_packed(name, *args, ty_args=types)
        return self._write.values(self._write.emit(called))

    def _called(self, operation: Operation, operands: Tensors) -> Tensors:
        known = read_composite(operation, operands, self._write)
        if known is not None:
            return known
        name = self._functions.callee(operation)
        if self._functions.sizes.is_inlined(name, operands) or operation.name != "func.call":
            return self._in_scope(self._functions.by_name[name].regions[0], operands, [])
        variable = self._functions.variable(operation, name)
        args = [self._write.full(value) for value in operands]
        return self._write.values(self._write.emit(relax.Call(variable, args)))
