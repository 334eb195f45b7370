# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the size of functions, and how much has been emitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm_distir.models.mlir.tree import Operation, RegionBlock

from .composites import is_known
from .converters import BRANCHES, CALLS, MANUAL
from .translated_values import Tensors

_LARGE = 1 << 20
MAX_OPERATIONS = 1 << 17
"""The maximum number of operations of a module where its loops, and calls of small functions, are
written out: a deep network has some 10,000."""


class Sizes:
    """Sizes of the functions of a module.

    Parameters
    ----------
    functions : mapping of str to Operation
        The functions.
    callee : callable
        Name of the function that an operation calls.
    inline : int
        Private functions of at most so many operations are written into their callers.
    """

    def __init__(
        self, functions: Mapping[str, Operation], callee: Callable[[Operation], str], inline: int
    ) -> None:
        self._functions, self._callee, self._inline = functions, callee, inline
        self._sizes: dict[str, int] = {}
        self._manual: dict[str, Operation | None] = {}
        self._written = 0

    def count(self) -> bool:
        """Count a translated operation; return False beyond the maximum."""
        self._written += 1
        return self._written <= MAX_OPERATIONS

    def size(self, name: str) -> int:
        """Return the number of operations of a function and its callees, large for regions."""
        if name not in self._sizes:
            self._sizes[name] = _LARGE
            body = self._functions[name].regions[0].operations
            self._sizes[name] = sum(self._size_of(op) for op in body)
        return self._sizes[name]

    def _size_of(self, operation: Operation) -> int:
        if is_known(operation):
            return 1
        if operation.name in CALLS:
            return self.size(self._callee(operation))
        if operation.name in ("stablehlo.while", *BRANCHES):
            return _LARGE
        return 1

    def manual(self, name: str) -> Operation | None:
        """Return the first manual computation in a function and its callees."""
        if name not in self._manual:
            seen = {name: self._functions[name].regions[0]}
            self._manual[name] = self._first_manual(seen)
            if self._manual[name] is None:
                self._manual.update(dict.fromkeys(seen))
        return self._manual[name]

    def _first_manual(self, seen: dict[str, RegionBlock]) -> Operation | None:
        """Return that of the function in ``seen``, to which its callees are added."""
        pending = [op for body in seen.values() for op in reversed(body.operations)]
        while pending:
            operation = pending.pop()
            if operation.name == MANUAL:
                return operation
            inner = [op for region in operation.regions for op in region.operations]
            if operation.name == "func.call" and (callee := self._callee(operation)) not in seen:
                seen[callee] = self._functions[callee].regions[0]
                inner += seen[callee].operations
            pending += reversed(inner)
        return None

    def is_inlined(self, name: str, operands: Tensors) -> bool:
        """Return whether a call is inlined.

        It is small, or has numbers that loops count with, or manual computations.
        """
        counts = any(v.integer is not None for v in operands)
        return self.size(name) <= self._inline or counts or self.manual(name) is not None
