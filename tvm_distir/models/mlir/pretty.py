# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the pretty forms of StableHLO operations into the attributes of the generic form.

Most are operands, words and clauses ``key = value``, then a signature; a few have a form of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .attributes import NAME, VALUE, Attributes, read_symbol
from .scanner import Scanner
from .tree import Argument, Dense, Opaque, Operation, RegionBlock, Symbol, Type

DIALECTS = ("stablehlo", "chlo", "mhlo", "sdy", "func", "builtin", "vhlo")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)")
_CONVOLUTION = re.compile(r"\[[^\]]*\]\s*x\s*\[[^\]]*\]\s*->\s*\[[^\]]*\]")
_RANGE = re.compile(r"(-?\d+)\s*:\s*(-?\d+)(?:\s*:\s*(-?\d+))?")
_NAMES = {
    "broadcast_in_dim": {"dims": "broadcast_dimensions"},
    "transpose": {"dims": "permutation"},
    "reverse": {"dims": "dimensions"},
    "iota": {"dim": "iota_dimension"},
    "concatenate": {"dim": "dimension"},
    "dynamic_slice": {"sizes": "slice_sizes"},
    "pad": {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"},
    "convolution": {"dim_numbers": "dimension_numbers"},
}
"""Attributes by the names of clauses, where these differ."""
_WINDOW = {
    "stride": "window_strides",
    "pad": "padding",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
    "reverse": "window_reversal",
}


@dataclass(frozen=True)
class PrettyOperations:
    """Parser of operations in their pretty forms, after the name.

    It is made of the scanner, the parser of attributes, and what takes a region and an argument of
    a block.
    """

    _scan: Scanner
    _attributes: Attributes
    _region: Callable[[], RegionBlock]
    _argument: Callable[[], Argument]

    def operation(self, name: str, results: int) -> Operation:
        """Parse the rest of an operation with a given number of results."""
        operation = Operation(name)
        short = name.rpartition(".")[2]
        if name == "stablehlo.while":
            return self._while(operation)
        if name == "stablehlo.reduce":
            return self._reduce(operation)
        if name == "sdy.mesh":
            return self._mesh(operation)
        if name == "sdy.manual_computation":
            return self._manual(operation, results)
        while not self._is_over(operation):
            self._clause(operation, short)
        if self._scan.take(":"):
            self._signature(operation, results)
        self._named(operation, short)
        return operation

    def _is_over(self, operation: Operation) -> bool:
        scan = self._scan
        if "value" in operation.attributes:  # a constant's type is the last of it
            return True
        return any(scan.peek(end) for end in (":", "}", "loc(")) or scan.at_end

    def _clause(self, operation: Operation, short: str) -> None:
        """Parse a clause between the name and the signature."""
        scan, notes = self._scan, operation.attributes
        if scan.take(",") or scan.take("(") or scan.take(")"):
            return
        value = scan.match(VALUE)
        if value:
            operation.operands.append(value.group())
        elif scan.take("{"):
            notes.update(self._attributes.dictionary())
        elif scan.peek("@"):
            symbol = Symbol(read_symbol(scan, "a symbol"))
            key = "call_target_name" if short == "custom_call" else "callee"
            notes[key] = symbol.name if short == "custom_call" else symbol
        elif scan.peek("<"):
            notes["sharding"] = Opaque("sdy.sharding", scan.balanced())
        elif short == "slice" and scan.peek("["):
            ranges = _RANGE.findall(scan.balanced())
            notes["start_indices"] = [int(a) for a, _, _ in ranges]
            notes["limit_indices"] = [int(b) for _, b, _ in ranges]
            notes["strides"] = [int(c or 1) for _, _, c in ranges]
        else:
            self._named_clause(operation, short)

    def _named_clause(self, operation: Operation, short: str) -> None:
        scan, notes = self._scan, operation.attributes
        key = scan.match(_KEY)
        if key is None:
            value = self._attributes.value(typed=False)
            if isinstance(value, Dense):
                operation.result_types = [value.type]
                notes["value"] = value
            else:
                notes.setdefault("words", []).append(value)
            return
        name = _NAMES.get(short, {}).get(key.group(1), key.group(1))
        if name == "dimension_numbers":
            body = scan.word(_CONVOLUTION, "the dims of a convolution")
            notes[name] = Opaque("stablehlo.conv", body)
        elif name == "window" and short == "convolution":
            scan.expect("{")
            window = self._attributes.dictionary()
            notes.update({_WINDOW.get(k, k): v for k, v in window.items()})
        elif scan.take("<"):  # the algorithm of dot_general
            notes[name] = self._attributes.dictionary(">")
        else:
            value = self._attributes.value(typed=False)
            notes[name] = (value, self._attributes.value()) if scan.take("x") else value

    def _named(self, operation: Operation, short: str) -> None:
        """Convert words and pairs to the attributes of the generic form."""
        notes = operation.attributes
        words = notes.pop("words", [])
        if short == "compare":
            notes["comparison_direction"] = str(words[0]) if words else ""
        elif short == "composite" and words:
            notes["name"] = words[0]
        elif short == "dot_general":
            pairs = (("batching", "batching_dims"), ("contracting", "contracting_dims"))
            numbers = {}
            for title, key in pairs:
                left, right = notes.pop(key, ([], []))
                numbers[f"lhs_{title}_dimensions"] = left
                numbers[f"rhs_{title}_dimensions"] = right
            notes["dot_dimension_numbers"] = numbers

    def _signature(self, operation: Operation, results: int) -> None:
        """Parse the types of operands and results, or a type for all."""
        scan, operands = self._scan, len(operation.operands)
        if scan.peek("("):
            operation.operand_types, operation.result_types = self._attributes.function_type()
            return
        types = [self._attributes.type()]
        while scan.take(","):
            types.append(self._attributes.type())
        if scan.take("->"):
            operation.operand_types, operation.result_types = types, self._attributes.types()
        elif operation.name == "stablehlo.select" and len(types) == 2:
            operation.operand_types = [types[0], types[1], types[1]]
            operation.result_types = [types[1]]
        else:
            operation.operand_types = types * operands if len(types) == 1 else types
            operation.result_types = types * results if len(types) == 1 else types[:results]
        if len(operation.operand_types) != operands:
            raise scan.fault(f"{operation.name} has {operands} operands of other types")

    def _while(self, operation: Operation) -> Operation:
        """Parse ``while(%a = %x, ...) : types cond {...} do {...}``."""
        scan, names = self._scan, []
        scan.expect("(")
        for _ in scan.items(")"):
            names.append(scan.word(VALUE, "a value"))
            scan.expect("=")
            operation.operands.append(scan.word(VALUE, "a value"))
        types: list[Type] = []
        while names and scan.take("," if types else ":"):
            types.append(self._attributes.type())
        if len(types) != len(names):
            raise scan.fault(f"a loop over {len(names)} values has {len(types)} types")
        operation.attributes = self._attributes.optional("attributes", "{")
        operation.operand_types, operation.result_types = types, types
        for word in ("cond", "do"):
            scan.expect(word)
            block = self._region()
            block.arguments = [Argument(*pair) for pair in zip(names, types)]
            operation.regions.append(block)
        return operation

    def _reduce(self, operation: Operation) -> Operation:
        """Parse ``reduce(%x init: %c), ... applies OP across dimensions = [...]`` or a region."""
        scan, starts = self._scan, []
        while scan.take("("):
            operation.operands.append(scan.word(VALUE, "a value"))
            scan.expect("init")
            scan.expect(":")
            starts.append(scan.word(VALUE, "a value"))
            scan.expect(")")
            scan.take(",")
        operation.operands += starts
        applied = scan.word(NAME, "an operation") if scan.take("applies") else ""
        scan.expect("across")
        scan.expect("dimensions")
        scan.expect("=")
        operation.attributes["dimensions"] = self._attributes.value()
        operation.attributes.update(self._attributes.optional("{"))
        scan.expect(":")
        self._signature(operation, len(starts))
        operation.regions = [
            self._applied(applied, operation) if applied else self._reducer(len(starts))
        ]
        return operation

    def _applied(self, name: str, operation: Operation) -> RegionBlock:
        kind = operation.operand_types[-1]
        names = ["%lhs", "%rhs"]
        step = Operation(name, names, [kind, kind], ["%both"], [kind])
        end = Operation("stablehlo.return", ["%both"], [kind])
        return RegionBlock([Argument(n, kind) for n in names], [step, end])

    def _reducer(self, count: int) -> RegionBlock:
        """Parse ``reducer(%a: t, %b: t) (%c: t, %d: t) {...}`` with a pair per operand."""
        scan = self._scan
        scan.expect("reducer")
        pairs = []
        while scan.take("("):
            first = self._argument()
            scan.expect(",")
            pairs.append((first, self._argument()))
            scan.expect(")")
        if len(pairs) != count:
            raise scan.fault(f"a reducer of {len(pairs)} operands, {count} are given")
        block = self._region()
        block.arguments = [a for a, _ in pairs] + [b for _, b in pairs]
        return block

    def _manual(self, operation: Operation, results: int) -> Operation:
        """Parse ``(%x) in_shardings=[<>] out_shardings=[<>] manual_axes={"a"} (%y: t) {...}``."""
        scan = self._scan
        scan.expect("(")
        operation.operands = [scan.word(VALUE, "a value") for _ in scan.items(")")]
        for side in ("in_shardings", "out_shardings"):
            scan.expect(side)
            scan.expect("=")
            operation.attributes[side] = Opaque("sdy.sharding_per_value", f"[{scan.balanced()}]")
        scan.expect("manual_axes")
        scan.expect("=")
        operation.attributes["manual_axes"] = Opaque("sdy", scan.balanced())
        scan.expect("(")
        arguments = [self._argument() for _ in scan.items(")")]
        block = self._region()
        block.arguments = arguments
        operation.regions = [block]
        scan.expect(":")
        self._signature(operation, results)
        return operation

    def _mesh(self, operation: Operation) -> Operation:
        scan = self._scan
        operation.attributes["sym_name"] = read_symbol(scan, "the name of a mesh")
        scan.expect("=")
        operation.attributes["mesh"] = Opaque("sdy.mesh", scan.balanced())
        operation.attributes.update(self._attributes.optional("{"))
        return operation
