# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the pretty forms of MLIR's dialect ``shard`` (formerly ``mesh``)."""

from __future__ import annotations

import re
from typing import Any

from .attributes import NAME, VALUE, Attributes, read_symbol
from .scanner import Scanner
from .tree import Operation, OtherType, Symbol, Type

AROUND = ("arith.index_cast", "arith.constant", "tensor.from_elements")
"""Operations of other dialects by which the index of a process becomes a tensor."""
SHARDING = OtherType("!shard.sharding")
_DIMS = re.compile(r"(?:\d+|\?)(?:x(?:\d+|\?))*")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)")
_INDEX = re.compile(r"-?\d+|\?|%[\w$.\-]+(?:#\d+)?")
_PRODUCERS = ("sharding", "process_multi_index", "process_linear_index", "grid_shape")
_RENAMED = {
    "halo_sizes": "static_halo_sizes",
    "sharded_dims_offsets": "static_sharded_dims_offsets",
    "mesh": "grid",
    "mesh_axes": "grid_axes",
}
_OLD = {"mesh.mesh": "shard.grid", "mesh.mesh_shape": "shard.grid_shape"}


def is_shard(name: str) -> bool:
    """Return whether an operation is of the dialect."""
    return name.startswith(("shard.", "mesh.")) or name in AROUND


def renamed(operation: Operation) -> Operation:
    """Return an operation with the current names of the dialect."""
    if operation.name.startswith("mesh."):
        operation.name = _OLD.get(operation.name, "shard." + operation.name.removeprefix("mesh."))
        operation.attributes = {_RENAMED.get(k, k): v for k, v in operation.attributes.items()}
        for types in (operation.operand_types, operation.result_types):
            types[:] = [SHARDING if str(t) == "!mesh.sharding" else t for t in types]
    return operation


class ShardForms:
    """Parser of operations of the dialect, after the name.

    Parameters
    ----------
    scan : Scanner
    attributes : Attributes
    """

    def __init__(self, scan: Scanner, attributes: Attributes) -> None:
        self._scan = scan
        self._attributes = attributes

    def operation(self, name: str) -> Operation:
        """Parse the rest of an operation."""
        operation, short = Operation(name), name.rpartition(".")[2]
        if short in ("grid", "mesh"):
            return self._grid(operation)
        while not self._scan.take(":"):
            self._clause(operation)
        self._signature(operation, short)
        return operation

    def _grid(self, operation: Operation) -> Operation:
        scan = self._scan
        operation.attributes["sym_name"] = read_symbol(scan, "the name of a grid")
        for word in ("(", "shape", "="):
            scan.expect(word)
        dims = scan.word(_DIMS, "the sizes of a grid").split("x")
        operation.attributes["shape"] = [-1 if n == "?" else scan.integer(n) for n in dims]
        scan.expect(")")
        if scan.take("{"):
            operation.attributes.update(self._attributes.dictionary())
        return operation

    def _clause(self, operation: Operation) -> None:
        scan, notes = self._scan, operation.attributes
        value = scan.match(VALUE)
        key = None if value else scan.match(_KEY)
        if value:
            operation.operands.append(value.group())
            scan.take(",")
        elif key:
            name = _RENAMED.get(key.group(1), key.group(1))
            notes[name] = self._clause_value(operation)
        elif scan.peek("@"):
            notes["grid"] = Symbol(read_symbol(scan, "a symbol"))
            if scan.peek("["):  # a process: what its place is, follows
                notes["device"] = self._indices(operation)
        elif scan.take("{"):
            notes.update(self._attributes.dictionary())
        elif operation.name == "arith.constant":
            notes["value"] = self._attributes.value(typed=False)
        else:
            word = scan.word(NAME, "a clause")
            if word not in ("on", "to"):
                notes[word] = True

    def _clause_value(self, operation: Operation) -> Any:
        scan = self._scan
        if scan.peek("["):
            return self._indices(operation)
        if scan.peek("<"):
            return scan.balanced().strip()
        value = scan.match(VALUE)
        if value:
            operation.operands.append(value.group())
            return value.group()
        return self._attributes.value(typed=False)

    def _indices(self, operation: Operation) -> list[Any]:
        """Parse a nested list of numbers, or of values, which are operands."""
        scan = self._scan
        items: list[Any] = []
        scan.deeper()
        scan.expect("[")
        while not scan.take("]"):
            if scan.peek("["):
                items.append(self._indices(operation))
            else:
                word = scan.word(_INDEX, "an index")
                if word.startswith("%"):
                    operation.operands.append(word)
                items.append(scan.integer(word) if word.lstrip("-").isdecimal() else word)
            if not scan.peek("]"):
                scan.expect(",")
        scan.higher()
        return items

    def _signature(self, operation: Operation, short: str) -> None:
        """Parse the types of operands and results, or of those that can differ."""
        scan, attributes = self._scan, self._attributes
        if scan.peek("("):
            operation.operand_types, operation.result_types = attributes.function_type()
            return
        types: list[Type] = [attributes.type()]
        while scan.take(","):
            types.append(attributes.type())
        if scan.take("->") or scan.take("to"):
            operation.operand_types, operation.result_types = types, attributes.types()
        elif short == "shard":
            operation.operand_types, operation.result_types = [*types, SHARDING], types
        elif short == "from_elements" and getattr(types[0], "element", None):
            element = OtherType(str(getattr(types[0], "element", "")))
            operation.operand_types = [element] * len(operation.operands)
            operation.result_types = types
        elif short in _PRODUCERS or operation.name == "arith.constant":
            operation.result_types = types
            operation.operand_types = [OtherType("i64")] * len(operation.operands)
        else:
            operation.operand_types, operation.result_types = types * len(operation.operands), types
        if len(operation.operand_types) != len(operation.operands):
            count = len(operation.operands)
            raise scan.fault(f"{operation.name} has {count} operands of other types")
