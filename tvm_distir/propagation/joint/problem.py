# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The labelling problem of one function along all axes of a mesh: a variable per node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...native import INFINITE, Elimination, Scope
from ..solve import PriceTables
from .states import States

End = tuple[States, int]
"""States of a node, operand or result, and the variable that picks one (-1: only one)."""


NO_END: End = (States(-1, ((),)), -1)
"""Of a call of a function, whose ends are those of the function's summary."""


class Spliced(NamedTuple):
    """The summary of a function in the problem of its caller: variables, and ends."""

    variables: range
    params: tuple[End, ...]
    rets: tuple[End, ...]


@dataclass
class JointProblem:
    """Variables (``domains``), tables (``factors``), constant, and the end of every node.

    The calls of functions have theirs in ``spliced``.
    """

    domains: list[int] = field(default_factory=list)
    factors: dict[Scope, int] = field(default_factory=dict)
    constant: int = 0
    feasible: bool = True
    ends: list[End] = field(default_factory=list)
    spliced: dict[int, Spliced] = field(default_factory=dict)

    def variable(self, count: int) -> int:
        """A new variable; -1 where it has one value only."""
        if count == 1:
            return -1
        self.domains.append(count)
        return len(self.domains) - 1

    def put(self, prices: PriceTables, scope: Scope, table: tuple[int, int]) -> None:
        """Put a table, and the minimum taken out of it, over ascending variables."""
        number, low = table
        self.constant += low
        if not scope:
            if prices.array(number) >= INFINITE:
                self.feasible = False
            return
        other = self.factors.get(scope)
        if other is not None:
            number, low = prices.add(other, number)
            self.constant += low
        self.factors[scope] = number

    def put_edge(self, prices: PriceTables, table: tuple[int, int], pair: tuple[int, int]) -> None:
        """A table laid out as the pair of variables is (-1: none), put over sorted ones."""
        number, low = table
        scope = tuple([v for v in pair if v >= 0])
        if len(scope) == 2 and scope[0] >= scope[1]:
            turn = prices.flipped if scope[0] > scope[1] else prices.diagonal
            number, more = turn(number)
            low += more
            scope = tuple(sorted(set(scope)))
        self.put(prices, scope, (number, low))


@dataclass
class Summary:
    """A function with its inner variables minimised out."""

    model: JointProblem
    done: Elimination
    domains: list[int]
    factors: list[tuple[Scope, int]]
    constant: int
    feasible: bool
    params: tuple[End, ...]
    rets: tuple[End, ...]


__all__ = ["NO_END", "End", "JointProblem", "Spliced", "Summary"]
