# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Walk back from a wrong output, and make the changes that may repair it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tvm_distir.core.ir import axis_groups, groups_by_axes
from tvm_distir.core.ir.operators import call_axes

from .alignment import BLOCK, State
from .comparison import Patch, RankComparison, RankFamily, WrongOutput
from .repairs import DELETE, PERMUTE, REDUCE, REGROUP, SCALE, ValueChange, group_size

Repairs = list[tuple[str, Patch]]


@dataclass(frozen=True)
class Finding:
    """A value that may be the first wrong one.

    Attributes
    ----------
    family : RankFamily
    value : str
    text : str
        What is wrong.
    repairs : list of (str, Patch)
        What may repair it, in words and as changes, the likeliest first.
    together : bool
        Whether it may be repaired together with other findings.
    """

    family: RankFamily
    value: str
    text: str
    repairs: Repairs
    together: bool = True


class OutputWalk:
    """Values before a wrong output, and changes of them."""

    def __init__(
        self, compared: RankComparison, output: WrongOutput, every: Sequence[WrongOutput]
    ) -> None:
        self.compared, self.every = compared, every
        self.name, self.at_output = output.name, output.state
        self.misplaced = output.misplaced
        ranks = output.family.ranks
        self.family = next(f for f in compared.families if ranks[0] in f.ranks)
        self.value = self.family.output(output.name)
        at = [compared.at[rank] for rank in ranks]
        self.axes = [a for a in compared.axes if len({c[a] for c in at}) > 1]

    def state(self, name: str) -> State | None:
        """Return what a value stands for."""
        return self.compared.state(self.family, name)

    def known_operands(self, name: str) -> list[tuple[str, State]]:
        """Return the operands of a value that stand for one of the reference."""
        states = [(n, self.state(n)) for n in self.family.operands.get(name, [])]
        return [(n, s) for n, s in states if s is not None]

    def known_before(self, name: str) -> list[tuple[str, State]]:
        """Return the operands that are known, or what is known before buffers of several."""
        known = self.known_operands(name)
        if known or name not in self.family.values:
            return known
        return [k for n in self.family.operands[name] for k in self.known_before(n)]

    def finding(self, value: str, text: str, repairs: Repairs) -> Finding:
        """Return a finding in this family."""
        return Finding(self.family, value, text, repairs)

    def patch(self, name: str, change: ValueChange) -> Patch:
        """Return a change of a value of this family."""
        return {(self.family.number, name): change}

    def subsets(self) -> Iterator[tuple[str, ...]]:
        """Yield one or two of the axes."""
        for count in (1, 2):
            yield from itertools.combinations(self.axes, count)

    def numbers(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the positions of axes in the mesh."""
        names = list(self.compared.axes)
        return tuple(names.index(axis) for axis in axes)

    def size(self, axes: Sequence[str]) -> int:
        """Return the number of ranks along axes."""
        return math.prod(self.compared.axes[axis] for axis in axes)

    def reductions(self, name: str) -> Repairs:
        """Return sums of a value along axes."""
        return [
            (
                f"sum {name} over {'+'.join(c)}",
                self.patch(name, ValueChange(REDUCE, self.numbers(c))),
            )
            for c in self.subsets()
        ]

    def removals(self, name: str) -> Repairs:
        """Return the removal of a value if it is a sum over ranks."""
        if self.family.operation(name) != "dist.all_reduce":
            return []
        return [(f"remove {name}", self.patch(name, ValueChange(DELETE)))]

    def multiplications(self, name: str, factor: float) -> Repairs:
        """Return the multiplication of a value by a factor unless it is an input."""
        if name not in self.family.values:
            return []
        change = ValueChange(SCALE, factor=factor)
        return [(f"multiply {name} by {factor:g}", self.patch(name, change))]

    def regroupings(self, name: str) -> Repairs:
        """Return a collective along other axes, with the factor of an average if sizes differ."""
        if self.family.operation(name) == "dist.recv":
            return []
        before = group_size(self.family.values[name])
        listed: Repairs = []
        for axes in self.subsets():
            size, over = self.size(axes), "+".join(axes)
            kind = self.family.operation(name)
            if kind != "dist.all_reduce" and size != before:
                continue
            if kind == f"dist.{PERMUTE}" and len(axes) > 1:
                continue
            change = ValueChange(REGROUP, self.numbers(axes))
            listed.append((f"communicate over {over} in {name}", self.patch(name, change)))
            if size != before:
                factor = before / size
                change = ValueChange(REGROUP, self.numbers(axes), factor=factor)
                text = f"communicate over {over} in {name}, times {factor:g}"
                listed.append((text, self.patch(name, change)))
        return listed

    def last_collective(self) -> str | None:
        """Return the last collective before the output along values that are known."""
        name: str | None = self.value
        while name is not None and not self.family.is_collective(name):
            known = [n for n, _ in self.known_operands(name)] or self.family.operands.get(name, [])
            name = next((n for n in known if n in self.family.values), None)
        return name

    def collective_axes(self, name: str) -> list[str]:
        """Return the axes of the mesh along which a collective communicates, if it does."""
        call = self.family.values[name]
        mine = set(map(tuple, axis_groups(call.attrs["device_mesh"], call_axes(call))))
        names = list(self.compared.axes)
        for axes, groups in groups_by_axes(self.compared.module.mesh):
            if mine <= set(map(tuple, groups)):
                return [names[a] for a in axes]
        return []

    def everywhere(self, name: str, change: ValueChange) -> Patch:
        """Return a change of an output in all families that have it."""
        families = [f for f in self.compared.families if name in f.codes[0].outputs]
        return {(f.number, f.output(name)): change for f in families}

    def origin(self, axis: str) -> str:
        """Return the first value before the output that is partial along an axis."""
        name = self.value
        while True:
            before = [n for n, s in self.known_operands(name) if axis in s.partial]
            if not before:
                return name
            name = before[0]

    def before(self, goes_on: Callable[[str], bool]) -> list[str]:
        """Return the output and the values before it, in order, as far as a condition holds."""
        seen, pending, listed = set[str](), [self.value], list[str]()
        while pending:
            name = pending.pop()
            if name in seen or name not in self.family.values:
                continue
            seen.add(name)
            if goes_on(name):
                listed.append(name)
                pending += self.family.operands[name]
        return sorted(listed, key=lambda n: self.family.order[n])

    def rank(self, name: str) -> int:
        """Return how likely a value is the origin, 0 for the likeliest."""
        if self.family.is_collective(name):
            return 0
        known = self.known_operands(name)
        joins = self.family.operation(name) == "concat"  # which passes parts of sums on
        return 1 if not joins and any(s.partial for _, s in known) else 2 if known else 3

    def is_block(self, name: str) -> bool:
        """Return whether ranks hold blocks of a value, in any order."""
        state = self.state(name)
        return state is not None and state.reference.startswith(BLOCK)

    def is_local_mean(self, state: State) -> bool:
        """Return whether a factor is the number of ranks that a partial value is averaged over."""
        return bool(state.partial) and state.scale == self.size(state.partial)
