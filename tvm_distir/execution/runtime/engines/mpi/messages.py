# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Send messages between processes; waits end with a peer's failure, end or timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.execution.runtime.collectives.message_texts import array_head, read_array_head
from tvm_distir.support import EngineError

from .polling import Deadline
from .world import World, as_bytes

Array = npt.NDArray[Any]


class Messages:
    """The messages of a rank to and from single processes.

    Parameters
    ----------
    world : World
    rank : int or None
        Device id of this process.
    check : callable
        Raises when there is no sense in waiting on.
    """

    def __init__(self, world: World, rank: int | None, check: Callable[[], None]) -> None:
        self.world, self.rank, self.check = world, rank, check

    def next(
        self, process: int, tag: int, describe: Callable[[], str]
    ) -> tuple[bytes, npt.NDArray[np.uint8], int] | None:
        """Return the next message of a process, None while there is none.

        Raises
        ------
        EngineError
            DIST0610 when none can come, because its rank has run to its end.
        """
        message = self.world.poll(process, tag)
        if message is None and self.world.has_ended(process):
            message = self.world.poll(process, tag)
            if message is None:
                raise EngineError(
                    "DIST0610",
                    f"rank {self.rank} waits in {describe()}; process {process} has ended",
                    place="ranks",
                    remedy="Make every rank of a group call its collectives, and give each send "
                    "a receive.",
                )
        return message

    def take_data(
        self, process: int, tag: int, message: tuple[bytes, Any, int], out: npt.NDArray[np.uint8]
    ) -> list[Any]:
        """Copy data that came with its header, or begin to receive it."""
        _, data, rest = message
        if rest:
            return self.world.receive_rest(process, tag, out)
        out[:] = data
        return []

    def post_array(self, process: int, tag: int, meaning: Any, array: Array) -> None:
        """Send an array and its meaning to a process; does not wait."""
        self.world.post(process, tag, array_head(meaning, array), as_bytes(array))

    def take_array(self, process: int, tag: int, label: str) -> tuple[Any, Array]:
        """Wait for the next array of a process."""
        deadline = Deadline(self.world.timeout_s)
        message = self.next(process, tag, lambda: label)
        while message is None:
            self.world.turn(deadline, self.check, lambda: label)
            message = self.next(process, tag, lambda: label)
        meaning, shape, dtype = read_array_head(message[0])
        out = np.empty(shape, dtype)
        self.world.finish(
            self.take_data(process, tag, message, as_bytes(out)), self.check, lambda: label
        )
        return meaning, out
