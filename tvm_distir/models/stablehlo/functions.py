# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate functions to Relax, and inline small private ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes import IO_ATTR, NUM_INPUT_ATTR, PARAM_NAMES_ATTR
from tvm_distir.models.common.quiet import IMPORT_ERRORS, drop_half_built, reason
from tvm_distir.models.export.port_attributes import PORT
from tvm_distir.models.mlir.attributes import read_name
from tvm_distir.models.mlir.tree import Module, Operation, RegionBlock, Symbol, Type
from tvm_distir.support import ModelError

from .argument_names import ArgumentNames, Signature
from .composites import read_composite
from .converters import CALLS, CONVERTERS, RETURNS
from .emitter import Emitter
from .local_collectives import MOVES
from .manual import LocalProgram, ManualMesh, local_program
from .operation_call import HloCall
from .shardings import Shardings, sharding_of
from .sizes import MAX_OPERATIONS, Sizes
from .translated_values import TranslatedTensor, UnsupportedOperation, cleaned, identifier, typed

_REMEDY = "Rewrite this part of the model."
_LOCAL_REMEDY = "Use TVMScript: tvm-distir convert MODEL OUT.py writes local programs as they are."


class Functions:
    """Functions of a module.

    Parameters
    ----------
    module : Module
    location : str
        The name of the text in errors.
    inline : int
        Private functions of at most so many operations are written into their callers.
    shardings : Shardings
    annotates : bool
        Whether values are annotated with them.
    loops : int, optional
        The iterations of loops that data ends and no counter bounds.
    """

    def __init__(
        self,
        module: Module,
        location: str,
        inline: int,
        shardings: Shardings,
        annotates: bool,
        loops: int | None = None,
    ) -> None:
        self.module, self.location, self.loops = module, location, loops
        self.shardings = shardings if annotates else None
        self.manual_mesh = ManualMesh(shardings)
        self._shardings = shardings
        replicas = module.attributes.get("mhlo.num_replicas")
        self._replicas = replicas if type(replicas) is int else 1
        operations = (op for op in module.operations if op.name == "func.func")
        self.by_name = {str(op.attributes.get("sym_name")): op for op in operations}
        self.sizes = Sizes(self.by_name, self.callee, inline)
        self._open: list[str] = []
        self._written: dict[str, ir.GlobalVar] = {}
        self._root = relax.BlockBuilder()

    @property
    def public(self) -> list[str]:
        """Return the names of the public functions."""
        return [
            n for n, f in self.by_name.items() if f.attributes.get("sym_visibility") != "private"
        ]

    def written(self, names: ArgumentNames) -> ir.IRModule:
        """Return the module with each public function and its callees."""
        for name in self.public:
            program = self._local_program(name)
            signature = names.of(self.by_name[name])
            function = self.translate(name, signature)
            try:
                if program is not None:
                    interface = program.interface(function, signature, self._shardings)
                    function = function.with_attr(IO_ATTR, interface)
                elif self.manual_mesh.first_collective:
                    problem = f"{self.manual_mesh.first_collective} on full arrays"
                    raise UnsupportedOperation(problem)
            except UnsupportedOperation as error:
                raise self.fault(self.by_name[name], str(error)) from error
            self._root.add_func(function.with_attr("global_symbol", name), name)
        return self._root.get()

    def _local_program(self, name: str) -> LocalProgram | None:
        """Return the local program of a manual computation, and translate it as the function."""
        operation = self.by_name[name]
        notes = [argument.attributes for argument in operation.regions[0].arguments]
        if any(PORT in each for each in (*notes, *(operation.attributes.get("res_attrs") or []))):
            problem = f"a local program of {self._replicas} replicas"
            raise self.fault(operation, problem, _LOCAL_REMEDY)
        try:
            program = local_program(operation, self._shardings)
            if program is not None:
                self.manual_mesh.use(program.mesh)
                self.by_name[name] = program.operation
        except UnsupportedOperation as error:
            raise self.fault(operation, f"the importer does not support {error}") from error
        return program

    def fault(self, operation: Operation, problem: str, remedy: str = _REMEDY) -> ModelError:
        """Return an error at an operation (DIST0372)."""
        return ModelError(
            "DIST0372",
            problem,
            place=f"{self.location}:{operation.line} ({operation.name})",
            remedy=remedy,
        )

    def count(self, operation: Operation) -> None:
        """Count a translated operation, up to a maximum (DIST0372)."""
        if not self.sizes.count():
            problem = f"over {MAX_OPERATIONS} operations after loops and calls are expanded"
            raise self.fault(operation, problem)

    def callee(self, operation: Operation) -> str:
        """Return the name of the function that an operation calls."""
        symbol = operation.attributes.get("callee", operation.attributes.get("decomposition"))
        name = symbol.name if isinstance(symbol, Symbol) else ""
        if name not in self.by_name:
            raise self.fault(operation, f'there is no function "{name}"')
        return name

    def variable(self, operation: Operation, name: str) -> ir.GlobalVar:
        """Return the private Relax function of a function."""
        if name in self._open:
            raise self.fault(operation, f"functions call each other recursively: {name}")
        if name not in self._written:
            self._open.append(name)
            function = self.translate(name, None)
            self._open.pop()
            title = identifier(name) or "function"
            self._written[name] = self._root.add_func(function, title)
        return self._written[name]

    def translate(self, name: str, names: Signature | None) -> relax.Function:
        """Translate a function to Relax.

        Parameters
        ----------
        names : Signature or None
            Names and order of the parameters of a public function.
        """
        operation = self.by_name[name]
        block, builder = operation.regions[0], relax.BlockBuilder()
        locations = self.module.locations
        titles = (
            names.titles
            if names
            else [
                cleaned(read_name(a.location, locations)) or a.name.strip("%")
                for a in block.arguments
            ]
        )
        order = names.order if names else list(range(len(titles)))
        params = []
        for argument, title in zip(block.arguments, titles):
            try:
                shape, dtype = typed(argument.type)
                params.append(relax.Var(identifier(title) or "arg", relax.TensorType(shape, dtype)))
            except UnsupportedOperation as error:
                raise self.fault(operation, f"the argument {title} is {error}") from error
        attrs = {}
        if names:
            attrs = {NUM_INPUT_ATTR: names.data, PARAM_NAMES_ATTR: [titles[i] for i in order]}
        try:
            with builder.function("main", [params[i] for i in order], attrs=attrs):
                with builder.dataflow():
                    body = _Body(self, builder, self._root)
                    exprs = body.function(operation, params, bool(names))
                    result = exprs[0] if len(exprs) == 1 else relax.Tuple(exprs)
                    output = builder.emit_output(result)
                builder.emit_func_output(output)
        except ModelError as error:
            drop_half_built(error)
            raise
        return builder.get()["main"].without_attr("global_symbol")


