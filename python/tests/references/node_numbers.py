# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Number equal values of the modules of a process, in plain Python (``passes/ffi/numbers.h``)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax

from tvm_distir.core.ir.handles import handle

MOST_NODES = 1 << 14
"""Nodes whose numbers are cached; with more, the cache of nodes is emptied."""

MOST_VALUES = 1 << 16
"""Distinct values and keys that are remembered; with more, all of them are forgotten."""

_TUPLE_TYPE, _PLACED_TYPE = -2, -3


class EqualityNumbers:
    """Numbers that structurally equal values share; no number is given twice."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._by_node: dict[int, tuple[Any, int]] = {}  # the node is kept alive
        self._by_hash: dict[int, list[tuple[Any, int]]] = {}
        self._by_key: dict[Sequence[int], int] = {}
        self._next = 0

    def trim(self) -> None:
        """Forget nodes, or everything, where much has been collected; not within a sweep."""
        is_full = len(self._by_hash) + len(self._by_key) > MOST_VALUES
        if is_full or len(self._by_node) > MOST_NODES:
            self._by_node.clear()
        if is_full:
            self._by_hash.clear()
            self._by_key.clear()

    def fresh(self) -> int:
        """Return a number that has not been given before."""
        self._next += 1
        return self._next - 1

    def of_key(self, key: Sequence[int]) -> int:
        """Return the number of a sequence of integers."""
        key = tuple(key)
        if key not in self._by_key:
            self._by_key[key] = self.fresh()
        return self._by_key[key]

    def of(self, value: Any) -> int:
        """Return the number that a value shares with structurally equal values."""
        if not isinstance(value, tvm_ffi.Object):
            return self._compared(value)
        key = handle(value)
        if key not in self._by_node:
            self._by_node[key] = value, self._of_node(value)
        return self._by_node[key][1]

    def _of_node(self, value: Any) -> int:
        """Return the number of a node; types are distinguished by their parts."""
        if type(value) is relax.TupleType:
            return self.of_key([_TUPLE_TYPE, *map(self.of, value.fields)])
        if type(value) is relax.distributed.DTensorType:
            parts = value.tensor_ty, value.device_mesh, value.placement
            return self.of_key([_PLACED_TYPE, *map(self.of, parts)])
        return self._compared(value)

    def _compared(self, value: Any) -> int:
        bucket = self._by_hash.setdefault(tvm_ffi.structural_hash(value), [])
        for known, number in bucket:
            if tvm_ffi.structural_equal(known, value):
                return number
        bucket.append((value, self.fresh()))
        return bucket[-1][1]


NUMBERS = EqualityNumbers()
"""The numbers of this process."""
