# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pause Python's cycle collector while many small objects without cycles are created.

Every object that stands for an IR node counts as an object to traverse: on a module of fifty
thousand bindings the collector takes half of all time and frees nothing. Every pass runs with it
paused (:func:`~.declaration.module_pass`), and so does every function of the package that works
on whole modules or programs, whoever calls it.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


class _Pauses:
    """The pauses that are open in all threads, and whether the collector ran before the first."""

    lock = threading.Lock()
    count = 0
    enabled = False


@contextlib.contextmanager
def gc_paused(permanent: bool = False) -> Iterator[None]:
    """Pause the collector, until the last of nested and concurrent uses ends; also a decorator.

    Parameters
    ----------
    permanent : bool
        Whether all objects that exist at the end stay until the process ends: the collector then
        never examines them.
    """
    with _Pauses.lock:
        if not _Pauses.count:
            _Pauses.enabled = gc.isenabled()
            gc.disable()
        _Pauses.count += 1
    try:
        yield
    finally:
        if permanent:
            gc.freeze()
        with _Pauses.lock:
            _Pauses.count -= 1
            if not _Pauses.count and _Pauses.enabled:
                gc.enable()
