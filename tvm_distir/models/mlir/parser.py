# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse modules, functions and generic operations; :mod:`.pretty` parses other forms."""

from __future__ import annotations

import re
from typing import Any

from tvm_distir.support import ModelError

from .attributes import NAME, STRING, SYMBOL, VALUE, Attributes, read_symbol
from .pretty import DIALECTS, PrettyOperations
from .scanner import Scanner
from .tree import Argument, Module, Opaque, Operation, RegionBlock, Type

_LABEL = re.compile(r"\^[\w$.\-]+")
_COUNT = re.compile(r":\d+")
_MOST_RESULTS = 1 << 16
_CUSTOM_CALL = re.compile(
    r"(?:%[^=\n]*=\s*)?(?:stablehlo\.custom_call\s+@(?!Sharding\b)([\w$.\-]+)"
    r'|"stablehlo\.custom_call"[^\n]*?\bcall_target_name\s*=\s*"(?!Sharding")([^"]+)")'
)
"""An operation up to the name of its target, except the one that the importer reads."""
_ALIAS = re.compile(r"[#!][\w$.]+(?=\s*=)")


def parse_module(text: str, location: str = "text") -> Module:
    """Parse the text of a module.

    Parameters
    ----------
    text : str
        The text in the form that MLIR prints, generic or pretty, with locations or without.
    location : str
        The name of the text in errors.

    Raises
    ------
    ModelError
        DIST0370 at the line that cannot be read, DIST0371 an operation of a dialect that is none
        of StableHLO's.
    """
    return _Parser(Scanner(text, location)).module()