class _Body:
    """Translator of the body of a function."""

    def __init__(
        self, functions: Functions, builder: relax.BlockBuilder, module: relax.BlockBuilder
    ) -> None:
        self._functions = functions
        self._write = Emitter(builder, module)
        self._scopes: list[dict[str, TranslatedTensor]] = []

    def function(
        self, operation: Operation, params: Sequence[relax.Var], public: bool
    ) -> list[relax.Expr]:
        """Translate a function; return the expressions of its results."""
        block, shardings = operation.regions[0], self._functions.shardings
        values = []
        for argument, param in zip(block.arguments, params):
            expr = param
            if public and shardings is not None:
                expr = self._placed(operation, expr, argument.attributes)
            values.append(self._write.value(expr))
        results = self.run(block, values)
        try:
            full_results = [self._write.full(value) for value in results]
        except IMPORT_ERRORS as error:
            problem = f"its results do not match: {reason(error)}"
            raise self._functions.fault(operation, problem) from error
        if public and shardings is not None:
            notes = operation.attributes.get("res_attrs") or []
            for index, attributes in enumerate(notes):
                full_results[index] = self._placed(operation, full_results[index], attributes)
        return full_results

    def _placed(
        self, operation: Operation, expr: relax.Expr, attributes: dict[str, Any]
    ) -> relax.Expr:
        shardings = self._functions.shardings
        sharding = sharding_of(attributes, f"{self._functions.location}:{operation.line}")
        if sharding is None or shardings is None:
            return expr
        try:
            return shardings.annotated(self._write.builder, expr, sharding)
        except UnsupportedOperation as error:
            raise self._functions.fault(operation, str(error)) from error

    def run(self, block: RegionBlock, values: Sequence[TranslatedTensor]) -> list[TranslatedTensor]:
        """Translate a block with its arguments; return its results."""
        return self._in_scope(block, values, self._scopes)

    def _in_scope(
        self,
        block: RegionBlock,
        values: Sequence[TranslatedTensor],
        scopes: list[dict[str, TranslatedTensor]],
    ) -> list[TranslatedTensor]:
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
        raise ModelError("DIST0370", problem, place=self._functions.location, remedy=remedy)

    def _value(self, operation: Operation, name: str) -> TranslatedTensor:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise self._functions.fault(operation, f"the value {name} is not defined")

    def _operation(
        self, operation: Operation, operands: list[TranslatedTensor]
    ) -> list[TranslatedTensor]:
        title = read_name(operation.location, self._functions.module.locations)
        short = title.rstrip(":").rpartition("/")[2] or operation.name.rpartition(".")[2]
        self._write.hint = identifier(short)[:40]
        try:
            self._check(operation, operands, operation.operand_types, "operand")
            results = self._results(operation, operands)
            self._check(operation, results, operation.result_types, "result")
        except UnsupportedOperation as error:
            raise self._functions.fault(
                operation, f"the importer does not support {error}"
            ) from error
        except IMPORT_ERRORS as error:
            problem = f"its operands do not match: {reason(error)}"
            raise self._functions.fault(operation, problem) from error
        return results

    def _check(
        self,
        operation: Operation,
        values: Sequence[TranslatedTensor],
        types: Sequence[Type],
        label: str,
    ) -> None:
        """Reject values of other types than declared."""
        if len(values) != len(types):
            raise self._functions.fault(operation, f"{len(values)} {label}s of {len(types)} types")
        for value, kind in zip(values, types):
            shape, dtype = typed(kind)
            if (value.shape, value.dtype) != (shape, dtype):
                is_ = f"{value.dtype}{list(value.shape)}"
                raise self._functions.fault(operation, f"an {label} is {is_}, {kind} is written")

    def _results(
        self, operation: Operation, operands: list[TranslatedTensor]
    ) -> list[TranslatedTensor]:
        if operation.name in CALLS:
            return self._called(operation, operands)
        if operation.name in MOVES:
            mesh = self._functions.manual_mesh.of_collective(operation)
            return MOVES[operation.name](HloCall(operation, operands, self._write, self.run), mesh)
        attributes = operation.attributes
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

    def _called(
        self, operation: Operation, operands: list[TranslatedTensor]
    ) -> list[TranslatedTensor]:
        known = read_composite(operation, operands, self._write)
        if known is not None:
            return known
        name = self._functions.callee(operation)
        if self._functions.sizes.is_inlined(name, operands) or operation.name != "func.call":
            return self._in_scope(self._functions.by_name[name].regions[0], operands, [])
        variable = self._functions.variable(operation, name)
        args = [self._write.full(value) for value in operands]
        result = self._write.emit(relax.Call(variable, args))
        if len(operation.result_types) == 1:
            return [self._write.value(result)]
        count = len(operation.result_types)
        return [self._write.value(self._write.emit(result[i])) for i in range(count)]
