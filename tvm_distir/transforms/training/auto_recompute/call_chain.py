# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Model the calls of a function with forward and backward passes as links of a chain.

Between the forward and the backward passes of the calls, their stashes and other values are live.
The options of each call are the policies and the minimum cuts of its function, written and
measured. A value that several calls get, as a mask, is assumed to be live as without recomputation;
where a call needs it longer, that call counts it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.relax import Expr

from tvm_distir.core.plan import CUT, FULL, NONE, SELECTIVE
from tvm_distir.transforms.training.autodiff.saved_values import kept_bytes
from tvm_distir.transforms.training.autodiff.tape import CallGradient, ForwardBackward
from tvm_distir.transforms.training.recompute.policies import kept_by

from .buffers import Buffer, BufferTasks, leaves, tree_of
from .chain import CallOption, ChainCall
from .peak_memory import PeakMemory


@dataclass(frozen=True)
class _CallPosition:
    """Call of ``main`` with its forward and backward passes.

    Attributes
    ----------
    call : CallGradient
    forward, backward : int
        Numbers of their tasks.
    """

    call: CallGradient
    forward: int
    backward: int


class CallChain:
    """Calls of a function without recomputation, and the buffers that are live around them.

    Parameters
    ----------
    memory : PeakMemory
        Knows which results of the calls' backward passes are gradients of weights.
    body : BufferTasks
        The function.
    calls : sequence of CallGradient
        Both parts of each stand in it.
    weights : collection of str
        Names of its parameters that are weights.
    arriving : collection of Buffer
        Parameters that live from the beginning to their last use; others are there all the time,
        and not counted.
    later : callable, optional
        A function that returns the bytes that the first half of a pair's backward pass passes on to
        the second half.
    """

    def __init__(
        self,
        memory: PeakMemory,
        body: BufferTasks,
        calls: Sequence[CallGradient],
        weights: Collection[str],
        arriving: Collection[Buffer] = (),
        later: Callable[[ForwardBackward], int] | None = None,
    ) -> None:
        self.memory, self.pairs = memory, memory.pairs
        self.main, self.weights = body, weights
        self.resident = set(body.params) - set(arriving)
        self._later = later
        number = {str(task.var.name): i for i, task in enumerate(body.tasks)}
        self.positions = [
            _CallPosition(c, number[str(c.made.name)], number[str(c.back.name)]) for c in calls
        ]
        self.last = self.memory.last_uses(body, self._unread())
        self.profile = self.memory.profile(body, arriving, self._kept(), self.last)
        self._options: dict[Any, list[tuple[str, int, ForwardBackward]]] = {}

    def _buffers(self, value: Expr) -> list[Buffer]:
        return list(leaves(tree_of(value, self.main.trees)))

    def _unread(self) -> dict[int, set[Buffer]]:
        """Return the saved values, and results of calls, that only a single backward pass reads."""
        operand_buffers = [
            {b for arg in position.call.args for b in self._buffers(arg) if self._is_value(b)}
            for position in self.positions
        ]
        readers = Counter(buffer for buffers in operand_buffers for buffer in buffers)
        return {
            position.backward: {
                *self._saved(position.call),
                *(b for b in buffers if readers[b] == 1),
            }
            for position, buffers in zip(self.positions, operand_buffers, strict=True)
        }

    def _saved(self, call: CallGradient) -> list[Buffer]:
        return [] if call.saved is None else self._buffers(call.saved)

    def _is_value(self, buffer: Buffer) -> bool:
        """Return whether a buffer is computed in the step from data."""
        return not buffer.weight and buffer not in self.resident

    def _kept(self) -> set[Buffer]:
        """Return the buffers that are retained only by the calls."""
        result: set[Buffer] = set()
        for position in self.positions:
            shown = set(
                self._buffers(position.call.made)[: -len(self._saved(position.call)) or None]
            )
            result.update(b for b in self._saved(position.call) if b not in shown)
        return result

    def links(self) -> list[ChainCall]:
        """Return the links of the chain."""
        return [
            ChainCall(
                tuple(self._options_of(position)),
                self.profile[position.forward][0],
                self.profile[position.backward][0],
            )
            for position in self.positions
        ]

    def gaps(self) -> list[int]:
        """Return the peak of other live bytes between calls, by the number of calls done."""
        gaps = [0] * (len(self.positions) + 1)
        ends = {k for position in self.positions for k in (position.forward, position.backward)}
        for number, (_, most) in enumerate(self.profile):
            count = sum(
                position.forward < number < position.backward for position in self.positions
            )
            if number not in ends:
                gaps[count] = max(gaps[count], most)
        return gaps

    def candidates(self, call: CallGradient) -> list[tuple[str, int, ForwardBackward]]:
        """Return the policies of a call's function with their times and pairs."""
        key = (call.pair.name, call.pair.differentiated)
        if key not in self._options:
            draft = self.pairs.draft(*key)
            parts = draft.params, draft.frontier
            plain = kept_bytes(kept_by(NONE, *parts)[0])
            shares = [
                math.ceil(100 * point.size_bytes / max(plain, 1)) for point in draft.frontier.points
            ]
            cuts = [f"{CUT}{share / 100:g}" for share in shares if 0 < share < 100]
            candidates = []
            for policy in dict.fromkeys((NONE, FULL, SELECTIVE, *cuts)):
                _, recomputed = kept_by(policy, *parts)
                operands = draft.frontier.operands
                time = sum(
                    self.pairs.times.of(b.value) for b in recomputed if b.var not in operands
                )
                candidates.append((policy, time, self.pairs.pair_with(*key, policy)))
                self.memory.flag(candidates[-1][2], call.args, self.weights)
            self._options[key] = candidates
        return self._options[key]

    def _options_of(self, position: _CallPosition) -> list[CallOption]:
        """Return the options of a call that no other option dominates."""
        options: list[CallOption] = []
        for policy, time, pair in self.candidates(position.call):
            later = 0 if self._later is None else self._later(pair)
            option = CallOption(policy, time, *self._bytes(position, pair), later)
            if not any(other.is_no_worse(option) for other in options):
                options.append(option)
        return options

    def _bytes(self, position: _CallPosition, pair: ForwardBackward) -> tuple[int, int, int]:
        """Return the saved bytes, and the peaks inside both passes."""
        memory, args = self.memory, position.call.args
        operands = [b for arg in args for b in self._buffers(arg)]
        needed = [b for i in pair.needed for b in self._buffers(args[i])]
        live = {b for b in needed if self._is_value(b) and self.last.get(b, -1) < position.backward}
        forward = str(pair.forward.name_hint)
        tree, _ = memory.results(forward, operands)
        saved = list(leaves(tree[1])) if pair.saves else []  # views share a buffer
        ends = {b for b in operands if self._is_value(b) and self.last.get(b) == position.forward}
        grad = self.main.tasks[position.backward].reads[: self._width(position)]
        dying = {
            b
            for b in (*grad, *needed)
            if self.last.get(b) == position.backward and self._is_value(b)
        }
        return (
            memory.sizes((*dict.fromkeys(saved), *live)),
            memory.peak(forward, operands, ends - live) + memory.sizes(ends & live),
            memory.peak(
                str(pair.backward.name_hint), [*grad, *saved, *needed], {*dying, *saved, *live}
            ),
        )

    def _width(self, position: _CallPosition) -> int:
        """Return the number of buffers of the gradient of a call's result."""
        return len(self._buffers(position.call.made)) - len(self._saved(position.call))
