# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate functions to Relax, and inline small private ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.attributes import (
    AXIS_ORDERS_ATTR,
    IO_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    VALUE_MARK,
)
from tvm_distir.models.common.quiet import drop_half_built
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.export.port_attributes import PORT
from tvm_distir.models.mlir.attributes import read_name
from tvm_distir.models.mlir.tree import (
    Argument,
    Module,
    Operation,
    RegionBlock,
    Symbol,
    operations_of,
)
from tvm_distir.support import ModelError

from .argument_names import ArgumentNames, Signature
from .converters import BRANCHES, MANUAL, RETURNS
from .function_body import FunctionBody
from .manual import ManualProgram, computed_shardings, is_between_partitions, mesh_of
from .shardings import Sharding, Shardings, sharding_of
from .sizes import MAX_OPERATIONS, Sizes
from .translated_values import cleaned, identifier, typed

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
        self.annotates = annotates
        self._partitions = ""  # the name of the mesh whose devices are the partitions
        self.program: ManualProgram | None = None
        self._shardings = shardings
        replicas = module.attributes.get("mhlo.num_replicas")
        self._replicas = replicas if type(replicas) is int else 1
        operations = (op for op in module.operations if op.name == "func.func")
        self.by_name = {str(op.attributes.get("sym_name")): op for op in operations}
        self.branches = any(op.name in BRANCHES for op in operations_of(module.operations))
        """Whether there may be an ``If``, which a block of dataflow cannot hold."""
        self.sizes = Sizes(self.by_name, self.callee, inline)
        self._open: list[str] = []
        self._written: dict[str, ir.GlobalVar] = {}
        self._root = BlockBuilder()

    @property
    def shardings(self) -> Shardings | None:
        """Return the shardings with which values are annotated, unless each device has its own."""
        return self._shardings if self.annotates and self.program is None else None

    @property
    def public(self) -> list[str]:
        """Return the names of the public functions."""
        return [
            n for n, f in self.by_name.items() if f.attributes.get("sym_visibility") != "private"
        ]

    def written(self, names: ArgumentNames) -> ir.IRModule:
        """Return the module with each public function and its callees."""
        for name in self.public:
            signature = names.of(self.by_name[name])
            self._refuse_replicas(name)
            function = self.translate(name, signature)
            if self.program is not None:
                function = function.with_attr(IO_ATTR, self.program.interface(signature))
            self._root.add_func(function.with_attr("global_symbol", name), name)
        return self._root.get()

    def _refuse_replicas(self, name: str) -> None:
        """Refuse a local program of replicas."""
        operation = self.by_name[name]
        notes = [argument.attributes for argument in operation.regions[0].arguments]
        if any(PORT in each for each in (*notes, *(operation.attributes.get("res_attrs") or []))):
            problem = f"a local program of {self._replicas} replicas"
            raise self.fault(operation, problem, _LOCAL_REMEDY)

    def _start_local(self, operation: Operation) -> list[Sharding] | None:
        """Return the shardings of the arguments of a local program, which is then translated."""
        self.program = None
        manual = self.sizes.manual(str(operation.attributes.get("sym_name")))
        if manual is None:
            return None
        try:
            mesh = mesh_of(manual, self._shardings)
            self._partitions = mesh.name
            self.program = ManualProgram(mesh, self._shardings)
            return [
                self._of_argument(operation, argument) or self.program.replicated(shape)
                for argument in operation.regions[0].arguments
                for shape in [typed(argument.type)[0]]
            ]
        except Unsupported as error:
            raise self.fault(manual, f"the importer does not support {error}") from error

    def _of_argument(self, operation: Operation, argument: Argument) -> Sharding | None:
        """Return the sharding that an argument states, or with which all its readers slice it."""
        stated = self.stated(operation, argument.attributes)
        if stated is not None:
            return stated
        read = list(self._readings(operation.regions[0], argument.name))
        return read[0] if read and all(r == read[0] for r in read) else None

    def stated(self, operation: Operation, attributes: dict[str, Any]) -> Sharding | None:
        """Return the sharding that an argument or a result of a local program states."""
        sharding = sharding_of(attributes, f"{self.location}:{operation.line}")
        if sharding is None or not self.annotates:
            return None
        placement, says = self._shardings.read(sharding)
        return placement if says else None

    def _readings(self, block: RegionBlock, name: str) -> Iterator[Sharding | None]:
        """Return the shardings with which manual computations slice a value; None at other ops."""
        for operation in block.operations:
            for region in operation.regions:
                yield from self._readings(region, name)
            for position, operand in enumerate(operation.operands):
                if operand != name or operation.name in RETURNS:
                    continue
                if operation.name == MANUAL:
                    yield computed_shardings(operation, "in", self._shardings)[position]
                elif operation.name == "func.call":
                    callee = self.by_name[self.callee(operation)].regions[0]
                    yield from self._readings(callee, callee.arguments[position].name)
                else:
                    yield None

    def mesh_of_collective(self, operation: Operation) -> DeviceMesh:
        """Return the mesh along whose axes an operation communicates.

        Raises
        ------
        Unsupported
            There is no local program, or devices are replicas.
        """
        if not self._partitions:
            raise Unsupported("a collective outside of a manual computation")
        if not is_between_partitions(operation):
            problem = "a collective between replicas, where devices are partitions"
            raise Unsupported(problem)
        return self._shardings.used_mesh(self._partitions)

    def fault(self, operation: Operation, problem: str, remedy: str = _REMEDY) -> ModelError:
        """Return an error at an operation (DIST0372)."""
        return ModelError(
            "DIST0372",
            problem,
            location=f"{self.location}:{operation.line} ({operation.name})",
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
        block, builder = operation.regions[0], BlockBuilder()
        locations = self.module.locations
        read = [cleaned(read_name(a.location, locations)) for a in block.arguments]
        others = [title or a.name.strip("%") for title, a in zip(read, block.arguments)]
        titles = names.titles if names else others
        order = names.order if names else list(range(len(titles)))
        params, placed = [], self._start_local(operation) if names else None
        for i, (argument, title) in enumerate(zip(block.arguments, titles)):
            try:
                kind = relax.TensorType(*typed(argument.type))
                if placed and self.program:
                    kind = self.program.local_type(argument.type, placed[i])
                params.append(relax.Var(identifier(title) or "arg", kind))
            except Unsupported as error:
                raise self.fault(operation, f"the argument {title} is {error}") from error
        attrs = {}
        if names:
            attrs = {NUM_INPUT_ATTR: names.data, PARAM_NAMES_ATTR: [titles[i] for i in order]}
        before, self._shardings.orders = self._shardings.orders, {}
        try:
            with builder.function("main", [params[i] for i in order], attrs=attrs):
                with nullcontext() if self.branches else builder.dataflow():
                    body = FunctionBody(self, builder, self._root)
                    exprs = body.function(operation, params, bool(names), placed)
                    result = exprs[0] if len(exprs) == 1 else relax.Tuple(exprs)
                    output = result if self.branches else builder.emit_output(result)
                builder.emit_func_output(output)
        except ModelError as error:
            drop_half_built(error)
            raise
        function = builder.get()["main"].without_attr("global_symbol")
        orders, self._shardings.orders = self._shardings.orders, before
        for number, expr in enumerate(exprs):  # a variable that is the result gets another name
            name = f"{VALUE_MARK}{getattr(expr, 'name', '')}"
            if name in orders:
                orders.setdefault(f"#{number}", orders[name])
        return function.with_attr(AXIS_ORDERS_ATTR, orders) if orders else function
