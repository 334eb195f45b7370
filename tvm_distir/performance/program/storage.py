# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Model the allocations of TVM's storage plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tvm_distir.support import Check, Count, InvalidValue, Steps, Text, one_of, unrolled

from .writing import plain

TAKE, FREE, CALL, BRANCH, RETURN = "take", "free", "call", "branch", "return"
_COUNTS = {TAKE: (1, 1), FREE: (1, None), CALL: (None, 1), BRANCH: (None, 2), RETURN: (None, None)}
"""The numbers of blocks and names of a step of each kind; None: any number."""
_AGAIN = "Plan the storage again."


class StorageStep(NamedTuple):
    """Memory operation of a function.

    Attributes
    ----------
    kind : str
        The kind of operation: ``take`` and ``free`` of a block; ``call`` of a function, or
        ``branch``: a call of either of two, whose returned blocks are then the caller's;
        ``return``, before the remaining blocks are freed.
    blocks : tuple of int
        The numbers of blocks in the function: the block that is taken or freed; those that a call
        returns.
    bytes : int
        The bytes of a block that is taken.
    names : tuple of str
        The name of the value in the block, or of the functions that may be called.
    """

    kind: Annotated[str, one_of(_COUNTS)]
    blocks: tuple[Count, ...]
    bytes: Count = 0
    names: tuple[Text, ...] = ()


def _check_step(step: StorageStep) -> StorageStep:
    blocks, names = _COUNTS[step.kind]
    if blocks not in (None, len(step.blocks)) or names not in (None, len(step.names)):
        problem = f"a {step.kind} has {len(step.blocks)} blocks and {len(step.names)} names"
        raise InvalidValue(problem, _AGAIN)
    return step


@dataclass(frozen=True)
class StorageFunction:
    """Blocks of a function in the order in which they are taken and freed.

    Attributes
    ----------
    steps : tuple of StorageStep
    results : tuple of int
        Numbers of the blocks that it returns, each once.
    """

    steps: tuple[Annotated[StorageStep, Check(_check_step)], ...]
    results: tuple[Count, ...]


def _check_function(function: StorageFunction) -> StorageFunction:
    """Refuse blocks that are released or returned before they are allocated."""
    allocated: set[int] = set()
    for step in function.steps:
        if step.kind in (FREE, RETURN) and not allocated.issuperset(step.blocks):
            problem = f"a block is released that is not allocated: {list(step.blocks)}"
            raise InvalidValue(problem, _AGAIN)
        allocated.update(step.blocks)
    if not allocated.issuperset(function.results):
        raise InvalidValue("a result is not allocated", _AGAIN)
    return function


@dataclass(frozen=True)
class Storage:
    """The storage plan of a program.

    Attributes
    ----------
    functions : mapping of str to StorageFunction
    entries : tuple of str
        The plan of each entry of the program, or of each rank of a pipelined step.
    """

    functions: Mapping[str, Annotated[StorageFunction, Check(_check_function)]]
    entries: tuple[Text, ...]

    def walk(self, function: str) -> StorageWalk:
        """Walk a function and its callees; of a branch, walk the side that needs more."""
        walk = StorageWalk(self.functions)
        unrolled(walk.run(function))
        return walk

    def held(self, function: str, top: int) -> list[tuple[str, str, int]]:
        """Return the blocks live after so many operations: function, value, bytes."""
        walk = StorageWalk(self.functions, top)
        unrolled(walk.run(function))
        return walk.held

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data."""
        return {"entries": list(self.entries), "functions": plain(self.functions)}


class StorageWalk:
    """A function as TVM's machine runs it.

    The machine remembers what the last function returned, until another returns: a block
    that nobody else holds lives as long.

    Attributes
    ----------
    sizes : list of int
        The sizes of blocks as they are taken, negative as they are freed.
    live, peak : int
        Bytes.
    top : int
        The number of sizes when the peak was reached.
    held : list of (str, str, int)
        Blocks when there were ``stop`` sizes: the function that took each, its value, and bytes.
    """

    def __init__(
        self,
        functions: Mapping[str, StorageFunction],
        stop: int = -1,
        needs: dict[str, int] | None = None,
    ) -> None:
        self.functions, self.stop = functions, stop
        self.sizes: list[int] = []
        self.live = self.peak = self.top = self._count = 0
        self.held: list[tuple[str, str, int]] = []
        self._blocks: dict[int, tuple[str, str, int]] = {}
        self._returned: set[int] = set()
        self._left: set[int] = set()
        self._needs = {} if needs is None else needs  # the peak of each side of a branch

    def run(self, name: str) -> Steps[list[int]]:
        """Run a function, and return the blocks that it returns."""
        fn, addresses = self.functions[name], dict[int, int]()
        for step in fn.steps:
            if step.kind == TAKE:
                addresses[step.blocks[0]] = self._take(name, step)
            elif step.kind == FREE:
                self._free(addresses[step.blocks[0]])
            elif step.kind == RETURN:
                before, self._returned = self._returned, {addresses[b] for b in step.blocks}
                for block in sorted((before - self._returned) & self._left):
                    self._left.discard(block)
                    self._free(block)
            else:
                callee = step.names[0]
                if step.kind == BRANCH:
                    for side in step.names:
                        if side not in self._needs:
                            walk = StorageWalk(self.functions, needs=self._needs)
                            yield walk.run(side)
                            self._needs[side] = walk.peak
                    callee = max(step.names, key=self._needs.__getitem__)
                addresses.update(zip(step.blocks, (yield self.run(callee))))
        return [addresses[block] for block in fn.results]

    def _take(self, function: str, step: StorageStep) -> int:
        self._count += 1
        self._blocks[self._count] = (function, step.names[0], step.bytes)
        self.sizes.append(step.bytes)
        self.live += step.bytes
        if self.live > self.peak:
            self.peak, self.top = self.live, len(self.sizes)
        if len(self.sizes) == self.stop:
            self.held = list(self._blocks.values())
        return self._count

    def _free(self, block: int) -> None:
        if block in self._returned:
            self._left.add(block)
            return
        _, _, size = self._blocks.pop(block)
        self.sizes.append(-size)
        self.live -= size
