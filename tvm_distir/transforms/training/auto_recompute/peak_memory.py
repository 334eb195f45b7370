# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the peak memory of functions, following calls.

A buffer is live from the call that makes it to the last call that reads it, which may be in a
callee; views keep their buffers alive, and results of a function are live until its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tvm import ir
from tvm.relax import Var

from tvm_distir.core.analysis import last_reads, live_bytes
from tvm_distir.transforms.training.autodiff.tape import ForwardBackward
from tvm_distir.transforms.training.recompute.choice import Auto
from tvm_distir.transforms.training.recompute.pairs import Differentiator

from .buffers import Buffer, BufferTasks, CallTask, Tree, leaves, read_body

Flags = tuple[bool, ...]


class PeakMemory:
    """Peak memory of the functions of a step without recomputation.

    Parameters
    ----------
    pairs : Differentiator
        Knows the functions.
    auto : Auto
        Parts that buffers are cut into.
    block_bytes : int
        Sizes are multiples of it.
    """

    def __init__(self, pairs: Differentiator, auto: Auto, block_bytes: int = 1) -> None:
        self.pairs, self.auto, self.block_bytes = pairs, auto, block_bytes
        self.gradients: dict[str, Flags] = {}
        """The results of each function that are gradients of weights, where that is known."""
        self._bodies: dict[tuple[str, Flags], BufferTasks] = {}
        self._peaks: dict[tuple[str, Flags, Flags], int] = {}

    def size(self, buffer: Buffer) -> int:
        """Return the bytes of a buffer on a single device."""
        parts = self.auto.weights if buffer.weight else self.auto.activations
        return self._rounded(-(-buffer.size_bytes // parts))

    def _rounded(self, size_bytes: int) -> int:
        return -(-size_bytes // self.block_bytes) * self.block_bytes

    def sizes(self, buffers: Iterable[Buffer]) -> int:
        """Return the total bytes of some buffers."""
        return sum(map(self.size, buffers))

    @property
    def constant_bytes(self) -> int:
        """Return the bytes of the constants of all functions, replicated on each device."""
        bodies = {name: body for (name, _), body in self._bodies.items()}
        return sum(self._rounded(size) for body in bodies.values() for size in body.constants)

    def flag(self, pair: ForwardBackward, args: Sequence[Var], weights: Collection[str]) -> None:
        """Mark the results of a backward pass that are gradients of weights."""
        operands = [args[i] for i in pair.given]
        flags = tuple(isinstance(arg, ir.Var) and str(arg.name) in weights for arg in operands)
        self.gradients[str(pair.backward.name_hint)] = flags

    def read(self, name: str, weights: Flags) -> BufferTasks:
        """Read a function, given which leaves of its parameters are weights."""
        key = (name, weights)
        if key not in self._bodies:
            body = read_body(
                self.pairs.functions.of[name], weights, self.pairs.times.kernels, self.results
            )
            parts = body.result if isinstance(body.result, tuple) else ()
            for flag, part in zip(self.gradients.get(name, ()), parts, strict=False):
                for buffer in leaves(part):
                    buffer.weight |= flag
            self._bodies[key] = body
        return self._bodies[key]

    def results(self, name: str, args: Sequence[Buffer]) -> tuple[Tree, list[Buffer]]:
        """Return the results of a call of a function, and which of them it allocates."""
        body = self.read(name, tuple(arg.weight for arg in args))
        known = dict(zip(body.params, args, strict=True))
        buffers: list[Buffer] = []

        def shown(tree: Tree) -> Tree:
            if isinstance(tree, tuple):
                return tuple(shown(part) for part in tree)
            if tree not in known:
                known[tree] = Buffer(tree.size_bytes, tree.weight)
                buffers.append(known[tree])
            return known[tree]

        return shown(body.result), buffers

    def peak(self, name: str, args: Sequence[Buffer], dying: Collection[Buffer]) -> int:
        """Return the peak bytes inside a call, of its values and of arguments last used in it."""
        left, flags = set(dying), []
        for arg in args:
            flags.append(arg in left)
            left.discard(arg)
        key = (name, tuple(arg.weight for arg in args), tuple(flags))
        if key not in self._peaks:
            body = self.read(*key[:2])
            dying_params = [b for b, dies in zip(body.params, flags, strict=True) if dies]
            self._peaks[key] = max((n for _, n in self.profile(body, dying_params)), default=0)
        return self._peaks[key]

    def profile(
        self,
        body: BufferTasks,
        params: Collection[Buffer],
        others: Collection[Buffer] = (),
        last: Mapping[Buffer, int] | None = None,
    ) -> list[tuple[int, int]]:
        """Return the live bytes at each task of a function.

        Parameters
        ----------
        body : BufferTasks
        params : collection of Buffer
            Parameters that count.
        others : collection of Buffer
            Made in the function, and not counted.
        last : mapping of Buffer to int, optional
            Task of the last use of each buffer; :meth:`last_uses` where it is not given.

        Returns
        -------
        list of (int, int)
            Two numbers per task: the bytes of values that are made before it and read after it; and
            the most bytes with the values that it makes, and those that it is the last to read.
        """
        last = self.last_uses(body) if last is None else last
        results_of = [[b for b in task.makes if b not in others] for task in body.tasks]
        ranges = [(b, 0, last[b]) for b in params if b in last]  # the rest is never read
        for number, results in enumerate(results_of):
            ranges += [(b, number, max(last.get(b, number), number)) for b in results]
        ends: list[list[Buffer]] = [[] for _ in range(len(results_of) + 1)]
        for buffer, _, end in ranges:
            ends[end].append(buffer)
        size = {buffer: self.size(buffer) for buffer, _, _ in ranges}
        first, until = [r[1] for r in ranges], [r[2] for r in ranges]
        live = live_bytes(first, until, [size[r[0]] for r in ranges], len(results_of)).tolist()
        result = []
        for task, results, ending, here in zip(body.tasks, results_of, ends, live, strict=False):
            dying = [b for b in ending if b not in task.makes]
            before = here - sum(size[b] for b in (*results, *dying))
            result.append((before, before + self.inside(task, results, dying)))
        return result

    def inside(self, task: CallTask, results: Collection[Buffer], dying: Collection[Buffer]) -> int:
        """Return the peak bytes inside a task, of its results and of its last uses."""
        if task.callee is not None:
            return self.peak(task.callee, task.reads, dying)
        return self.sizes(results) + self.sizes(dying)

    def last_uses(
        self, body: BufferTasks, without: Mapping[int, Collection[Buffer]] | None = None
    ) -> dict[Buffer, int]:
        """Return the last task that reads each buffer; results are read at the end.

        ``without``: buffers that some tasks are taken not to read.
        """
        unread = without or {}
        reads = (
            (b for b in task.reads if b not in unread.get(number, ()))
            for number, task in enumerate(body.tasks)
        )
        return last_reads(reads, leaves(body.result))