class _Parser:
    def __init__(self, scan: Scanner) -> None:
        self._scan = scan
        self._attributes = Attributes(scan)
        self._pretty = PrettyOperations(scan, self._attributes, self._region, self._argument)
        self._locations: dict[str, str] = {}

    def module(self) -> Module:
        operations: list[Operation] = []
        attributes: dict[str, Any] = {}
        while not self._scan.at_end:
            if self._alias():
                continue
            operation = self._operation()
            if operation.name == "builtin.module":
                attributes.update(operation.attributes)
                operations += operation.regions[0].operations if operation.regions else []
            else:
                operations.append(operation)
        return Module(operations, attributes, self._locations)

    def _alias(self) -> bool:
        """Parse ``#loc1 = loc(...)`` or another alias."""
        name = self._scan.match(_ALIAS)
        if name is None:
            return False
        self._scan.expect("=")
        value = self._attributes.value()
        if isinstance(value, Opaque) and value.name == "loc":
            self._locations[name.group()] = value.body
        self._attributes.aliases[name.group()] = value
        return True

    def _operation(self) -> Operation:
        """Parse an operation; of a custom call that cannot be read its target is the fault."""
        start = self._scan.skip()
        try:
            return self._any_operation()
        except ModelError as error:
            call = _CUSTOM_CALL.match(self._scan.text, start)
            if call is None or error.code != "DIST0370":
                raise
            raise self._scan.unknown(
                f"stablehlo.custom_call @{call[1] or call[2]}",
                "Write the model with other operations.",
            ) from error

    def _any_operation(self) -> Operation:
        scan = self._scan
        line, results = scan.line, self._results()
        quoted = scan.match(STRING)
        if quoted:
            operation = self._generic(quoted.group(1))
        else:
            operation = self._named(scan.word(NAME, "an operation"), results)
        operation.line, operation.results = line, results
        operation.location = self._location() or operation.location
        if len(results) != len(operation.result_types):
            count = len(operation.result_types)
            raise scan.fault(f"{operation.name} has {count} results, {len(results)} are named")
        return operation

    def _results(self) -> list[str]:
        scan, names = self._scan, []
        while scan.peek("%"):
            name = scan.word(VALUE, "a value")
            count = scan.match(_COUNT)
            parts = scan.integer(count.group()[1:]) if count else 0
            if parts > _MOST_RESULTS:
                raise scan.fault(f"{parts} results")
            names += [f"{name}#{i}" for i in range(parts)] if count else [name]
            if not scan.take(","):
                scan.expect("=")
                break
        return names

    def _named(self, name: str, results: list[str]) -> Operation:
        if name in ("module", "builtin.module"):
            return self._module()
        if name == "func.func":
            return self._function()
        if name in ("return", "call", "func.return", "func.call"):
            name = f"func.{name.rpartition('.')[2]}"
        elif name.partition(".")[0] not in DIALECTS:
            raise self._scan.unknown(name)
        return self._pretty.operation(name, len(results))

    def _module(self) -> Operation:
        scan = self._scan
        scan.match(SYMBOL)
        attributes = self._attributes.optional("attributes", "{")
        return Operation("builtin.module", attributes=attributes, regions=[self._region()])

    def _function(self) -> Operation:
        scan = self._scan
        visibility = next((w for w in ("public", "private") if scan.take(w)), "public")
        name = read_symbol(scan, "the name of a function")
        scan.expect("(")
        arguments = [self._argument() for _ in scan.items(")")]
        types, notes = self._function_results() if scan.take("->") else ([], [])
        attributes = self._attributes.optional("attributes", "{")
        attributes.update(
            sym_name=name,
            sym_visibility=visibility,
            res_attrs=notes,
            function_type=([a.type for a in arguments], types),
        )
        if not scan.peek("{"):
            raise scan.fault(f"the function @{name} has no body")
        body = self._region()
        body.arguments = arguments
        return Operation("func.func", attributes=attributes, regions=[body])

    def _function_results(self) -> tuple[list[Type], list[dict[str, Any]]]:
        scan = self._scan
        if not scan.take("("):
            return [self._attributes.type()], [{}]
        types: list[Type] = []
        notes: list[dict[str, Any]] = []
        for _ in scan.items(")"):
            types.append(self._attributes.type())
            notes.append(self._attributes.optional("{"))
        return types, notes

    def _generic(self, name: str) -> Operation:
        scan, operation = self._scan, Operation(name)
        scan.expect("(")
        operation.operands = [scan.word(VALUE, "a value") for _ in scan.items(")")]
        if scan.take("<"):
            scan.expect("{")
            operation.attributes = self._attributes.dictionary()
            scan.expect(">")
        if scan.take("("):
            while not scan.take(")"):
                operation.regions.append(self._region())
                scan.take(",")
        operation.attributes.update(self._attributes.optional("{"))
        scan.expect(":")
        operation.operand_types, operation.result_types = self._attributes.function_type()
        if len(operation.operand_types) != len(operation.operands):
            raise scan.fault(f"{name} has {len(operation.operands)} operands of other types")
        return self._as_function(operation) if name == "func.func" else operation

    def _as_function(self, operation: Operation) -> Operation:
        """Move the attributes of arguments and results out of the generic form's dictionaries."""
        if not operation.regions:
            raise self._scan.fault("a function has no body")
        arguments = operation.regions[0].arguments
        for argument, notes in zip(arguments, operation.attributes.pop("arg_attrs", [])):
            argument.attributes = notes
        operation.attributes.setdefault("sym_visibility", "public")
        return operation

    def _region(self) -> RegionBlock:
        """Parse a region of a block."""
        scan, block = self._scan, RegionBlock([], [])
        scan.deeper()
        scan.expect("{")
        if scan.match(_LABEL):
            if scan.take("("):
                block.arguments.extend(self._argument() for _ in scan.items(")"))
            scan.expect(":")
        while not scan.take("}"):
            if scan.peek("^"):
                raise scan.fault("a region of several blocks")
            if scan.at_end:
                raise scan.fault("the text ends inside a region")
            block.operations.append(self._operation())
        scan.higher()
        return block

    def _argument(self) -> Argument:
        scan = self._scan
        name = scan.word(VALUE, "an argument")
        scan.expect(":")
        argument = Argument(name, self._attributes.type())
        argument.attributes = self._attributes.optional("{")
        argument.location = self._location()
        return argument

    def _location(self) -> str:
        return self._scan.balanced() if self._scan.take("loc") else ""
