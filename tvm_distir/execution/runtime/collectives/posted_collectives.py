# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run collectives as messages of a fabric, in a single call or in two.

A start posts this rank's parts and waits for nobody. The completion takes what the others have
posted, reduces, and writes the result. Ranks of a group call the same collectives in the same
order, so the messages from one rank to another are taken in that order, whichever collective is
completed first. A collective in a single call is a start and its completion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm_distir.core.collectives import Collective
from tvm_distir.core.ir.operators import LOCAL_OPS

from .array_operations import Operand
from .fabric import call_words, ranks_text, unlike_calls
from .message_steps import CollectiveSteps, message_steps
from .transfers import Transfers

COLLECTIVE_TAG = -2
"""The tag of the messages of all collectives."""


@dataclass(eq=False)
class Posted:
    """A collective of a rank whose parts have been posted.

    Attributes
    ----------
    call : Collective
    group : tuple of int
    x : array
        The operand.
    words : str
        The call in words, which the ranks compare.
    blocks : bool
        Whether the rank waits for the result at once. It then hears of the calls of all ranks of
        the group, and its operand, which does not change meanwhile, is not copied.
    steps : generator
    step : StepMessages
        The messages that are in flight.
    sent : list
        What must be waited for before the memory of the operand may change.
    received : dict of int to array
        What has come, by position.
    """

    call: Collective
    group: tuple[int, ...]
    x: Operand
    words: str
    blocks: bool
    steps: CollectiveSteps
    step: Any
    sent: list[Any] = field(default_factory=list)
    received: dict[int, Operand] = field(default_factory=dict)


class PostedCollectives(Transfers):
    """Collectives in one call or two, over the messages that a subclass carries.

    Attributes
    ----------
    most_in_flight : int
        The most collectives that a rank had started and not completed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most_in_flight = 0
        self._started: dict[int, dict[int, tuple[Posted, Callable[[Operand], None]]]] = {}
        self._expected: dict[tuple[int, int], deque[Posted]] = {}
        self._words: dict[tuple[object, ...], str] = {}

    def collective(
        self, rank: int, call: Collective, x: Operand, into: Operand | None = None
    ) -> Operand:
        """Take part in a collective; returns this rank's result.

        Parameters
        ----------
        rank : int
        call : Collective
        x : array or None
            The operand, which ``axis_index`` has not.
        into : array, optional
            Memory of the result, to which it may be written at once.

        Raises
        ------
        EngineError
            DIST0611 when the ranks of the group called different collectives, DIST0610 when
            nobody can go on, DIST0613 after the timeout.
        """
        if call.name in LOCAL_OPS:
            group = call.group_of(rank)
            return self.arrays.local(call, x, group.index(rank), len(group))
        return self._finish(rank, self._begin(rank, call, x, into, blocks=True))

    def start(
        self,
        rank: int,
        call: Collective,
        x: Operand,
        address: int,
        write: Callable[[Operand], None],
        into: Operand | None = None,
    ) -> None:
        """Post this rank's parts of a collective; does not wait.

        Parameters
        ----------
        rank : int
        call : Collective
        x : array
            The operand.
        address : int
            The address of the result, by which :meth:`complete` knows the collective.
        write : callable
            Writes the result to that address.
        into : array, optional
            As of :meth:`collective`.
        """
        posted = self._begin(rank, call, x, into, blocks=False)
        started = self._started.setdefault(rank, {})
        if address in started:  # memory of no elements, or used again before its completion
            write(self._finish(rank, posted))
            return
        started[address] = posted, write
        self.most_in_flight = max(self.most_in_flight, len(started))

    def complete(self, rank: int, address: int) -> None:
        """Wait for a started collective and write its result; nothing for an unknown address.

        Raises
        ------
        EngineError
            As :meth:`collective`.
        """
        started = self._started.get(rank, {}).pop(address, None)
        if started is not None:
            posted, write = started
            write(self._finish(rank, posted))

    # Steps ------------------------------------------------------------------------------------

    def _begin(
        self, rank: int, call: Collective, x: Operand, into: Operand | None, blocks: bool
    ) -> Posted:
        x = self.arrays.contiguous(x)
        words = self._words_of(call, x)
        group = call.group_of(rank)
        steps = self._steps_of(call, group.index(rank), x, into)
        posted = Posted(call, group, x, words, blocks, steps, next(steps))
        self._post_step(rank, posted)
        return posted

    def _words_of(self, call: Collective, x: Operand) -> str:
        key = call, tuple(x.shape), x.dtype
        if key not in self._words:
            self._words[key] = f"{call_words(call, x)} over {list(map(list, call.groups))}"
        return self._words[key]

    def _steps_of(
        self, call: Collective, position: int, x: Operand, into: Operand | None
    ) -> CollectiveSteps:
        return message_steps(self.arrays, call, position, x)

    def _finish(self, rank: int, posted: Posted) -> Operand:
        result: Any = None
        while result is None:
            arrived = self._take_step(rank, posted)
            try:
                posted.step = posted.steps.send(arrived)
            except StopIteration as stop:
                result = stop.value
            else:
                self._post_step(rank, posted)
        self._count(rank, posted.call, result)
        return result

    def _post_step(self, rank: int, posted: Posted) -> None:
        """Post the parts of a step, and expect those of the others."""
        for position, other in enumerate(posted.group):
            part = posted.step.parts.get(position)
            if other == rank:
                if position in posted.step.shapes:
                    posted.received[position] = part if posted.blocks else self.arrays.copy(part)
                continue
            if posted.blocks or part is not None:
                sent = posted.x.reshape(-1)[:0] if part is None else part
                sent = sent if posted.blocks else self.arrays.copy(sent)
                posted.sent += self._post((COLLECTIVE_TAG, rank, other), (posted.words, sent))
            if posted.blocks or position in posted.step.shapes:
                self._expected.setdefault((rank, other), deque()).append(posted)

    def _take_step(self, rank: int, posted: Posted) -> dict[int, Operand]:
        """Wait for the parts of the others; returns what has come, by position."""
        for position, other in enumerate(posted.group):
            if posted.blocks or position in posted.step.shapes:
                while other != rank and position not in posted.received:
                    self._take_next(rank, other)
        if posted.blocks:
            self._await_sent(posted)
        arrived, posted.received = posted.received, {}
        return arrived

    def _await_sent(self, posted: Posted) -> None:
        """Wait until the memory of what was posted may change."""

    def _take_next(self, rank: int, other: int) -> None:
        """Take the next message of another rank, for whichever collective expects it."""
        posted = self._expected[rank, other].popleft()
        label = f"{posted.call.text()} for {ranks_text([other])}"
        words, part = self._take((COLLECTIVE_TAG, other, rank), label)
        if words != posted.words:
            raise unlike_calls((other, words), (rank, posted.words), posted.group)
        posted.received[posted.group.index(other)] = part
