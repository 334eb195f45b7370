# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give each thread a separate stack of the block builders that write a function.

TVM has a single stack for all threads, from which ``BlockBuilder.current()`` takes the builder that
ops of ``relax.frontend.nn`` emit into: threads would emit into the functions of others.
"""

from __future__ import annotations

import threading
from typing import Any

from tvm import relax


class _Stack(threading.local):
    """List whose content depends on the thread."""

    def __init__(self) -> None:
        self._builders: list[Any] = []

    def __len__(self) -> int:
        return len(self._builders)

    def __getitem__(self, place: int) -> Any:
        return self._builders[place]

    def append(self, builder: Any) -> None:
        """Append a builder."""
        self._builders.append(builder)

    def pop(self) -> Any:
        """Remove and return the last builder."""
        return self._builders.pop()


def separate_builder_stacks() -> None:
    """Replace TVM's stack; a builder that is writing stays that of the calling thread."""
    stack = _Stack()
    for builder in relax.BlockBuilder._stack:
        stack.append(builder)
    relax.BlockBuilder._stack = stack


__all__ = ["separate_builder_stacks"]
