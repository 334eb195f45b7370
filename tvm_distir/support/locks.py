# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Provide locks between threads that are free in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class ForkSafeLock:
    """A lock that is free in a forked child.

    A child holds copies of the locks of its parent, and not the threads that would release them.

    Parameters
    ----------
    make : callable
        A function that makes the lock: ``threading.Lock``, or ``threading.RLock`` for a lock that a
        thread may take again while it holds it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]] = threading.Lock) -> None:
        self._make = make
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = self._make()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock for a block."""
        with self._lock:  # the lock that is released, even if the block forks
            yield
