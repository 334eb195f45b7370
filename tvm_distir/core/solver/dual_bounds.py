# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bound sums of pairwise cost tables from below, and find assignments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .problem import Array, Problem, ints

PAIR = 2


class Dual:
    """Increasing lower bounds of a problem, and assignments, by tree-reweighted message passing.

    V. Kolmogorov, Convergent Tree-Reweighted Message Passing for Energy Minimization, IEEE TPAMI
    28(10), 2006; in integers, so that every bound holds exactly (``passes/solver/dual.h``).
    """

    def __init__(self, functions: Sequence[Any], problem: Problem) -> None:
        (
            self._round, self._prune, self._excess, self._labels, self._offer, self._resume,
            self._messages,
        ) = functions  # fmt: skip
        self._sizes = list(problem.domains)
        pairs = [scope for scope in problem.factors if len(scope) == PAIR]
        self._count = 1 + sum(problem.domains[v] for scope in pairs for v in scope)

    def round(self) -> tuple[int, int]:
        """Run both passes; return the lower bound and the cost of the best assignment.

        The cost is :data:`.INFINITE` until there is an assignment. Once the bound exceeds the
        allowed cost, no assignment exists.
        """
        bound, best = self._round()
        return bound, best

    def prune(self) -> list[list[int]]:
        """Drop the states of no optimal assignment; return the remaining states per variable."""
        flat = list(self._prune())
        states, at = [], 0
        for _ in self._sizes:
            states.append(flat[at + 1 : at + 1 + flat[at]])
            at += 1 + flat[at]
        self._sizes = [len(left) for left in states]
        return states

    def excess(self) -> list[list[int]]:
        """Return per variable the reduced cost of each remaining state."""
        flat = list(self._excess())
        ends = list(itertools.accumulate(self._sizes))
        return [flat[end - size : end] for end, size in zip(ends, self._sizes, strict=True)]

    def labels(self) -> list[int]:
        """Return the best assignment so far, in the states of the problem."""
        return list(self._labels())

    def offer(self, cost: int, labels: Sequence[int]) -> None:
        """Adopt an external assignment if it costs less than the best so far."""
        self._offer(cost, ints(labels))

    def messages(self) -> Array:
        """Return the messages between variables, for :meth:`resume`."""
        messages = np.zeros(self._count, dtype=np.int64)
        self._messages(messages)
        return messages

    def resume(self, messages: Array) -> None:
        """Start from the messages of a problem of the same scopes and domains.

        Any messages give bounds that hold; those of a problem with similar tables good ones.
        """
        self._resume(messages)
