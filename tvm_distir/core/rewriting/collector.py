# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pause Python's cycle collector while many small objects without cycles are created.

Every object that stands for an IR node counts as an object to traverse: on a module of fifty
thousand bindings the collector takes a sixth of all time and frees nothing. Every pass runs with
it paused (:func:`~.declaration.module_pass`), so do searches of the propagator and the
commands that only compile.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused(permanent: bool = False) -> Iterator[None]:
    """Pause the collector; nested uses are fine.

    Parameters
    ----------
    permanent : bool
        Whether all objects that exist at the end stay until the process ends: the collector then
        never examines them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if permanent:
            gc.freeze()
        if enabled:
            gc.enable()
