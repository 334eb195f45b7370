# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start collectives as messages and complete them later, over messages of a fabric.

A start posts this rank's parts and waits for nobody. The completion takes what the others have
posted, reduces, and writes the result. Ranks of a group start the same collectives in the same
order, so the messages from one rank to another are taken in that order, whichever collective is
completed first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tvm_distir.core.collectives import Collective, counted_bytes
from tvm_distir.support import EngineError

from . import native_library as native
from .fabric import call_words
from .message_steps import Array, CollectiveSteps, StepMessages, message_steps
from .transfers import Transfers

STARTED_TAG = -2
"""The tag of the messages of all started collectives."""


@dataclass(eq=False)
class _Posted:
    """A collective of a rank whose parts have been posted.

    Attributes
    ----------
    call : Collective
    group : tuple of int
    words : str
        The call in words, which the ranks compare.
    steps : generator
    write : callable
        Writes the result to the memory of the program.
    step : StepMessages
        The messages that are in flight.
    received : dict of int to array
        What has come, by position.
    """

    call: Collective
    group: tuple[int, ...]
    words: str
    steps: CollectiveSteps
    write: Callable[[Array], None]
    step: StepMessages
    received: dict[int, Array] = field(default_factory=dict)


class PostedCollectives(Transfers):
    """Collectives in two calls, over the messages that a subclass carries.

    Attributes
    ----------
    most_in_flight : int
        The most collectives that a rank had started and not completed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most_in_flight = 0
        self._started: dict[int, dict[int, _Posted]] = {}
        self._expected: dict[tuple[int, int], deque[_Posted]] = {}

    def start(
        self, rank: int, call: Collective, x: Array, address: int, write: Callable[[Array], None]
    ) -> None:
        """Post this rank's parts of a collective; does not wait.

        Parameters
        ----------
        rank : int
        call : Collective
        x : array
            The operand, which is copied.
        address : int
            The address of the result, by which :meth:`complete` knows the collective.
        write : callable
            Writes the result to that address.
        """
        group = call.group_of(rank)
        x = np.ascontiguousarray(x).reshape(x.shape)
        steps = message_steps(call, group.index(rank), x)
        words = f"{call_words(call, x)} over {list(map(list, call.groups))}"
        posted = _Posted(call, group, words, steps, write, next(steps))
        self._post_parts(rank, posted)
        started = self._started.setdefault(rank, {})
        if address in started:  # memory of no elements, or used again before its completion
            self._await_parts(rank, posted)
            return
        started[address] = posted
        self.most_in_flight = max(self.most_in_flight, len(started))

    def complete(self, rank: int, address: int) -> None:
        """Wait for a started collective and write its result; nothing for an unknown address.

        Raises
        ------
        EngineError
            DIST0611 when the ranks of the group started different collectives, else as
            :meth:`receive`.
        """
        posted = self._started.get(rank, {}).pop(address, None)
        if posted is not None:
            self._await_parts(rank, posted)

    def _await_parts(self, rank: int, posted: _Posted) -> None:
        result: Array | None = None
        while result is None:
            for position in posted.step.shapes:
                while position not in posted.received:
                    self._take_next(rank, posted.group[position])
            arrived, posted.received = posted.received, {}
            try:
                posted.step = posted.steps.send(arrived)
            except StopIteration as stop:
                result = stop.value
            else:
                self._post_parts(rank, posted)
        posted.write(result)
        size = counted_bytes(posted.call, result)
        done = native.Executed(posted.call.name, posted.call.groups, size, 1)
        self._executed_as_messages.setdefault(rank, []).append(done)

    def _post_parts(self, rank: int, posted: _Posted) -> None:
        """Post the parts of a step, and expect those of the others."""
        for position, other in enumerate(posted.group):
            part = posted.step.parts.get(position)
            if other == rank:
                if position in posted.step.shapes and part is not None:
                    posted.received[position] = part.copy()
                continue
            if part is not None:
                self._post((STARTED_TAG, rank, other), (posted.words, part.copy()))
            if position in posted.step.shapes:
                self._expected.setdefault((rank, other), deque()).append(posted)

    def _take_next(self, rank: int, other: int) -> None:
        """Take the next message of another rank, for whichever collective expects it."""
        posted = self._expected[rank, other].popleft()
        words, part = self._take((STARTED_TAG, other, rank), posted.words)
        if words != posted.words:
            raise EngineError(
                "DIST0611",
                f"rank {other} called {words} while rank {rank} called {posted.words}",
                place=f"group {list(posted.group)}",
                remedy="Make all ranks of a group call the same collectives in the same order.",
            )
        posted.received[posted.group.index(other)] = part
